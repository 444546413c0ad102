package runtime

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/monitor"
)

// killedCode is what a shell gives a process that SIGKILL has ended.
const killedCode = 128 + int32(unix.SIGKILL)

// watchExits takes notice of exit codes as monitors write them.
func (s *Server) watchExits(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching exits: %w", err)
	}
	defer watcher.Close()
	if err := watcher.Add(s.cfg.exitDir()); err != nil {
		return fmt.Errorf("watching exits: %w", err)
	}
	s.checkExits() // what was written before the watch began
	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-watcher.Events:
			if event.Has(fsnotify.Create) {
				// Ending one can take long, and must not keep the others waiting.
				s.watches.Go(func() { s.checkExit(filepath.Base(event.Name)) })
			}
		case err := <-watcher.Errors:
			s.log.WarnContext(ctx, "Watching exits", "err", err)
			s.watches.Go(s.checkExits) // events may have been lost
		}
	}
}

func (s *Server) checkExits() {
	for _, c := range s.objects.listContainers("") {
		if c.get().Phase != exited {
			s.checkExit(c.id)
		}
	}
}

// checkExit ends the container if its monitor has written an exit code. It ignores
// names that are none of a container, such as those of temporary files.
func (s *Server) checkExit(id string) {
	c, err := s.objects.container(id)
	if err != nil || c.id != id {
		return
	}
	code, found, err := s.conmon.Exit(id)
	if err != nil {
		s.log.Warn("Reading an exit code", "container", id, "err", err)
		return
	}
	if !found {
		return
	}
	finished, err := s.conmon.ExitTime(id)
	if err != nil {
		finished = time.Now().UnixNano()
	}
	s.end(c, ending{code: code, at: finished})
}

// watch waits for the death of the container's monitor, which normally has left an
// exit code. One that has not was killed; the container is ended then, since nobody
// would read its output any more.
func (s *Server) watch(c *container) {
	s.checkExit(c.id) // it may have been too quick for the watch on the directory
	s.watches.Go(func() {
		if err := c.get().Monitor.Wait(s.background); err != nil {
			return // this program is ending; the container is not
		}
		s.checkExit(c.id)
		if c.get().Phase == exited {
			return
		}
		s.log.Warn("The monitor of a container died; ending the container", "container", c.id)
		if err := c.get().Init.Signal(unix.SIGKILL); err != nil && !errors.Is(err, monitor.ErrGone) {
			s.log.Warn("Killing a container without a monitor", "container", c.id, "err", err)
		}
		if err := c.get().Init.Wait(s.background); err != nil {
			return
		}
		s.end(c, ending{code: killedCode, at: time.Now().UnixNano(), message: "the container's monitor was killed"})
	})
}

type ending struct {
	code    int32
	at      int64 // nanoseconds
	message string
}

// end writes down that the container has ended, once.
func (s *Server) end(c *container, how ending) {
	oom := s.cgroups.OOMKills(c.get().Cgroup) > 0
	if !c.get().OwnPIDs {
		// What it has started does not die with it by itself.
		if err := s.cgroups.Kill(c.get().Cgroup); err != nil {
			s.log.Warn("Killing what a container left", "container", c.id, "err", err)
		}
	}
	ended := false
	err := s.change(c, func(r *containerRecord) bool {
		if r.Phase == exited {
			return false
		}
		ended = true
		// A file's time comes from a coarser clock than ours.
		r.Phase, r.ExitCode, r.FinishedAt = exited, how.code, max(how.at, r.StartedAt, r.CreatedAt)
		if how.message != "" {
			r.Message = how.message
		}
		if r.Reason == "" {
			r.Reason = exitReason(how.code, oom)
		}
		if r.Reason == reasonStartError {
			r.ExitCode = startErrorCode
		}
		return true
	})
	if err != nil {
		s.log.Error("Writing down the end of a container", "container", c.id, "err", err)
	}
	if !ended {
		return
	}
	close(c.done)
	s.emit(runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, c.id, c.get().SandboxID)
}

const (
	reasonStartError = "StartError"
	startErrorCode   = 128
)

func exitReason(code int32, oom bool) string {
	switch {
	case oom:
		return "OOMKilled"
	case code == 0:
		return "Completed"
	}
	return "Error"
}
