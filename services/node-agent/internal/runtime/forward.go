package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"

	"github.com/sampan-io/sampan/services/node-agent/internal/namespaces"
)

// forward connects the stream with a port that something in the sandbox listens on,
// on its loopback interface, until either side ends.
func (s *Server) forward(ctx context.Context, sb *sandbox, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	conn, err := s.dialSandbox(ctx, sb, port)
	if err != nil {
		return fmt.Errorf("connecting to port %d of sandbox %s: %w", port, sb.id, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		io.Copy(conn, stream)
		if tcp, ok := conn.(*net.TCPConn); ok {
			tcp.CloseWrite()
		}
	}()
	_, err = io.Copy(stream, conn)
	if err != nil && (errors.Is(err, net.ErrClosed) || ctx.Err() != nil) {
		return nil
	}
	return err
}

func (s *Server) dialSandbox(ctx context.Context, sb *sandbox, port int32) (net.Conn, error) {
	if port <= 0 || port > 65535 {
		return nil, fmt.Errorf("%w: port %d", errInvalid, port)
	}
	if hostNetwork(sb.get().Config) {
		return dialLoopback(ctx, port)
	}
	var conn net.Conn
	err := namespaces.Do(s.namespacePath(sb.id, namespaces.Network), namespaces.Network, func() error {
		var err error
		conn, err = dialLoopback(ctx, port)
		return err
	})
	return conn, err
}

// dialLoopback dials one address at a time, so that the socket is made by the calling
// thread, in its namespace.
func dialLoopback(ctx context.Context, port int32) (net.Conn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	if err == nil {
		return conn, nil
	}
	conn, err6 := dialer.DialContext(ctx, "tcp6", net.JoinHostPort("::1", strconv.Itoa(int(port))))
	if err6 == nil {
		return conn, nil
	}
	return nil, err
}
