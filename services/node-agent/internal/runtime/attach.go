package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"github.com/sampan-io/sampan/services/node-agent/internal/monitor"
)

type attachRequest struct {
	stdin          io.Reader
	stdout, stderr io.WriteCloser
	resize         <-chan remotecommand.TerminalSize
}

// attachContainer connects the streams with the container's stdio until the container
// ends, the client leaves, or, for one that only writes, its input ends.
func (s *Server) attachContainer(ctx context.Context, c *container, req attachRequest) error {
	bundle := s.cfg.bundle(c.id)
	attachment, err := monitor.Attach(bundle)
	if err != nil {
		return err
	}
	defer attachment.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { attachment.Close() })
	defer stop()
	go followSizes(ctx, req.resize, func(size remotecommand.TerminalSize) {
		if err := monitor.Resize(bundle, size.Height, size.Width); err != nil {
			s.log.DebugContext(ctx, "Resizing a terminal", "container", c.id, "err", err)
		}
	})
	inputDone := make(chan error, 1)
	if req.stdin != nil {
		go func() { inputDone <- s.sendInput(attachment, req.stdin, c) }()
	}
	if req.stdout == nil && req.stderr == nil {
		select {
		case err := <-inputDone:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-c.done:
			return nil
		}
	}
	return receiveOutput(attachment, req)
}

func (s *Server) sendInput(attachment *monitor.Attachment, in io.Reader, c *container) error {
	_, err := io.Copy(attachment, in)
	if closeErr := attachment.CloseWrite(); err == nil && closeErr != nil && c.get().Phase == running {
		err = closeErr
	}
	return err
}

func receiveOutput(attachment *monitor.Attachment, req attachRequest) error {
	for {
		stream, data, err := attachment.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the container's output: %w", err)
		}
		out := req.stdout
		if stream == monitor.Stderr {
			out = req.stderr
		}
		if out == nil {
			continue
		}
		if _, err := out.Write(data); err != nil {
			return nil // the client has left
		}
	}
}
