package component

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/spf13/pflag"
)

// SecureServing says where and with which certificate a service answers HTTPS.
type SecureServing struct {
	BindAddress string
	Port        int // 0 serves nothing
	CertFile    string
	KeyFile     string
}

// AddFlags registers --bind-address, --secure-port, --tls-cert-file and
// --tls-private-key-file.
func (s *SecureServing) AddFlags(fs *pflag.FlagSet) {
	if s.BindAddress == "" {
		s.BindAddress = "0.0.0.0"
	}
	fs.StringVar(&s.BindAddress, "bind-address", s.BindAddress, "IP address to listen on")
	fs.IntVar(&s.Port, "secure-port", s.Port, "port of HTTPS; 0 serves nothing")
	fs.StringVar(&s.CertFile, "tls-cert-file", s.CertFile, "certificate of HTTPS, PEM, with its chain; empty makes a self-signed one in memory")
	fs.StringVar(&s.KeyFile, "tls-private-key-file", s.KeyFile, "private key of --tls-cert-file")
}

// Validate refuses contradictions among the flags.
func (s *SecureServing) Validate() error {
	switch {
	case (s.CertFile == "") != (s.KeyFile == ""):
		return errors.New("--tls-cert-file and --tls-private-key-file go together")
	case s.Port < 0 || s.Port > 65535:
		return fmt.Errorf("--secure-port: %d is not a port", s.Port)
	case net.ParseIP(s.BindAddress) == nil:
		return fmt.Errorf("--bind-address: %q is not an IP address", s.BindAddress)
	}
	return nil
}

// TLS asks clients for certificates without checking them: who authenticates the
// requests does that.
func (s *SecureServing) TLS() (*tls.Config, error) {
	if s.CertFile != "" {
		config, err := ServerTLS(s.CertFile, s.KeyFile, "")
		if err != nil {
			return nil, &UsageError{err}
		}
		config.ClientAuth = tls.RequestClientCert
		return config, nil
	}
	pair, err := selfSigned(s.BindAddress)
	if err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert}, nil
}

// Serve answers with handler until ctx ends. With port 0 it only waits.
func (s *SecureServing) Serve(ctx context.Context, handler http.Handler) error {
	if s.Port == 0 {
		<-ctx.Done()
		return nil
	}
	config, err := s.TLS()
	if err != nil {
		return err
	}
	listener, err := Listen(ctx, net.JoinHostPort(s.BindAddress, strconv.Itoa(s.Port)))
	if err != nil {
		return err
	}
	return Serve(ctx, listener, handler, config)
}

// selfSigned is a certificate for this host that no one trusts, as upstream's
// servers make when none is given.
func selfSigned(address string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("making key: %w", err)
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: fmt.Sprintf("%s@%d", host, time.Now().Unix())},
		DNSNames:     []string{host, "localhost"}, IPAddresses: []net.IP{net.ParseIP("127.0.0.1")},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if ip := net.ParseIP(address); ip != nil && !ip.IsUnspecified() {
		template.IPAddresses = append(template.IPAddresses, ip)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("making self-signed certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
