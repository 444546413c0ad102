package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/namespaces"
	"github.com/sampan-io/sampan/services/node-agent/internal/overlay"
)

// undoTimeout bounds cleaning up after a failed or cancelled call.
const undoTimeout = time.Minute

// StopPodSandbox kills what runs in the sandbox, detaches it from the network and
// lets go of its namespaces. It may be called again.
func (s *Server) StopPodSandbox(ctx context.Context, req *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	sb, err := s.objects.sandbox(req.GetPodSandboxId())
	if errors.Is(err, errNotFound) {
		return &runtimeapi.StopPodSandboxResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := sb.lock.lock(ctx); err != nil {
		return nil, err
	}
	defer sb.lock.unlock()
	if err := s.stopSandbox(ctx, sb); err != nil {
		return nil, err
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

// stopSandbox does it. Caller must hold the sandbox's lock.
func (s *Server) stopSandbox(ctx context.Context, sb *sandbox) error {
	if sb.get().Phase == notReady {
		return nil
	}
	group, groupCtx := errgroup.WithContext(ctx)
	for _, c := range s.objects.listContainers(sb.id) {
		group.Go(func() error { return s.stopContainer(groupCtx, c, 0) })
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("stopping the containers of sandbox %s: %w", sb.id, err)
	}
	if err := s.releaseSandbox(ctx, sb.get()); err != nil {
		return fmt.Errorf("stopping sandbox %s: %w", sb.id, err)
	}
	stopped := *sb.get()
	stopped.Phase = notReady
	if err := s.sandboxRecords.Write(sb.id, &stopped, false); err != nil {
		return err
	}
	sb.record.Store(&stopped)
	s.emit(runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, sb.id, sb.id)
	return nil
}

// releaseSandbox gives back what the sandbox holds of the host. Each step may have
// been done before.
func (s *Server) releaseSandbox(ctx context.Context, record *sandboxRecord) error {
	errs := []error{s.stopPause(ctx, record)}
	if !hostNetwork(record.Config) {
		pod := s.pod(record)
		if !namespaces.Pinned(pod.NetNS) {
			pod.NetNS = "" // the plugins then only give back the address
		}
		errs = append(errs, s.timed(stepNetworkGone, func() error { return s.network.Detach(ctx, pod) }))
	}
	errs = append(errs, s.timed(stepReleased, func() error {
		return errors.Join(namespaces.Unpin(s.cfg.pins(record.ID)), overlay.Unmount(s.cfg.sharedMemory(record.ID)))
	}))
	return errors.Join(errs...)
}

// abandonSandbox undoes what was made of a sandbox. What cannot be given back now is
// kept in sight, so that the client asks for it again.
func (s *Server) abandonSandbox(record *sandboxRecord) {
	err := s.undoSandbox(record)
	if err == nil {
		s.objects.release(sandboxName(record.Config))
		return
	}
	s.log.Warn("Undoing a sandbox", "sandbox", record.ID, "err", err)
	record.Phase = failed
	if err := s.sandboxRecords.Write(record.ID, record, false); err != nil {
		s.log.Warn("Writing down a failed sandbox", "sandbox", record.ID, "err", err)
	}
	s.objects.addSandbox(newSandbox(record))
}

// undoSandbox removes a sandbox that was not finished, from memory nothing.
func (s *Server) undoSandbox(record *sandboxRecord) error {
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	if err := s.releaseSandbox(ctx, record); err != nil {
		return err
	}
	return s.forgetSandbox(record.ID)
}

func (s *Server) forgetSandbox(id string) error {
	if err := s.timed(stepSandboxGone, func() error { return os.RemoveAll(s.cfg.sandboxDir(id)) }); err != nil {
		return err
	}
	return s.sandboxRecords.Delete(id)
}

// RemovePodSandbox removes the sandbox with all containers that are left in it. It
// may be called again.
func (s *Server) RemovePodSandbox(ctx context.Context, req *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	sb, err := s.objects.sandbox(req.GetPodSandboxId())
	if errors.Is(err, errNotFound) {
		return &runtimeapi.RemovePodSandboxResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := sb.lock.lock(ctx); err != nil {
		return nil, err
	}
	defer sb.lock.unlock()
	if err := s.stopSandbox(ctx, sb); err != nil {
		return nil, err
	}
	for _, c := range s.objects.listContainers(sb.id) {
		if err := s.removeContainer(ctx, c); err != nil {
			return nil, err
		}
	}
	if err := s.forgetSandbox(sb.id); err != nil {
		return nil, fmt.Errorf("removing sandbox %s: %w", sb.id, err)
	}
	s.emit(runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, sb.id, sb.id)
	s.objects.dropSandbox(sb)
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}
