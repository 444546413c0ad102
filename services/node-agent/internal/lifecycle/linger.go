package lifecycle

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// lingerControl makes closed connections leave TIME_WAIT after a second, so that
// frequent probes do not use up the node's ports.
func lingerControl(_, _ string, conn syscall.RawConn) error {
	var err error
	controlErr := conn.Control(func(fd uintptr) {
		err = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 1})
	})
	if controlErr != nil {
		return controlErr
	}
	return err
}
