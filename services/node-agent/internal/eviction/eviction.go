// Package eviction ends pods that use more of the node than they may.
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

	"github.com/sampan-io/sampan/services/node-agent/internal/status"
)

// Pods are this node's.
type Pods interface {
	Pods() []*corev1.Pod
	Evict(uid types.UID, end status.End)
}

// VolumeWatch measures the emptyDir volumes on the disk that have a limit. Those in
// memory are limited by the kernel.
type VolumeWatch struct {
	Pods Pods
	// Dir is where a pod's volume lies.
	Dir     func(uid types.UID, volume string) string
	Every   time.Duration
	Evicted func(pod *corev1.Pod, message string)
	Log     *slog.Logger
}

// Run measures until ctx ends.
func (w *VolumeWatch) Run(ctx context.Context) error {
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
func (w *VolumeWatch) Check(ctx context.Context) {
	for _, pod := range w.Pods.Pods() {
		if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
			continue
		}
		for i := range pod.Spec.Volumes {
			if over, message := w.exceeds(ctx, pod, &pod.Spec.Volumes[i]); over {
				w.Log.InfoContext(ctx, "Evicting a pod", "pod", pod.Namespace+"/"+pod.Name, "why", message)
				w.Evicted(pod, message)
				w.Pods.Evict(pod.UID, status.End{Reason: status.ReasonEvicted, Message: message})
				break
			}
		}
	}
}

func (w *VolumeWatch) exceeds(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume) (bool, string) {
	source := volume.EmptyDir
	if source == nil || source.SizeLimit == nil || source.SizeLimit.Sign() <= 0 || source.Medium != corev1.StorageMediumDefault {
		return false, ""
	}
	if size(ctx, w.Dir(pod.UID, volume.Name)) <= source.SizeLimit.Value() {
		return false, ""
	}
	return true, fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", volume.Name, source.SizeLimit.String())
}

// size is what the files below root take of the disk, in bytes; a file with
// several names counts once.
func size(ctx context.Context, root string) int64 {
	const block = 512
	var total int64
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
		total += stat.Blocks * block
		return nil
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		return 0
	}
	return total
}
