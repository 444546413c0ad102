package runc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Start lets the created container's process run.
//
// A created process waits for a reader of the FIFO in its state directory, which is
// all that `runc start` is. Reading it here saves a pod's start the 10 ms that the
// binary takes to come up; the binary is asked when there is no such FIFO. The caller
// ends ctx when the process dies.
func (r Runc) Start(ctx context.Context, id string) error {
	path := filepath.Join(r.StateDir(id), fifoName)
	fifo, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return r.run(ctx, nil, "start", id)
	}
	if err != nil {
		return fmt.Errorf("starting: %w", err)
	}
	defer fifo.Close()
	if err := awaitByte(ctx, fifo); err != nil {
		return fmt.Errorf("starting: %w", err)
	}
	return os.Remove(path)
}

const fifoName = "exec.fifo"

// Created tells that the container has not been started yet.
func (r Runc) Created(id string) bool {
	_, err := os.Stat(filepath.Join(r.StateDir(id), fifoName))
	return err == nil
}

func hungUp(fd int) bool {
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(poll, 0)
	return err == nil && n > 0 && poll[0].Revents&unix.POLLHUP != 0
}

// awaitByte waits for what the process writes just before it executes its program. The
// end of the file means that the process has died instead.
func awaitByte(ctx context.Context, fifo *os.File) error {
	conn, err := fifo.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = fifo.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var n int
	var readErr error
	read := func(fd uintptr) {
		var buf [16]byte
		n, readErr = unix.Read(int(fd), buf[:])
	}
	err = conn.Read(func(fd uintptr) bool {
		read(fd)
		if readErr == nil && n == 0 {
			// No writer: one that has been and gone, or one that is still to come.
			return hungUp(int(fd))
		}
		return !errors.Is(readErr, unix.EAGAIN) && !errors.Is(readErr, unix.EINTR)
	})
	if err != nil && ctx.Err() != nil {
		// A short program may have ended before this read was its turn.
		if controlErr := conn.Control(read); controlErr == nil && readErr == nil && n > 0 {
			return nil
		}
		return context.Cause(ctx)
	}
	switch {
	case err != nil:
		return err
	case readErr != nil:
		return readErr
	case n == 0:
		return fmt.Errorf("the process is gone: %w", io.ErrUnexpectedEOF)
	}
	return nil
}
