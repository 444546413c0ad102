package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sampan-io/sampan/services/sampan/internal/cluster"
)

// child is a running service, started or adopted.
type child struct {
	pid   int
	pidfd int
	cmd   *exec.Cmd // nil when adopted: another process is its parent
}

// start runs a service in its network namespace, in a session of its own and
// with its log as output, so that it outlives the supervisor.
func start(dir string, process cluster.Process) (*child, error) {
	log, err := os.OpenFile(process.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening log of %s: %w", process.Name, err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(process.Binary, process.Args...)
	cmd.Env = Environment(dir, process.Name)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := startIn(process.Namespace, cmd); err != nil {
		return nil, fmt.Errorf("starting %s: %w", process.Name, err)
	}
	pidfd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening process %s: %w", process.Name, err), cmd.Process.Kill(), cmd.Wait())
	}
	return &child{pid: cmd.Process.Pid, pidfd: pidfd, cmd: cmd}, nil
}

// startIn forks with the calling thread inside the network namespace. The
// mount namespace stays this process's, so that what a service mounts or pins is
// seen by all.
func startIn(namespace string, cmd *exec.Cmd) error {
	if namespace == "" {
		return cmd.Start()
	}
	result := make(chan error, 1)
	go func() {
		// The thread is left locked: it ends with the goroutine, and no other
		// goroutine ever runs in the namespace.
		runtime.LockOSThread()
		result <- func() error {
			fd, err := unix.Open(namespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return fmt.Errorf("opening network namespace %s: %w", namespace, err)
			}
			defer func() { _ = unix.Close(fd) }()
			if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("entering network namespace %s: %w", namespace, err)
			}
			return cmd.Start()
		}()
	}()
	return <-result
}

// adopt takes over a running service by its process id; ok is false when it
// ended meanwhile or is not that service.
func adopt(pid int, dir string, process cluster.Process) (*child, bool) {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, false
	}
	// The pidfd pins the process; only now does a look at /proc say something
	// about it and not about a successor with its id.
	name, ok := markedName(pid, []byte(marker+"="+dir+":"))
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if !ok || err != nil || name != process.Name || !sameBinary(exe, process.Binary) {
		_ = unix.Close(pidfd)
		return nil, false
	}
	return &child{pid: pid, pidfd: pidfd}, true
}

func sameBinary(exe, binary string) bool {
	return filepath.Base(exe) == filepath.Base(binary) || filepath.Base(exe) == filepath.Base(binary)+" (deleted)"
}

// wait blocks until the service has ended or ctx ends; ended says which. How it
// ended is in reason.
func (c *child) wait(ctx context.Context) (ended bool, reason string) {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return false, err.Error()
	}
	defer func() { _ = unix.Close(wake) }()
	stop := context.AfterFunc(ctx, func() { _, _ = unix.Write(wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) })
	defer stop()
	for {
		fds := []unix.PollFd{{Fd: int32(c.pidfd), Events: unix.POLLIN}, {Fd: int32(wake), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return false, err.Error()
		}
		if fds[0].Revents != 0 {
			break
		}
		if ctx.Err() != nil {
			return false, ctx.Err().Error()
		}
	}
	_ = unix.Close(c.pidfd)
	if c.cmd == nil {
		return true, "ended"
	}
	if err := c.cmd.Wait(); err != nil {
		return true, err.Error()
	}
	return true, "exit status 0"
}
