package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/monitor"
)

// change replaces the container's record by one that fn has changed, in memory and
// on disk. Fn returns false to leave it.
func (s *Server) change(c *container, fn func(*containerRecord) bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := *c.get()
	if !fn(&next) {
		return nil
	}
	if err := s.containerRecords.Write(c.id, &next, false); err != nil {
		return err
	}
	c.record.Store(&next)
	return nil
}

// StartContainer lets the created process run.
func (s *Server) StartContainer(ctx context.Context, req *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	c, err := s.objects.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	if err := c.lock.lock(ctx); err != nil {
		return nil, err
	}
	defer c.lock.unlock()
	// It counts as running before it does: it may end before the start has returned.
	started := false
	err = s.timed(stepStarting, func() error {
		return s.change(c, func(r *containerRecord) bool {
			started = r.Phase == created
			if started {
				r.Phase, r.StartedAt = running, time.Now().UnixNano()
			}
			return started
		})
	})
	if err != nil {
		return nil, err
	}
	if !started {
		return nil, fmt.Errorf("%w: container %s is %s", errState, c.id, c.get().Phase)
	}
	startCtx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-c.done:
			cancel(errors.New("the process ended before its start"))
		case <-startCtx.Done():
		}
	}()
	err = s.timed(stepStart, func() error { return s.runcOf(c.get().Handler).Start(startCtx, c.id) })
	cancel(nil)
	if err != nil {
		return nil, s.startFailed(c, err)
	}
	s.emit(runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, c.id, c.get().SandboxID)
	return &runtimeapi.StartContainerResponse{}, nil
}

// startFailed ends what could not be started.
func (s *Server) startFailed(c *container, cause error) error {
	err := fmt.Errorf("starting container %s: %w", c.get().Config.GetMetadata().GetName(), cause)
	changeErr := s.change(c, func(r *containerRecord) bool {
		r.Reason, r.Message = reasonStartError, err.Error()
		return r.Phase != exited
	})
	killErr := c.get().Init.Signal(unix.SIGKILL)
	if errors.Is(killErr, monitor.ErrGone) {
		killErr = nil
	}
	return errors.Join(err, changeErr, killErr)
}

// StopContainer sends the stop signal, waits as long as it is told, and then kills.
func (s *Server) StopContainer(ctx context.Context, req *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	c, err := s.objects.container(req.GetContainerId())
	if errors.Is(err, errNotFound) {
		return &runtimeapi.StopContainerResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := s.stopContainer(ctx, c, time.Duration(req.GetTimeout())*time.Second); err != nil {
		return nil, err
	}
	return &runtimeapi.StopContainerResponse{}, nil
}

// stopContainer takes no lock: a second call with a shorter timeout must not wait for
// the first.
func (s *Server) stopContainer(ctx context.Context, c *container, timeout time.Duration) error {
	record := c.get()
	if record.Phase == exited {
		return nil
	}
	if timeout > 0 && record.Phase == running {
		deadline := time.Now().Add(timeout)
		signal := stopSignal(record.StopSignal)
		s.awaitProgram(ctx, record, signal, deadline)
		err := record.Init.Signal(signal)
		if err != nil && !errors.Is(err, monitor.ErrGone) {
			return fmt.Errorf("stopping container %s: %w", c.id, err)
		}
		if waitDone(ctx, c, time.Until(deadline)) {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return s.kill(ctx, c)
}

// awaitProgram waits, in a process that was just started, until the container's program
// has taken the place of runc and handles the signal. Before that the signal would be
// lost: the kernel keeps those without a handler from the first process of a PID
// namespace, and a program takes a moment until it has set its own.
func (s *Server) awaitProgram(ctx context.Context, record *containerRecord, signal unix.Signal, deadline time.Time) {
	const pause, patience = 2 * time.Millisecond, 2 * time.Second
	if end := time.Unix(0, record.StartedAt).Add(patience); end.Before(deadline) {
		deadline = end
	}
	name := filepath.Base(s.runcOf(record.Handler).Path)
	for time.Now().Before(deadline) && ctx.Err() == nil && !listens(record.Init.PID, name, signal) {
		time.Sleep(pause)
	}
}

// listens says whether a signal to a container's first process has an effect. Starter is
// the name of the program that becomes the container's.
func listens(pid int, starter string, signal unix.Signal) bool {
	proc := fmt.Sprintf("/proc/%d/", pid)
	line, err := os.ReadFile(proc + "cmdline")
	if err != nil {
		return true // it is gone
	}
	if args := strings.SplitN(string(line), "\x00", 3); len(line) == 0 || len(args) > 1 && filepath.Base(args[0]) == starter && args[1] == "init" {
		return false // or amid the change
	}
	status, err := os.ReadFile(proc + "status")
	if err != nil {
		return true
	}
	first, caught := false, uint64(0)
	for text := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(text, ":")
		fields := strings.Fields(value)
		if len(fields) == 0 {
			continue
		}
		switch key {
		case "NSpid":
			first = fields[len(fields)-1] == "1"
		case "SigCgt":
			caught, _ = strconv.ParseUint(fields[0], 16, 64) // 0 is what it is without one
		}
	}
	return !first || caught&(1<<(uint(signal)-1)) != 0
}

func waitDone(ctx context.Context, c *container, timeout time.Duration) bool {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-c.done:
		return true
	case <-timer.C:
		return false
	case <-ctx.Done():
		return false
	}
}

// kill ends the container's first process at once, and waits until its exit code is
// known.
func (s *Server) kill(ctx context.Context, c *container) error {
	if err := c.get().Init.Signal(unix.SIGKILL); err != nil && !errors.Is(err, monitor.ErrGone) {
		return fmt.Errorf("killing container %s: %w", c.id, err)
	}
	const patience = 10 * time.Second // the kernel may need long to free much memory
	if waitDone(ctx, c, patience) {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	// Something else holds its output open, so that the monitor waits. End that too.
	if err := s.cgroups.Kill(c.get().Cgroup); err != nil {
		return err
	}
	if waitDone(ctx, c, patience) {
		return nil
	}
	return fmt.Errorf("container %s outlives SIGKILL", c.id)
}

// Real-time signals as C libraries count them.
const (
	firstRealTime = unix.Signal(34)
	lastRealTime  = unix.Signal(64)
)

// realTime understands SIGRTMIN+3 and SIGRTMAX-3, and the CRI's SIGRTMINPLUS3.
func realTime(name string) (unix.Signal, bool) {
	name = strings.NewReplacer("PLUS", "", "MINUS", "", "+", "", "-", "").Replace(name)
	if offset, found := strings.CutPrefix(name, "SIGRTMIN"); found {
		n, err := strconv.Atoi("0" + offset)
		return firstRealTime + unix.Signal(n), err == nil
	}
	if offset, found := strings.CutPrefix(name, "SIGRTMAX"); found {
		n, err := strconv.Atoi("0" + offset)
		return lastRealTime - unix.Signal(n), err == nil
	}
	return 0, false
}

// stopSignal understands names with and without SIG, and numbers.
func stopSignal(name string) unix.Signal {
	if name == "" {
		return unix.SIGTERM
	}
	if number, err := strconv.Atoi(name); err == nil && number > 0 && number < 65 {
		return unix.Signal(number)
	}
	upper := strings.TrimPrefix(strings.ToUpper(name), "SIGNAL_")
	if !strings.HasPrefix(upper, "SIG") {
		upper = "SIG" + upper
	}
	if signal, ok := realTime(upper); ok {
		return signal
	}
	if signal := unix.SignalNum(upper); signal != 0 {
		return signal
	}
	return unix.SIGTERM
}
