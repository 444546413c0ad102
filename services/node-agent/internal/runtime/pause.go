package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/monitor"
	"github.com/sampan-io/sampan/services/node-agent/internal/namespaces"
)

// startPause starts process 1 of a PID namespace that the pod's containers share:
// the namespace lives as long as it does. It reaps orphans, and that is all.
func (s *Server) startPause(ctx context.Context, record *sandboxRecord) error {
	if s.cfg.Pause == "" {
		return errors.New("a shared PID namespace needs a pause program, and none is configured")
	}
	bundle := filepath.Join(s.cfg.sandboxDir(record.ID), "pause")
	root := filepath.Join(bundle, "rootfs")
	for _, dir := range []string{"proc", "dev"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	if err := giveToRoot(record.Config, root, filepath.Join(root, "proc"), filepath.Join(root, "dev")); err != nil {
		return err
	}
	program, err := os.ReadFile(s.cfg.Pause)
	if err != nil {
		return fmt.Errorf("reading the pause program: %w", err)
	}
	if err := os.WriteFile(filepath.Join(root, "pause"), program, 0o755); err != nil {
		return err
	}
	spec, err := json.Marshal(s.pauseSpec(record, root))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), spec, 0o600); err != nil {
		return err
	}
	pidFile := filepath.Join(bundle, "pid")
	if err := s.runc.Run(ctx, record.ID, bundle, pidFile); err != nil {
		return fmt.Errorf("starting the pause process: %w", err)
	}
	data, err := os.ReadFile(pidFile)
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return err
	}
	if record.Pause, err = monitor.Find(pid); err != nil {
		return fmt.Errorf("the pause process ended at once: %w", err)
	}
	return namespaces.PinProcess(s.cfg.pins(record.ID), namespaces.PID, pid)
}

func (s *Server) pauseSpec(record *sandboxRecord, root string) *specs.Spec {
	score := max(-998, s.host.LowestOOMScore)
	list := []specs.LinuxNamespace{{Type: specs.MountNamespace}, {Type: specs.PIDNamespace}}
	for kind, pin := range map[specs.LinuxNamespaceType]namespaces.Kind{
		specs.UTSNamespace: namespaces.UTS, specs.IPCNamespace: namespaces.IPC, specs.NetworkNamespace: namespaces.Network, specs.UserNamespace: namespaces.User,
	} {
		if path := s.namespacePath(record.ID, pin); namespaces.Pinned(path) {
			list = append(list, specs.LinuxNamespace{Type: kind, Path: path})
		}
	}
	return &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: root, Readonly: true},
		Process: &specs.Process{
			Args: []string{"/pause"}, Cwd: "/", NoNewPrivileges: true, OOMScoreAdj: &score,
			User: specs.User{UID: 65535, GID: 65535}, Capabilities: &specs.LinuxCapabilities{},
		},
		Mounts: []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}}},
		Linux: &specs.Linux{
			CgroupsPath: s.cgroupOf(record.Config, record.ID),
			Namespaces:  list,
			Resources:   &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
		},
	}
}

func (s *Server) stopPause(ctx context.Context, record *sandboxRecord) error {
	if !sharesPIDs(record.Config) {
		return nil
	}
	if err := record.Pause.Signal(unix.SIGKILL); err != nil && !errors.Is(err, monitor.ErrGone) {
		return err
	}
	if err := record.Pause.Wait(ctx); err != nil {
		return err
	}
	return deleteRunc(ctx, s.runc, record.ID)
}

// watchPause waits for the death of the process that keeps the shared PID namespace
// alive. All containers of the sandbox die with it, and none can be started any more:
// the sandbox is not ready from then on, and gives back what it holds when it is stopped.
func (s *Server) watchPause(sb *sandbox) {
	record := sb.get()
	if record.Phase != ready || !sharesPIDs(record.Config) {
		return
	}
	s.watches.Go(func() {
		if err := record.Pause.Wait(s.background); err != nil {
			return // this program is ending; the sandbox is not
		}
		if err := sb.lock.lock(s.background); err != nil {
			return
		}
		defer sb.lock.unlock()
		if sb.get().Phase != ready {
			return // it was stopped
		}
		s.log.Warn("The first process of a pod's shared PID namespace died, and its containers with it", "sandbox", sb.id,
			"pod", record.Config.GetMetadata().GetNamespace()+"/"+record.Config.GetMetadata().GetName())
		lost := *sb.get()
		lost.Phase = failed
		if err := s.sandboxRecords.Write(sb.id, &lost, false); err != nil {
			s.log.Error("Writing down the end of a sandbox", "sandbox", sb.id, "err", err)
		}
		sb.record.Store(&lost)
		s.emit(runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, sb.id, sb.id)
	})
}
