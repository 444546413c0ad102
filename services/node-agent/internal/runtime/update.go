package runtime

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/monitor"
	"github.com/sampan-io/sampan/services/node-agent/internal/ocispec"
)

// UpdateContainerResources changes limits of a created or running container. What the
// request does not set stays.
func (s *Server) UpdateContainerResources(ctx context.Context, req *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	c, err := s.objects.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	if err := c.lock.lock(ctx); err != nil {
		return nil, err
	}
	defer c.lock.unlock()
	if phase := c.get().Phase; phase != created && phase != running {
		return nil, fmt.Errorf("%w: container %s is %s", errState, c.id, phase)
	}
	resources, err := ocispec.Resources(req.GetLinux(), s.host)
	if err != nil {
		return nil, err
	}
	if err := s.runcOf(c.get().Handler).Update(ctx, c.id, resources); err != nil {
		return nil, fmt.Errorf("updating container %s: %w", c.id, err)
	}
	err = s.change(c, func(r *containerRecord) bool {
		config := proto.Clone(r.Config).(*runtimeapi.ContainerConfig)
		if config.GetLinux() == nil {
			config.Linux = &runtimeapi.LinuxContainerConfig{}
		}
		if config.GetLinux().GetResources() == nil {
			config.Linux.Resources = &runtimeapi.LinuxContainerResources{}
		}
		mergeResources(config.Linux.Resources, req.GetLinux())
		r.Config = config
		return true
	})
	if err != nil {
		return nil, err
	}
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

// mergeResources takes over what is set.
func mergeResources(into, from *runtimeapi.LinuxContainerResources) {
	set := func(into *int64, from int64) {
		if from != 0 {
			*into = from
		}
	}
	set(&into.CpuPeriod, from.GetCpuPeriod())
	set(&into.CpuQuota, from.GetCpuQuota())
	set(&into.CpuShares, from.GetCpuShares())
	set(&into.MemoryLimitInBytes, from.GetMemoryLimitInBytes())
	set(&into.MemorySwapLimitInBytes, from.GetMemorySwapLimitInBytes())
	if from.GetCpusetCpus() != "" {
		into.CpusetCpus = from.GetCpusetCpus()
	}
	if from.GetCpusetMems() != "" {
		into.CpusetMems = from.GetCpusetMems()
	}
	for key, value := range from.GetUnified() {
		if into.Unified == nil {
			into.Unified = map[string]string{}
		}
		into.Unified[key] = value
	}
}

// UpdatePodSandboxResources takes note of the pod's resources; its control group is the
// kubelet's to change.
func (s *Server) UpdatePodSandboxResources(_ context.Context, req *runtimeapi.UpdatePodSandboxResourcesRequest) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	if _, err := s.objects.sandbox(req.GetPodSandboxId()); err != nil {
		return nil, err
	}
	return &runtimeapi.UpdatePodSandboxResourcesResponse{}, nil
}

// ReopenContainerLog makes the monitor write to the log's path anew, after the kubelet
// has moved the old file away.
func (s *Server) ReopenContainerLog(ctx context.Context, req *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	c, err := s.runningContainer(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	if c.get().LogPath == "" {
		return nil, fmt.Errorf("%w: container %s has no log", errState, c.id)
	}
	if err := s.reopenLog(ctx, c); err != nil {
		return nil, fmt.Errorf("reopening the log of container %s: %w", c.id, err)
	}
	return &runtimeapi.ReopenContainerLogResponse{}, nil
}

// reopenLog returns when the monitor has the new file, so that a client that compresses
// the old one has all of it.
func (s *Server) reopenLog(ctx context.Context, c *container) error {
	const patience = 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer watcher.Close()
	path := c.get().LogPath
	if err := watcher.Add(filepath.Dir(path)); err != nil {
		return err
	}
	if _, err := os.Stat(path); err == nil {
		return monitor.ReopenLog(s.cfg.bundle(c.id)) // nobody has moved it; there is nothing to see
	}
	if err := monitor.ReopenLog(s.cfg.bundle(c.id)); err != nil {
		return err
	}
	for {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		select {
		case <-watcher.Events:
		case err := <-watcher.Errors:
			return err
		case <-c.done:
			return fmt.Errorf("%w: it has just ended", errState)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// imageUser finds a container that uses the image.
func (s *Server) imageUser(imageID string) string {
	for _, c := range s.objects.listContainers("") {
		if c.get().ImageID == imageID {
			return c.id
		}
		for _, mount := range c.get().Config.GetMounts() {
			if mount.GetImage().GetImageRef() == imageID {
				return c.id
			}
		}
	}
	return ""
}

// logMessage finds the last error in runc's log, which has one message a line, as text
// or as JSON.
func logMessage(log []byte) string {
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	last := lines[len(lines)-1]
	var entry struct {
		Msg string `json:"msg"`
	}
	if json.Unmarshal([]byte(last), &entry) == nil && entry.Msg != "" {
		return entry.Msg
	}
	if _, message, found := strings.Cut(last, "msg="); found {
		return strings.ReplaceAll(strings.Trim(message, `"`), `\"`, `"`)
	}
	return last
}

// stopSignalName is the signal's name in the CRI's enumeration.
func stopSignalName(name string) string {
	signal := stopSignal(name)
	for known := range runtimeapi.Signal_value {
		if known != runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT.String() && stopSignal(known) == signal {
			return known
		}
	}
	return runtimeapi.Signal_SIGNAL_SIGTERM.String()
}
