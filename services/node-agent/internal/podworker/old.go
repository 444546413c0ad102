package podworker

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/cri"
)

// removeOld keeps of each container the last one that has ended, for its logs and
// state, and drops the others.
func (s *starter) removeOld(ctx context.Context) {
	kept := map[string]bool{}
	for _, c := range s.runtime.Containers {
		if !c.Exited() {
			continue
		}
		if !kept[c.Name()] {
			kept[c.Name()] = true
			continue
		}
		if _, err := s.cfg.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: c.GetId()}); err != nil {
			s.cfg.Log.WarnContext(ctx, "Removing an old container", "pod", name(s.pod), "container", c.GetId(), "err", err)
			continue
		}
		removeFile(c.GetAnnotations()[cri.AnnotationMessageHostPath])
		s.removeLogs(c)
	}
	s.removeOldSandboxes(ctx)
}

// removeOldSandboxes drops those that hold no container that is kept.
func (s *starter) removeOldSandboxes(ctx context.Context) {
	used := map[string]bool{s.sandbox: true}
	for _, c := range s.runtime.Containers {
		used[c.SandboxID] = true
	}
	for _, old := range s.runtime.Sandboxes {
		if used[old.GetId()] {
			continue
		}
		if err := s.removeSandbox(ctx, old.GetId()); err != nil {
			s.cfg.Log.WarnContext(ctx, "Removing an old sandbox", "pod", name(s.pod), "err", err)
		}
	}
}

func (s *starter) removeLogs(c cri.Container) {
	path := c.GetLogPath()
	if path == "" || !strings.HasPrefix(path, s.cfg.Node.PodLogsDir(s.pod)+"/") {
		return
	}
	rotated, err := filepath.Glob(path + "*")
	if err != nil {
		return
	}
	for _, file := range rotated {
		removeFile(file)
	}
}

func removeFile(path string) {
	if path != "" {
		_ = os.Remove(path)
	}
}
