package runtime

import (
	"context"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

// execTerminal runs a command with a terminal and returns its exit code. Runc copies
// between the terminal that it makes in the container and ours.
func (s *Server) execTerminal(ctx context.Context, c *container, command []string, in io.Reader, out io.Writer, resize <-chan remotecommand.TerminalSize) (int, error) {
	master, slave, err := openTerminal()
	if err != nil {
		return 0, err
	}
	defer master.Close()
	process, err := s.newExec(c, command, true)
	if err != nil {
		slave.Close()
		return 0, err
	}
	defer process.close()
	process.cmd.Stdin, process.cmd.Stdout, process.cmd.Stderr = slave, slave, slave
	// The terminal must be runc's own for it to hear of a new size.
	process.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	select { // the first size, so that the command starts with it
	case size := <-resize:
		setSize(master, size)
	default:
	}
	err = process.cmd.Start()
	slave.Close()
	if err != nil {
		return 0, err
	}
	go followSizes(ctx, resize, func(size remotecommand.TerminalSize) { setSize(master, size) })
	if in != nil {
		go io.Copy(master, in)
	}
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		if !copyTerminal(out, master) {
			cancel() // nobody listens to the command any more
		}
	}()
	code, err := process.wait(ctx)
	<-copied
	return code, err
}

// copyTerminal returns true when the last holder of the other side is gone, and false
// when the client is.
func copyTerminal(out io.Writer, master *os.File) bool {
	if out == nil {
		out = io.Discard
	}
	const chunk = 32 * 1024
	buf := make([]byte, chunk)
	for {
		n, readErr := master.Read(buf)
		if _, err := out.Write(buf[:n]); err != nil {
			return false
		}
		if readErr != nil {
			return true
		}
	}
}

func followSizes(ctx context.Context, resize <-chan remotecommand.TerminalSize, set func(remotecommand.TerminalSize)) {
	if resize == nil {
		return
	}
	for {
		select {
		case size, ok := <-resize:
			if !ok {
				return
			}
			if size.Height > 0 && size.Width > 0 {
				set(size)
			}
		case <-ctx.Done():
			return
		}
	}
}

func setSize(terminal *os.File, size remotecommand.TerminalSize) {
	conn, err := terminal.SyscallConn()
	if err != nil {
		return
	}
	// A terminal that has gone meanwhile needs no size.
	_ = conn.Control(func(fd uintptr) {
		_ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Height, Col: size.Width})
	})
}

func openTerminal() (master, slave *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("opening a terminal: %w", err)
	}
	master = os.NewFile(uintptr(fd), "ptmx")
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		master.Close()
		return nil, nil, fmt.Errorf("unlocking a terminal: %w", err)
	}
	// By ioctl and not by name: /dev/pts may be another instance's.
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		master.Close()
		return nil, nil, fmt.Errorf("opening a terminal: %w", errno)
	}
	return master, os.NewFile(peer, "pts"), nil
}
