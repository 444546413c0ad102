package monitor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Process names a process so that a later one with the same pid is not taken for
// it.
type Process struct {
	PID       int    `json:"pid"`
	StartTime uint64 `json:"startTime"` // clock ticks since boot
	child     *os.Process
}

// ErrGone says that the process has ended.
var ErrGone = errors.New("the process is gone")

// Find looks at the process that has the pid now. It returns ErrGone when there is
// none or only a zombie.
func Find(pid int) (Process, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Process{}, ErrGone
	}
	// The command name may hold anything, so fields are counted from its end.
	_, rest, found := strings.Cut(string(data[strings.LastIndexByte(string(data), ')')+1:]), " ")
	fields := strings.Fields(rest)
	const stateField, startField = 0, 19
	if !found || len(fields) <= startField {
		return Process{}, fmt.Errorf("reading the state of process %d: malformed", pid)
	}
	if fields[stateField] == "Z" || fields[stateField] == "X" {
		return Process{}, ErrGone
	}
	start, err := strconv.ParseUint(fields[startField], 10, 64)
	if err != nil {
		return Process{}, fmt.Errorf("reading the start time of process %d: %w", pid, err)
	}
	return Process{PID: pid, StartTime: start}, nil
}

// Alive tells whether this very process runs.
func (p Process) Alive() bool {
	now, err := Find(p.PID)
	return p.PID > 0 && err == nil && now.StartTime == p.StartTime
}

// open gets a descriptor of this very process, or ErrGone.
func (p Process) open() (*os.File, error) {
	if p.PID <= 0 {
		return nil, ErrGone
	}
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil, ErrGone
	}
	if err != nil {
		return nil, fmt.Errorf("opening process %d: %w", p.PID, err)
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	if !p.Alive() { // the descriptor may be of a later process
		file.Close()
		return nil, ErrGone
	}
	return file, nil
}

// Signal sends the signal to this very process, or returns ErrGone.
func (p Process) Signal(signal unix.Signal) error {
	file, err := p.open()
	if err != nil {
		return err
	}
	defer file.Close()
	err = unix.PidfdSendSignal(int(file.Fd()), signal, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return ErrGone
	}
	return err
}

// Wait blocks without holding a thread until the process has ended or ctx ends,
// whose error it then returns. A child of this program is reaped.
func (p Process) Wait(ctx context.Context) error {
	file, err := p.open()
	if err != nil {
		p.reap()
		return nil
	}
	defer file.Close()
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { file.SetReadDeadline(aLongTimeAgo()) })
	defer stop()
	err = conn.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 || (err != nil && !errors.Is(err, unix.EINTR))
	})
	if err != nil {
		return errors.Join(ctx.Err(), err)
	}
	p.reap()
	return nil
}

func (p Process) reap() {
	if p.child != nil {
		p.child.Wait()
	}
}
