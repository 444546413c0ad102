package monitor

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

func aLongTimeAgo() time.Time { return time.Unix(1, 0) }

// Stream says where output came from.
type Stream byte

// The streams of a container, in conmon's numbers.
const (
	Stdout Stream = 2
	Stderr Stream = 3
)

// maxPacket is conmon's largest: one byte for the stream and its buffer.
const maxPacket = 32*1024 + 1

// Attachment is a connection to the stdio of a running container.
type Attachment struct {
	conn *net.UnixConn
	buf  []byte
}

// Attach connects to the container whose bundle it is. Output from now on is
// delivered.
func Attach(bundle string) (*Attachment, error) {
	// The path of a socket has 107 bytes at most; the bundle's can be longer.
	dir, err := os.OpenFile(bundle, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("attaching: %w", err)
	}
	defer dir.Close()
	addr := &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), attachSocket), Net: "unixpacket"}
	conn, err := net.DialUnix("unixpacket", nil, addr)
	if err != nil {
		return nil, fmt.Errorf("attaching: %w", err)
	}
	return &Attachment{conn: conn, buf: make([]byte, maxPacket)}, nil
}

// Read returns the next output; the bytes are valid until the next call. It
// returns io.EOF when the container has ended.
func (a *Attachment) Read() (Stream, []byte, error) {
	for {
		n, err := a.conn.Read(a.buf)
		if err != nil {
			return 0, nil, err
		}
		if n > 1 {
			return Stream(a.buf[0]), a.buf[1:n], nil
		}
	}
}

// Write sends to the container's stdin.
func (a *Attachment) Write(p []byte) (int, error) {
	const packet = 8192 // conmon's buffer; a longer packet would be cut
	written := 0
	for written < len(p) {
		n, err := a.conn.Write(p[written:min(len(p), written+packet)])
		written += n
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// CloseWrite says that no more input comes.
func (a *Attachment) CloseWrite() error { return a.conn.CloseWrite() }

// Close disconnects; the container goes on.
func (a *Attachment) Close() error { return a.conn.Close() }

// Resize sets the size of the container's terminal.
func Resize(bundle string, height, width uint16) error {
	return control(bundle, fmt.Sprintf("1 %d %d\n", height, width))
}

// ReopenLog makes the monitor open its log file anew, after a rotation.
func ReopenLog(bundle string) error { return control(bundle, "2 0 0\n") }

func control(bundle, command string) error {
	// Without a reader, that is without a monitor, the open fails instead of waiting.
	fifo, err := os.OpenFile(filepath.Join(bundle, controlFIFO), unix.O_WRONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENXIO) {
		return ErrGone
	}
	if err != nil {
		return fmt.Errorf("talking to the monitor: %w", err)
	}
	defer fifo.Close()
	if _, err := fifo.WriteString(command); err != nil {
		return fmt.Errorf("talking to the monitor: %w", err)
	}
	return nil
}
