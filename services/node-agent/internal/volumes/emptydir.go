package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

type emptyDirKind struct{}

func (emptyDirKind) name() string               { return "kubernetes.io~empty-dir" }
func (emptyDirKind) owns(v *corev1.Volume) bool { return v.EmptyDir != nil }

func (emptyDirKind) setUp(_ context.Context, r *request) (result, error) {
	_, err := os.Stat(r.dir)
	fresh := errors.Is(err, os.ErrNotExist)
	switch medium := r.volume.EmptyDir.Medium; medium {
	case corev1.StorageMediumDefault:
		if err := os.MkdirAll(r.dir, 0o755); err != nil {
			return result{}, err
		}
	case corev1.StorageMediumMemory:
		mounted, err := isMountPoint(r.dir)
		if err != nil {
			return result{}, err
		}
		fresh = !mounted
		if err := mountMemory(r.dir, r.memoryLimit()); err != nil {
			return result{}, err
		}
	case corev1.StorageMediumHugePages:
		fresh, err = mountHugePages(r, "")
		if err != nil {
			return result{}, err
		}
	default:
		if size, huge := strings.CutPrefix(string(medium), string(corev1.StorageMediumHugePagesPrefix)); huge {
			if fresh, err = mountHugePages(r, size); err != nil {
				return result{}, err
			}
			break
		}
		return result{}, fmt.Errorf("the medium %q of an emptyDir is not supported by this node", medium)
	}
	if !fresh {
		return result{path: r.dir}, nil
	}
	// The umask takes from what MkdirAll and mount are told.
	if err := os.Chmod(r.dir, 0o777); err != nil {
		return result{}, err
	}
	return result{path: r.dir}, own(r.dir, fsGroup(r.pod), false)
}

// memoryLimit is the least of what the volume, the pod and the node allow, in
// bytes; 0 is no limit.
func (r *request) memoryLimit() int64 {
	var limit int64
	lower := func(value int64) {
		if value > 0 && (limit == 0 || value < limit) {
			limit = value
		}
	}
	if size := r.volume.EmptyDir.SizeLimit; size != nil {
		lower(size.Value())
	}
	limits := resourcehelper.PodLimits(r.pod, resourcehelper.PodResourcesOptions{})
	if allContainersLimitMemory(r.pod) {
		lower(limits.Memory().Value())
	}
	allocatable := r.cfg.Allocatable()
	lower(allocatable.Memory().Value())
	return limit
}

func allContainersLimitMemory(pod *corev1.Pod) bool {
	if resourcehelper.IsPodLevelLimitsSet(pod) {
		return true
	}
	for _, c := range pod.Spec.Containers {
		if c.Resources.Limits.Memory().IsZero() {
			return false
		}
	}
	return true
}
