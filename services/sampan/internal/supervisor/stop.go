package supervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Stop ends processes: SIGTERM first where polite is set, SIGKILL for what is
// left after grace. It returns when all are gone.
func Stop(ctx context.Context, pids []int, polite bool, grace time.Duration) error {
	var handles []int
	defer func() {
		for _, fd := range handles {
			_ = unix.Close(fd)
		}
	}()
	for _, pid := range pids {
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			handles = append(handles, fd)
		}
	}
	if polite {
		signalAll(handles, unix.SIGTERM)
		handles = awaitAll(handles, grace)
	}
	signalAll(handles, unix.SIGKILL)
	if left := awaitAll(handles, grace); len(left) > 0 {
		handles = left
		return fmt.Errorf("%d processes do not end: they hang in the kernel", len(left))
	}
	handles = nil
	return ctx.Err()
}

func signalAll(handles []int, signal unix.Signal) {
	for _, fd := range handles {
		_ = unix.PidfdSendSignal(fd, signal, nil, 0)
	}
}

// awaitAll waits until the processes have ended, at most for grace, closes the
// handles of those that did, and returns the others.
func awaitAll(handles []int, grace time.Duration) []int {
	deadline := time.Now().Add(grace)
	for len(handles) > 0 {
		left := time.Until(deadline)
		if left <= 0 {
			break
		}
		polled := make([]unix.PollFd, len(handles))
		for i, fd := range handles {
			polled[i] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
		}
		if _, err := unix.Poll(polled, int(left.Milliseconds())+1); err != nil && !errors.Is(err, unix.EINTR) {
			break
		}
		var still []int
		for _, p := range polled {
			if p.Revents != 0 {
				_ = unix.Close(int(p.Fd))
			} else {
				still = append(still, int(p.Fd))
			}
		}
		handles = still
	}
	return handles
}
