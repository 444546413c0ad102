// Package eviction ends pods that use more of the node than they may, and pods of
// a node that runs short.
package eviction

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/sampan-io/sampan/services/node-agent/internal/status"
)

// Pods are this node's.
type Pods interface {
	Pods() []*corev1.Pod
	// Runs tells whether anything of the pod still runs.
	Runs(uid types.UID) bool
	Evict(uid types.UID, end status.End)
}

// Disk measures what pods take of the disk.
type Disk interface {
	// EmptyDir is where a pod's volume lies.
	EmptyDir(uid types.UID, volume string) string
	// Container is what a container's writable layers and logs take, in bytes.
	Container(ctx context.Context, pod *corev1.Pod, container string) int64
}

// LocalStorage watches the pods that have a limit of local storage: of emptyDir
// volumes on the disk (those in memory are limited by the kernel), of a
// container's writable layer and logs, or of the whole pod.
type LocalStorage struct {
	Pods    Pods
	Disk    Disk
	Every   time.Duration
	Evicted func(pod *corev1.Pod, signal Signal, message string)
	Log     *slog.Logger
}

// Signals of these limits in the metric of evictions, upstream's.
const (
	EmptyDirLimit         Signal = "emptydirfs.limit"
	ContainerStorageLimit Signal = "ephemeralcontainerfs.limit"
	PodStorageLimit       Signal = "ephemeralpodfs.limit"
)

// Run measures until ctx ends.
func (w *LocalStorage) Run(ctx context.Context) error {
	ticker := time.NewTicker(w.Every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			w.Check(ctx)
		}
	}
}

// Check measures once.
func (w *LocalStorage) Check(ctx context.Context) {
	for _, pod := range w.Pods.Pods() {
		if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
			continue
		}
		for _, check := range []func(context.Context, *corev1.Pod) (Signal, string){w.volumes, w.pod, w.containers} {
			signal, message := check(ctx, pod)
			if message == "" {
				continue
			}
			w.Log.InfoContext(ctx, "Evicting a pod", "pod", pod.Namespace+"/"+pod.Name, "why", message)
			w.Evicted(pod, signal, message)
			w.Pods.Evict(pod.UID, Evicted(message, 1))
			break
		}
	}
}

func (w *LocalStorage) volumes(ctx context.Context, pod *corev1.Pod) (Signal, string) {
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		source := volume.EmptyDir
		if source == nil || source.SizeLimit == nil || source.SizeLimit.Sign() <= 0 || source.Medium != corev1.StorageMediumDefault {
			continue
		}
		if Size(ctx, w.Disk.EmptyDir(pod.UID, volume.Name)).Bytes > source.SizeLimit.Value() {
			return EmptyDirLimit, fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", volume.Name, source.SizeLimit.String())
		}
	}
	return "", ""
}

func (w *LocalStorage) pod(ctx context.Context, pod *corev1.Pod) (Signal, string) {
	limit, limited := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})[corev1.ResourceEphemeralStorage]
	if !limited || limit.IsZero() {
		return "", ""
	}
	used := int64(0)
	for _, name := range containerNames(pod) {
		used += w.Disk.Container(ctx, pod, name)
	}
	used += EmptyDirs(ctx, pod, w.Disk.EmptyDir).Bytes
	if used <= limit.Value() {
		return "", ""
	}
	return PodStorageLimit, fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", limit.String())
}

func containerNames(pod *corev1.Pod) []string {
	var names []string
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			names = append(names, list[i].Name)
		}
	}
	return names
}

func (w *LocalStorage) containers(ctx context.Context, pod *corev1.Pod) (Signal, string) {
	for i := range pod.Spec.Containers {
		limit, limited := pod.Spec.Containers[i].Resources.Limits[corev1.ResourceEphemeralStorage]
		if !limited || limit.IsZero() {
			continue
		}
		if w.Disk.Container(ctx, pod, pod.Spec.Containers[i].Name) > limit.Value() {
			return ContainerStorageLimit, fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", pod.Spec.Containers[i].Name, limit.String())
		}
	}
	return "", ""
}

// EmptyDirs measures the pod's emptyDir volumes on the disk.
func EmptyDirs(ctx context.Context, pod *corev1.Pod, dir func(uid types.UID, volume string) string) Taken {
	var total Taken
	for i := range pod.Spec.Volumes {
		if source := pod.Spec.Volumes[i].EmptyDir; source != nil && source.Medium == corev1.StorageMediumDefault {
			size := Size(ctx, dir(pod.UID, pod.Spec.Volumes[i].Name))
			total.Bytes += size.Bytes
			total.Inodes += size.Inodes
		}
	}
	return total
}

// Taken is what files take of a disk.
type Taken struct{ Bytes, Inodes int64 }

// Size is what the files below root take; a file with several names counts once.
func Size(ctx context.Context, root string) Taken {
	const block = 512
	var total Taken
	seen := map[uint64]bool{}
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var stat unix.Stat_t
		if err != nil || unix.Lstat(path, &stat) != nil {
			return nil // it went while this looked
		}
		if stat.Nlink > 1 && stat.Mode&unix.S_IFMT != unix.S_IFDIR {
			if seen[stat.Ino] {
				return nil
			}
			seen[stat.Ino] = true
		}
		total.Bytes += stat.Blocks * block
		total.Inodes++
		return nil
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		return Taken{}
	}
	return total
}
