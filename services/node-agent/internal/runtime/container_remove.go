package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"golang.org/x/sys/unix"

	"github.com/sampan-io/sampan/services/node-agent/internal/monitor"
	"github.com/sampan-io/sampan/services/node-agent/internal/overlay"
	"github.com/sampan-io/sampan/services/node-agent/internal/runc"
)

// RemoveContainer removes the container, and kills it first if it runs. It may be
// called again.
func (s *Server) RemoveContainer(ctx context.Context, req *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	c, err := s.objects.container(req.GetContainerId())
	if errors.Is(err, errNotFound) {
		return &runtimeapi.RemoveContainerResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := s.removeContainer(ctx, c); err != nil {
		return nil, err
	}
	return &runtimeapi.RemoveContainerResponse{}, nil
}

func (s *Server) removeContainer(ctx context.Context, c *container) error {
	if err := c.lock.lock(ctx); err != nil {
		return err
	}
	defer c.lock.unlock()
	if err := s.timed(stepStop, func() error { return s.stopContainer(ctx, c, 0) }); err != nil {
		return err
	}
	if _, err := s.objects.container(c.id); err != nil {
		return nil // removed while this call waited
	}
	record := c.get()
	if err := s.clearContainer(ctx, record); err != nil {
		return fmt.Errorf("removing container %s: %w", c.id, err)
	}
	s.objects.dropContainer(c)
	s.usage.drop(c.id)
	s.emit(runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, c.id, record.SandboxID)
	return nil
}

// clearContainer removes what a container that does not run has left, the record
// last, so that a cut-off removal is taken up at the next start.
func (s *Server) clearContainer(ctx context.Context, record *containerRecord) error {
	steps := []struct {
		name string
		run  func() error
	}{
		{stepDelete, func() error { return deleteRunc(ctx, s.runcOf(record.Handler), record.ID) }},
		{stepCgroup, func() error { return s.clearCgroup(record.Cgroup) }},
		{stepUnmount, func() error { return s.unmountAll(record.ID) }},
		{stepFilesGone, func() error {
			return errors.Join(os.RemoveAll(s.cfg.bundle(record.ID)), os.RemoveAll(s.cfg.writable(record.ID)), s.conmon.Forget(record.ID))
		}},
		{stepForgotten, func() error { return s.containerRecords.Delete(record.ID) }},
	}
	for _, step := range steps {
		if err := s.timed(step.name, step.run); err != nil {
			return err
		}
	}
	return nil
}

// deleteRunc removes runc's state of the container, gently if nothing of it runs.
func deleteRunc(ctx context.Context, oci runc.Runc, id string) error {
	if _, err := os.Stat(oci.StateDir(id)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if oci.Delete(ctx, id) == nil {
		return nil
	}
	return oci.Kill(ctx, id)
}

// clearCgroup kills and removes the group. A damaged record does not know its own;
// runc's state does then.
func (s *Server) clearCgroup(group string) error {
	if group == "" {
		return nil
	}
	if err := s.cgroups.Kill(group); err != nil {
		return err
	}
	return s.cgroups.Remove(group)
}

func (s *Server) unmountAll(id string) error {
	entries, err := os.ReadDir(s.cfg.bundle(id))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := overlay.Unmount(filepath.Join(s.cfg.bundle(id), entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// undoContainer removes a container whose creation failed or was cut off. Its monitor
// may be at work still.
func (s *Server) undoContainer(record *containerRecord) error {
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	monitors := []monitor.Process{record.Monitor}
	if record.Monitor.PID == 0 {
		found, err := s.conmon.FindMonitors(record.ID)
		if err != nil {
			return err
		}
		monitors = found
	}
	for _, proc := range monitors {
		if err := proc.Signal(unix.SIGKILL); err != nil && !errors.Is(err, monitor.ErrGone) {
			return err
		}
		if err := proc.Wait(ctx); err != nil {
			return err
		}
	}
	// Runc's own processes die with their parent, which takes the kernel a moment.
	if err := s.clearCgroup(record.Cgroup); err != nil {
		return err
	}
	if record.Config == nil { // a damaged record does not know its handler either
		for handler := range s.cfg.Handlers {
			if err := deleteRunc(ctx, s.runcOf(handler), record.ID); err != nil {
				return err
			}
		}
	}
	return s.clearContainer(ctx, record)
}
