// Package testserver runs a whole API server within a test: a real store in the
// test's directory, TLS, authentication and authorization, on a free port.
package testserver

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sampan-io/sampan/services/apiserver/app"
)

// Server is a running server.
type Server struct {
	// Config is an administrator's, in JSON.
	Config *rest.Config
	Client kubernetes.Interface
	// Dir has the store's and the certificates' directories.
	Dir  string
	stop func() error
}

// Start runs a server with further flags until the test ends, and returns when
// it is ready.
func Start(t testing.TB, flags ...string) *Server {
	t.Helper()
	return StartIn(t, t.TempDir(), flags...)
}

// StartIn is Start with the files of an earlier server.
func StartIn(t testing.TB, dir string, flags ...string) *Server {
	t.Helper()
	options := parse(t, dir, flags)
	kubeconfig := filepath.Join(dir, "certs", "admin.kubeconfig")
	_ = os.Remove(kubeconfig) // an earlier server's names its port
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- options.Run(ctx, logger(t)) }()
	s := &Server{Dir: dir}
	stopped := false
	s.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-ended
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Errorf("server ended with: %v", err)
		}
	})
	s.await(t, kubeconfig, ended)
	return s
}

// Refused starts a server with the files of an earlier one, which must end by itself,
// and returns why it did.
func Refused(t testing.TB, dir string, flags ...string) error {
	t.Helper()
	const patience = time.Minute
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := parse(t, dir, flags).Run(ctx, logger(t))
	if ctx.Err() != nil {
		t.Fatalf("the server has not ended after %s", patience)
	}
	return err
}

func parse(t testing.TB, dir string, flags []string) *app.Options {
	t.Helper()
	options := app.New()
	fs := pflag.NewFlagSet("apiserver", pflag.ContinueOnError)
	options.AddFlags(fs)
	args := append([]string{
		"--data-dir=" + filepath.Join(dir, "data"), "--cert-dir=" + filepath.Join(dir, "certs"),
		"--bind-address=127.0.0.1", "--secure-port=0", "--unsafe-no-fsync", "--nats-listen-address=none",
	}, flags...)
	if err := fs.Parse(args); err != nil {
		t.Fatalf("flags: %v", err)
	}
	if err := options.Complete(); err != nil {
		t.Fatalf("flags: %v", err)
	}
	return options
}

// Stop ends the server before the test does, and returns how it ended.
func (s *Server) Stop() error { return s.stop() }

// await waits for the kubeconfig and then for readiness.
func (s *Server) await(t testing.TB, kubeconfig string, ended chan error) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("server ended before it was ready: %v", err)
		case <-deadline:
			t.Fatal("server is not ready after a minute")
		case <-tick.C:
		}
		if s.Config == nil {
			config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
			if err != nil {
				continue
			}
			config.QPS = -1
			s.Config = config
			if s.Client, err = kubernetes.NewForConfig(config); err != nil {
				t.Fatalf("client: %v", err)
			}
		}
		if body, err := s.Client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(context.Background()); err == nil && string(body) == "ok" {
			return
		}
	}
}

// As is a configuration that acts as another user, by impersonation.
func (s *Server) As(user string, groups ...string) *rest.Config {
	config := rest.CopyConfig(s.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
	return config
}

// Dynamic is an administrator's client without types.
func (s *Server) Dynamic(t testing.TB) dynamic.Interface {
	t.Helper()
	client, err := dynamic.NewForConfig(s.Config)
	if err != nil {
		t.Fatalf("dynamic client: %v", err)
	}
	return client
}

// HTTP is a plain client with an administrator's certificate.
func (s *Server) HTTP(t testing.TB) *http.Client {
	t.Helper()
	client, err := rest.HTTPClientFor(s.Config)
	if err != nil {
		t.Fatalf("HTTP client: %v", err)
	}
	return client
}

// Anonymous is a plain client without credentials.
func (s *Server) Anonymous() *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
}

func logger(t testing.TB) *slog.Logger {
	if testing.Verbose() {
		return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
	}
	return slog.New(slog.NewTextHandler(io.Discard, nil))
}
