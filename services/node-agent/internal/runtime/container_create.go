package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/images"
	"github.com/sampan-io/sampan/services/node-agent/internal/monitor"
	"github.com/sampan-io/sampan/services/node-agent/internal/namespaces"
	"github.com/sampan-io/sampan/services/node-agent/internal/ocispec"
	"github.com/sampan-io/sampan/services/node-agent/internal/overlay"
)

// CreateContainer makes the container with its root file system and its monitor; the
// process waits for StartContainer. When it fails nothing is left.
func (s *Server) CreateContainer(ctx context.Context, req *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	config := req.GetConfig()
	if config.GetMetadata().GetName() == "" || config.GetImage().GetImage() == "" {
		return nil, fmt.Errorf("%w: a container needs a name and an image", errInvalid)
	}
	sb, err := s.objects.sandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	if err := sb.lock.lock(ctx); err != nil {
		return nil, err
	}
	defer sb.lock.unlock()
	if sb.get().Phase != ready {
		return nil, fmt.Errorf("%w: sandbox %s is not ready", errState, sb.id)
	}
	image, release, err := s.images.Use(config.GetImage().GetImage())
	if err != nil {
		return nil, err
	}
	defer release() // by then the container is listed, or is no more
	config, releaseVolumes, err := s.imageVolumes(config)
	if err != nil {
		return nil, err
	}
	defer releaseVolumes()
	record := s.newContainerRecord(sb.get(), config, image)
	name := containerName(sb.id, config)
	if err := s.objects.reserve(name, record.ID); err != nil {
		return nil, err
	}
	if err := s.createContainer(ctx, sb.get(), record, image); err != nil {
		s.objects.release(name)
		return nil, fmt.Errorf("creating container %s: %w", config.GetMetadata().GetName(), err)
	}
	return &runtimeapi.CreateContainerResponse{ContainerId: record.ID}, nil
}

func (s *Server) newContainerRecord(sb *sandboxRecord, config *runtimeapi.ContainerConfig, image *images.Image) *containerRecord {
	record := &containerRecord{
		ID: newID(), SandboxID: sb.ID, Phase: creating, BootID: s.bootID, CreatedAt: time.Now().UnixNano(),
		Handler: sb.Handler, ImageID: image.ID, ImageRef: imageRef(image), StopSignal: image.Config.StopSignal, Config: config,
	}
	if signal := config.GetStopSignal(); signal != runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
		record.StopSignal = signal.String()
	}
	if dir := sb.Config.GetLogDirectory(); dir != "" && config.GetLogPath() != "" {
		record.LogPath = filepath.Join(dir, config.GetLogPath())
	}
	record.Cgroup = s.cgroupOf(sb.Config, record.ID)
	pid := config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetPid()
	record.OwnPIDs = pid == runtimeapi.NamespaceMode_CONTAINER || (pid == runtimeapi.NamespaceMode_POD && !sharesPIDs(sb.Config))
	return record
}

func (s *Server) cgroupOf(config *runtimeapi.PodSandboxConfig, id string) string {
	parent := config.GetLinux().GetCgroupParent()
	if parent == "" {
		parent = s.cfg.CgroupParent
	}
	return path.Join("/", parent, id)
}

func (s *Server) createContainer(ctx context.Context, sb *sandboxRecord, record *containerRecord, image *images.Image) error {
	if err := s.timed(stepContainerNoted, func() error { return s.containerRecords.Write(record.ID, record, false) }); err != nil {
		return err
	}
	err := s.makeContainer(ctx, sb, record, image)
	if err != nil {
		if undoErr := s.undoContainer(record); undoErr != nil {
			s.log.Warn("Undoing a container", "container", record.ID, "err", undoErr)
		}
		return err
	}
	c := newContainer(record)
	s.objects.addContainer(c)
	s.watch(c)
	s.settle(s.containerRecords, record.ID)
	s.emit(runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, c.id, record.SandboxID)
	return nil
}

func (s *Server) makeContainer(ctx context.Context, sb *sandboxRecord, record *containerRecord, image *images.Image) error {
	var rootfs string
	var mounts []*runtimeapi.Mount
	err := s.timed(stepRootFS, func() (err error) {
		if rootfs, err = s.makeRootFS(sb, record.ID, image); err == nil {
			mounts, err = s.imageMounts(sb, record)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := s.timed(stepSpec, func() error { return s.writeBundle(sb, record, image, rootfs, mounts) }); err != nil {
		return err
	}
	return s.timed(stepMonitor, func() error { return s.startMonitor(ctx, record) })
}

func (s *Server) writeBundle(sb *sandboxRecord, record *containerRecord, image *images.Image, rootfs string, mounts []*runtimeapi.Mount) error {
	spec, err := s.containerSpec(sb, record, image, rootfs, mounts)
	if err != nil {
		return err
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(s.cfg.bundle(record.ID), "config.json"), data, 0o600); err != nil {
		return err
	}
	if record.LogPath == "" {
		return nil
	}
	return os.MkdirAll(filepath.Dir(record.LogPath), 0o755)
}

func (s *Server) startMonitor(ctx context.Context, record *containerRecord) error {
	config := record.Config
	conmon := s.conmon
	conmon.Runc = s.runcOf(record.Handler)
	if err := os.MkdirAll(conmon.Runc.Root, 0o700); err != nil {
		return err
	}
	proc, init, err := conmon.Create(ctx, monitor.Container{
		ID: record.ID, Bundle: s.cfg.bundle(record.ID), LogPath: record.LogPath,
		Terminal: config.GetTty(), Stdin: config.GetStdin(), StdinOnce: config.GetStdinOnce(),
	}, func(proc monitor.Process) {
		record.Monitor = proc
		if err := s.timed(stepMonitorNoted, func() error { return s.containerRecords.Write(record.ID, record, false) }); err != nil {
			s.log.WarnContext(ctx, "Writing down a monitor", "container", record.ID, "err", err)
		}
	})
	if err != nil {
		return err
	}
	record.Monitor, record.Init, record.Phase = proc, init, created
	return s.timed(stepCreated, func() error { return s.containerRecords.Write(record.ID, record, false) })
}

// makeRootFS mounts the image's layers with a writable one on top.
func (s *Server) makeRootFS(sb *sandboxRecord, id string, image *images.Image) (string, error) {
	rootfs := filepath.Join(s.cfg.bundle(id), "rootfs")
	upper, work := filepath.Join(s.cfg.writable(id), "upper"), filepath.Join(s.cfg.writable(id), "work")
	for _, dir := range []string{s.cfg.bundle(id), s.cfg.writable(id)} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return "", err
		}
	}
	for _, dir := range []string{rootfs, upper, work} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return "", err
		}
	}
	if err := giveToRoot(sb.Config, rootfs, upper, work); err != nil {
		return "", err
	}
	layers := s.images.LayerDirs(image)
	if len(layers) == 0 {
		return "", errors.New("the image has no layers")
	}
	mount := overlay.Mount{Lower: layers, Upper: upper, Work: work, Target: rootfs, UserNS: s.userNamespace(sb), Scratch: s.cfg.bundle(id)}
	return rootfs, mount.Do()
}

func (s *Server) containerSpec(sb *sandboxRecord, record *containerRecord, image *images.Image, rootfs string, mounts []*runtimeapi.Mount) (*specs.Spec, error) {
	config := record.Config
	effective := &runtimeapi.ContainerConfig{
		Metadata: config.GetMetadata(), Command: config.GetCommand(), Args: config.GetArgs(), WorkingDir: config.GetWorkingDir(),
		Envs: config.GetEnvs(), Mounts: mounts, Devices: config.GetDevices(),
		Tty: config.GetTty(), Stdin: config.GetStdin(), Linux: config.GetLinux(),
	}
	namespaces, err := s.containerNamespaces(sb, config)
	if err != nil {
		return nil, err
	}
	readonly := config.GetLinux().GetSecurityContext().GetReadonlyRootfs()
	spec, err := ocispec.Build(ocispec.Container{
		ID: record.ID, Config: effective, Hostname: hostname(sb.Config), Image: image.Config, RootFS: rootfs,
		CgroupPath: record.Cgroup, Namespaces: namespaces, Mounts: s.sandboxMounts(sb, readonly),
		PIDsLimit: s.cfg.PIDsLimit, Host: s.host,
	})
	if err != nil {
		return nil, err
	}
	user := spec.Process.User
	record.UID, record.GID = int64(user.UID), int64(user.GID)
	for _, gid := range user.AdditionalGids {
		record.Groups = append(record.Groups, int64(gid))
	}
	return spec, nil
}

func (s *Server) containerNamespaces(sb *sandboxRecord, config *runtimeapi.ContainerConfig) (ocispec.Namespaces, error) {
	ns := ocispec.Namespaces{UTS: s.namespacePath(sb.ID, namespaces.UTS), User: s.userNamespace(sb)}
	if !hostNetwork(sb.Config) {
		ns.Network = s.namespacePath(sb.ID, namespaces.Network)
	}
	if !hostIPC(sb.Config) {
		ns.IPC = s.namespacePath(sb.ID, namespaces.IPC)
	}
	options := config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	switch options.GetPid() {
	case runtimeapi.NamespaceMode_NODE:
		ns.HostPID = true
	case runtimeapi.NamespaceMode_POD:
		if sharesPIDs(sb.Config) {
			ns.PID = s.namespacePath(sb.ID, namespaces.PID)
		}
	case runtimeapi.NamespaceMode_TARGET:
		target, err := s.objects.container(options.GetTargetId())
		if err != nil {
			return ns, fmt.Errorf("target of the PID namespace: %w", err)
		}
		record := target.get()
		if record.SandboxID != sb.ID || record.Phase != running || !record.Init.Alive() {
			return ns, fmt.Errorf("%w: target container %s does not run in this sandbox", errState, options.GetTargetId())
		}
		ns.PID = fmt.Sprintf("/proc/%d/ns/pid", record.Init.PID)
	}
	return ns, nil
}

func imageRef(image *images.Image) string {
	if len(image.RepoDigests) > 0 {
		return image.RepoDigests[0]
	}
	return image.ID
}
