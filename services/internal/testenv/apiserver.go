package testenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/sampan-io/sampan/services/internal/pki"
)

// APIServer is the API server alone, as a process, with its store in Data and
// everything else in Dir. It can be killed and started again.
type APIServer struct {
	Bin    string
	Dir    string
	Data   string
	Flags  []string // beyond the usual ones
	Config *rest.Config
	Client kubernetes.Interface

	port int
	cmd  *exec.Cmd
	done chan struct{}
}

// NewAPIServer makes certificates in dir; Start runs the server.
func NewAPIServer(dir, data string, flags ...string) (*APIServer, error) {
	bin, err := Bin()
	if err != nil {
		return nil, err
	}
	s := &APIServer{Bin: bin, Dir: dir, Data: data, Flags: flags}
	if s.port, err = FreePort(); err != nil {
		return nil, err
	}
	authority, err := pki.EnsureAuthority(s.file("ca.crt"), s.file("ca.key"), "test", time.Hour)
	if err != nil {
		return nil, err
	}
	if _, err := pki.EnsureSigningKey(s.file("sa.key"), s.file("sa.pub")); err != nil {
		return nil, err
	}
	server := pki.Request{CommonName: "kube-apiserver", Server: true, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}}
	if _, err := authority.Ensure(s.file("server.crt"), s.file("server.key"), server); err != nil {
		return nil, err
	}
	admin, err := authority.Issue(pki.Request{CommonName: "admin", Organizations: []string{"system:masters"}, Client: true})
	if err != nil {
		return nil, err
	}
	s.Config = &rest.Config{
		Host: "https://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)), QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: authority.PEM(), CertData: admin.Certificate, KeyData: admin.Key},
	}
	s.Client, err = kubernetes.NewForConfig(s.Config)
	return s, err
}

func (s *APIServer) file(name string) string { return filepath.Join(s.Dir, name) }

// Log is the path of the server's log.
func (s *APIServer) Log() string { return s.file("apiserver.log") }

// Start runs the server and waits until it is ready.
func (s *APIServer) Start(ctx context.Context) error {
	if err := s.launch(); err != nil {
		return err
	}
	return s.AwaitReady(ctx)
}

func (s *APIServer) launch() error {
	log, err := os.OpenFile(s.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("opening log: %w", err)
	}
	defer func() { _ = log.Close() }()
	s.cmd = exec.Command(filepath.Join(s.Bin, "apiserver"), append([]string{
		"--data-dir=" + s.Data, "--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(s.port), "--advertise-address=127.0.0.1",
		"--tls-cert-file=" + s.file("server.crt"), "--tls-private-key-file=" + s.file("server.key"), "--client-ca-file=" + s.file("ca.crt"),
		"--service-account-issuer=https://test", "--service-account-key-file=" + s.file("sa.pub"), "--service-account-signing-key-file=" + s.file("sa.key"),
		"--service-cluster-ip-range=10.96.0.0/16",
	}, s.Flags...)...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	// A test that is killed takes its server with it.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		return fmt.Errorf("starting the API server: %w", err)
	}
	s.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) {
		_ = cmd.Wait()
		close(done)
	}(s.cmd, s.done)
	return nil
}

// AwaitReady waits until /readyz is well, or the server has ended.
func (s *APIServer) AwaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		var code int
		err := s.Client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).StatusCode(&code).Error()
		if err == nil && code == http.StatusOK {
			return nil
		}
		select {
		case <-s.done:
			return fmt.Errorf("the API server ended: %s", s.tail())
		case <-ctx.Done():
			return fmt.Errorf("the API server is not ready: %w: %s", errors.Join(err, ctx.Err()), s.tail())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (s *APIServer) tail() string {
	data, _ := os.ReadFile(s.Log())
	return string(data[max(0, len(data)-2000):])
}

// Done is closed when the running server has ended.
func (s *APIServer) Done() <-chan struct{} { return s.done }

// Kill ends the server with SIGKILL, and returns when it is gone.
func (s *APIServer) Kill() { s.signal(syscall.SIGKILL) }

// Stop ends the server cleanly, and returns when it is gone.
func (s *APIServer) Stop() { s.signal(syscall.SIGTERM) }

func (s *APIServer) signal(signal syscall.Signal) {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Signal(signal)
	<-s.done
}

// FreePort is a TCP port of loopback that nobody listened on a moment ago.
func FreePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("finding a free port: %w", err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().(*net.TCPAddr).Port, nil
}
