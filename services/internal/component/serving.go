package component

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"
)

// Limits of every HTTP server of Sampan against slow and idle clients.
const (
	ReadHeaderTimeout = 32 * time.Second
	IdleTimeout       = 90 * time.Second
	MaxHeaderBytes    = 1 << 20
	shutdownGrace     = 10 * time.Second
)

// Listen opens a TCP listener. A taken or forbidden address is a UsageError
// that names it.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address)
	switch {
	case err == nil:
		return listener, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, &UsageError{fmt.Errorf("address %s is already in use by another process", address)}
	case errors.Is(err, syscall.EACCES):
		return nil, &UsageError{fmt.Errorf("no permission to listen on %s", address)}
	default:
		return nil, &UsageError{fmt.Errorf("listening on %s: %w", address, err)}
	}
}

// Serve answers requests on listener until ctx ends, then lets requests in
// flight finish for a bounded time. With a TLS configuration it serves HTTPS
// (TLS 1.2 or newer, HTTP/2 offered), without one plain HTTP.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler, config *tls.Config) error {
	server := &http.Server{
		Handler:           handler,
		TLSConfig:         config,
		ReadHeaderTimeout: ReadHeaderTimeout,
		IdleTimeout:       IdleTimeout,
		MaxHeaderBytes:    MaxHeaderBytes,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: 100},
	}
	done := make(chan error, 1)
	go func() {
		if config != nil {
			done <- server.ServeTLS(listener, "", "")
		} else {
			done <- server.Serve(listener)
		}
	}()
	select {
	case err := <-done:
		return fmt.Errorf("serving on %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	if err := server.Shutdown(stop); err != nil {
		_ = server.Close()
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving on %s: %w", listener.Addr(), err)
	}
	return nil
}

// ServerTLS is a configuration that reads the key pair again when its files
// change, so that renewed certificates need no restart. With clientCA, client
// certificates are asked for and checked, but not required: who has none
// authenticates in another way.
func ServerTLS(certFile, keyFile, clientCA string) (*tls.Config, error) {
	pair := &reloadingPair{certFile: certFile, keyFile: keyFile}
	if _, err := pair.get(nil); err != nil {
		return nil, err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.get}
	if clientCA != "" {
		pool, err := CertPool(clientCA)
		if err != nil {
			return nil, err
		}
		config.ClientCAs = pool
		config.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return config, nil
}

// CertPool reads the PEM certificates in file.
func CertPool(file string) (*x509.CertPool, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading certificates: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("reading certificates: no PEM certificate in %s", file)
	}
	return pool, nil
}

type reloadingPair struct {
	certFile, keyFile string

	mu       sync.Mutex
	modified time.Time
	checked  time.Time
	pair     *tls.Certificate
}

func (p *reloadingPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pair != nil && time.Since(p.checked) < time.Second {
		return p.pair, nil
	}
	p.checked = time.Now()
	stat, err := os.Stat(p.certFile)
	if err == nil && p.pair != nil && stat.ModTime().Equal(p.modified) {
		return p.pair, nil
	}
	pair, loadErr := tls.LoadX509KeyPair(p.certFile, p.keyFile)
	if loadErr != nil {
		if p.pair != nil { // half-written renewal: the old pair goes on until the new one parses
			return p.pair, nil
		}
		return nil, fmt.Errorf("loading TLS key pair %s: %w", p.certFile, loadErr)
	}
	p.pair, p.modified = &pair, stat.ModTime()
	return p.pair, nil
}
