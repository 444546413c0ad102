package runtime

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/namespaces"
	"github.com/sampan-io/sampan/services/node-agent/internal/network"
)

func newID() string {
	var id [32]byte
	rand.Read(id[:])
	return hex.EncodeToString(id[:])
}

// RunPodSandbox makes the sandbox's namespaces and files and attaches it to the
// network. When it fails nothing is left of it; if even that fails, it is
// listed as not ready, and can be stopped and removed.
func (s *Server) RunPodSandbox(ctx context.Context, req *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	config := req.GetConfig()
	if err := s.validateSandbox(config, req.GetRuntimeHandler()); err != nil {
		return nil, err
	}
	record := &sandboxRecord{
		ID: newID(), Phase: creating, BootID: s.bootID, CreatedAt: time.Now().UnixNano(),
		Handler: req.GetRuntimeHandler(), Config: config,
	}
	if err := s.objects.reserve(sandboxName(config), record.ID); err != nil {
		return nil, err
	}
	if err := s.runSandbox(ctx, record); err != nil {
		return nil, fmt.Errorf("running sandbox %s/%s: %w", config.GetMetadata().GetNamespace(), config.GetMetadata().GetName(), err)
	}
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: record.ID}, nil
}

func (s *Server) validateSandbox(config *runtimeapi.PodSandboxConfig, handler string) error {
	m := config.GetMetadata()
	if m.GetName() == "" || m.GetNamespace() == "" || m.GetUid() == "" {
		return fmt.Errorf("%w: sandbox metadata needs name, namespace and uid", errInvalid)
	}
	if _, known := s.cfg.Handlers[handler]; !known && handler != "" && handler != defaultHandler {
		return fmt.Errorf("%w: no runtime handler %q is configured", errInvalid, handler)
	}
	if err := s.validateUsers(config, handler); err != nil {
		return err
	}
	options := sandboxNamespaces(config)
	if options.GetNetwork() == runtimeapi.NamespaceMode_CONTAINER || options.GetIpc() == runtimeapi.NamespaceMode_CONTAINER {
		return fmt.Errorf("%w: network and IPC namespaces belong to a pod or to the node", errInvalid)
	}
	return nil
}

func (s *Server) runSandbox(ctx context.Context, record *sandboxRecord) error {
	err := s.timed(stepSandboxNoted, func() error { return s.sandboxRecords.Write(record.ID, record, false) })
	if err == nil {
		err = s.makeSandbox(ctx, record)
	}
	if err != nil {
		s.abandonSandbox(record)
		return err
	}
	sb := newSandbox(record)
	s.objects.addSandbox(sb)
	s.watchPause(sb)
	s.settle(s.sandboxRecords, record.ID)
	s.emit(runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, record.ID, record.ID)
	s.emit(runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, record.ID, record.ID)
	return nil
}

func (s *Server) makeSandbox(ctx context.Context, record *sandboxRecord) error {
	if err := os.MkdirAll(s.cfg.sandboxDir(record.ID), 0o711); err != nil {
		return err
	}
	if err := s.timed(stepNamespaces, func() error { return s.makeNamespaces(record) }); err != nil {
		return err
	}
	// The network takes the longest, and the rest does not need it.
	files := make(chan error, 1)
	go func() { files <- s.timed(stepFiles, func() error { return s.makeSandboxFiles(record) }) }()
	attachErr := s.timed(stepNetwork, func() error { return s.attach(ctx, record) })
	if err := errors.Join(<-files, attachErr); err != nil {
		return err
	}
	if sharesPIDs(record.Config) {
		if err := s.timed(stepPause, func() error { return s.startPause(ctx, record) }); err != nil {
			return err
		}
	}
	record.Phase = ready
	return s.timed(stepSandboxSaved, func() error { return s.sandboxRecords.Write(record.ID, record, false) })
}

func sandboxNamespaces(config *runtimeapi.PodSandboxConfig) *runtimeapi.NamespaceOption {
	return config.GetLinux().GetSecurityContext().GetNamespaceOptions()
}

func hostNetwork(config *runtimeapi.PodSandboxConfig) bool {
	return sandboxNamespaces(config).GetNetwork() == runtimeapi.NamespaceMode_NODE
}

func hostIPC(config *runtimeapi.PodSandboxConfig) bool {
	return sandboxNamespaces(config).GetIpc() == runtimeapi.NamespaceMode_NODE
}

// sharesPIDs is false by CRI's zero value too: PID POD is number 0, so that a
// sandbox that says nothing of namespaces at all counts as not sharing.
func sharesPIDs(config *runtimeapi.PodSandboxConfig) bool {
	options := sandboxNamespaces(config)
	return options != nil && options.GetPid() == runtimeapi.NamespaceMode_POD
}

func (s *Server) makeNamespaces(record *sandboxRecord) error {
	kinds := []namespaces.Kind{namespaces.UTS}
	if !hostNetwork(record.Config) {
		kinds = append(kinds, namespaces.Network)
	}
	if !hostIPC(record.Config) {
		kinds = append(kinds, namespaces.IPC)
	}
	setup := func() error {
		if err := unix.Sethostname([]byte(hostname(record.Config))); err != nil {
			return fmt.Errorf("setting the host name: %w", err)
		}
		if !hostNetwork(record.Config) {
			if err := network.LoopbackUp(); err != nil {
				return err
			}
		}
		return setSysctls(record.Config)
	}
	if !ownUsers(record.Config) {
		return namespaces.Create(s.cfg.pins(record.ID), kinds, setup)
	}
	mapping, err := mappingOf(sandboxNamespaces(record.Config).GetUsernsOptions())
	if err != nil {
		return err
	}
	return namespaces.CreateOwned(s.cfg.pins(record.ID), kinds, mapping, s.cfg.Pause, setup)
}

func hostname(config *runtimeapi.PodSandboxConfig) string {
	if name := config.GetHostname(); name != "" {
		return name
	}
	if name, err := os.Hostname(); err == nil && hostNetwork(config) {
		return name
	}
	const longest = 63
	name := config.GetMetadata().GetName()
	return name[:min(len(name), longest)]
}

// setSysctls writes into the namespaces that the calling thread is in. Only what
// belongs to a namespace of the sandbox itself is allowed.
func setSysctls(config *runtimeapi.PodSandboxConfig) error {
	for name, value := range config.GetLinux().GetSysctls() {
		name = strings.ReplaceAll(name, "/", ".")
		if !allowedSysctl(config, name) {
			return fmt.Errorf("%w: sysctl %q is not the pod's own", errInvalid, name)
		}
		path := filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/"))
		if err := os.WriteFile(path, []byte(value), 0); err != nil {
			return fmt.Errorf("setting sysctl %s: %w", name, err)
		}
	}
	return nil
}

func allowedSysctl(config *runtimeapi.PodSandboxConfig, name string) bool {
	if strings.Contains(name, "..") {
		return false
	}
	switch name {
	case "kernel.msgmax", "kernel.msgmnb", "kernel.msgmni", "kernel.sem", "kernel.shmall", "kernel.shmmax", "kernel.shmmni", "kernel.shm_rmid_forced":
		return !hostIPC(config)
	case "kernel.domainname":
		return true
	}
	if strings.HasPrefix(name, "fs.mqueue.") {
		return !hostIPC(config)
	}
	return strings.HasPrefix(name, "net.") && !hostNetwork(config)
}

func (s *Server) attach(ctx context.Context, record *sandboxRecord) error {
	if hostNetwork(record.Config) {
		return nil
	}
	addrs, err := s.network.Attach(ctx, s.pod(record))
	if err != nil {
		return err
	}
	for _, addr := range addrs {
		record.IPs = append(record.IPs, addr.String())
	}
	return nil
}

func (s *Server) pod(record *sandboxRecord) network.Pod {
	m := record.Config.GetMetadata()
	pod := network.Pod{
		ID: record.ID, Namespace: m.GetNamespace(), Name: m.GetName(), UID: m.GetUid(),
		NetNS: s.namespacePath(record.ID, namespaces.Network),
	}
	for _, mapping := range record.Config.GetPortMappings() {
		if mapping.GetHostPort() <= 0 {
			continue
		}
		pod.Ports = append(pod.Ports, network.PortMapping{
			HostPort: mapping.GetHostPort(), ContainerPort: mapping.GetContainerPort(),
			Protocol: strings.ToLower(mapping.GetProtocol().String()), HostIP: mapping.GetHostIp(),
		})
	}
	return pod
}

func (s *Server) namespacePath(sandboxID string, kind namespaces.Kind) string {
	return filepath.Join(s.cfg.pins(sandboxID), string(kind))
}
