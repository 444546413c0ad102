package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	utilexec "k8s.io/utils/exec"
)

// openStreams listens for the connections that Exec, Attach and PortForward announce.
func (s *Server) openStreams() error {
	host, _, err := net.SplitHostPort(s.cfg.StreamAddress)
	if err != nil {
		return fmt.Errorf("stream address: %w", err)
	}
	if addr, err := netip.ParseAddr(host); err != nil || !addr.IsLoopback() {
		return fmt.Errorf("stream address %q is not a loopback address", s.cfg.StreamAddress)
	}
	if s.listener, err = net.Listen("tcp", s.cfg.StreamAddress); err != nil {
		return fmt.Errorf("listening for streams: %w", err)
	}
	config := streaming.DefaultConfig
	config.Addr = s.listener.Addr().String()
	config.BaseURL = &url.URL{Scheme: "http", Host: config.Addr}
	config.StreamIdleTimeout = s.cfg.StreamIdle
	s.streams, err = streaming.NewServer(config, streamRuntime{s})
	return err
}

func (s *Server) serveStreams(ctx context.Context) error {
	const headerTimeout = 10 * time.Second
	server := &http.Server{Handler: s.streams, ReadHeaderTimeout: headerTimeout}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(s.listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving streams: %w", err)
	}
	return nil
}

// Exec announces where the client can connect to run a command.
func (s *Server) Exec(_ context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	c, err := s.runningContainer(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	req.ContainerId = c.id
	return s.streams.GetExec(req)
}

// Attach announces where the client can connect to the container's stdio.
func (s *Server) Attach(_ context.Context, req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	c, err := s.runningContainer(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	req.ContainerId = c.id
	return s.streams.GetAttach(req)
}

// PortForward announces where the client can connect to reach ports of the sandbox.
func (s *Server) PortForward(_ context.Context, req *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	sb, err := s.objects.sandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	if sb.get().Phase != ready {
		return nil, fmt.Errorf("%w: sandbox %s is not ready", errState, sb.id)
	}
	req.PodSandboxId = sb.id
	return s.streams.GetPortForward(req)
}

// streamRuntime does what a connected client has asked for.
type streamRuntime struct{ s *Server }

func (r streamRuntime) Exec(ctx context.Context, containerID string, cmd []string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	c, err := r.s.runningContainer(containerID)
	if err != nil {
		return err
	}
	var code int
	if tty {
		code, err = r.s.execTerminal(ctx, c, cmd, in, out, resize)
	} else {
		request := execRequest{cmd: cmd, stdin: in}
		if out != nil {
			request.stdout = out
		}
		if errOut != nil {
			request.stderr = errOut
		}
		code, err = r.s.exec(ctx, c, request)
	}
	if err != nil {
		return err
	}
	if code != 0 {
		return &utilexec.CodeExitError{Err: fmt.Errorf("command terminated with exit code %d", code), Code: code}
	}
	return nil
}

func (r streamRuntime) Attach(ctx context.Context, containerID string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	c, err := r.s.runningContainer(containerID)
	if err != nil {
		return err
	}
	return r.s.attachContainer(ctx, c, attachRequest{stdin: in, stdout: out, stderr: errOut, resize: resize})
}

func (r streamRuntime) PortForward(ctx context.Context, sandboxID string, port int32, stream io.ReadWriteCloser) error {
	sb, err := r.s.objects.sandbox(sandboxID)
	if err != nil {
		return err
	}
	return r.s.forward(ctx, sb, port, stream)
}
