package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sampan-io/sampan/services/node-agent/internal/csi"
)

// CSI has the storage drivers of this node publish volumes to pods. Nil means that
// the agent has no drivers.
type CSI interface {
	Mount(ctx context.Context, volume csi.Volume) (csi.Mounted, error)
	// Unmount takes back all volumes of a pod; it may be called again.
	Unmount(ctx context.Context, uid types.UID) error
}

// csiKind is a volume that a driver makes for one pod.
type csiKind struct{}

func (csiKind) name() string               { return csi.Dir }
func (csiKind) owns(v *corev1.Volume) bool { return v.CSI != nil }

func (csiKind) setUp(ctx context.Context, r *request) (result, error) {
	return mountCSI(ctx, r, csi.Volume{Pod: r.pod, Name: r.volume.Name, Inline: r.volume.CSI})
}

// persistentCSI is a volume that a driver keeps.
type persistentCSI struct{}

func (persistentCSI) owns(volume *corev1.PersistentVolume) bool { return volume.Spec.CSI != nil }

func (persistentCSI) setUp(ctx context.Context, r *request, volume *corev1.PersistentVolume) (result, error) {
	readOnly := r.volume.PersistentVolumeClaim != nil && r.volume.PersistentVolumeClaim.ReadOnly
	return mountCSI(ctx, r, csi.Volume{Pod: r.pod, Name: volume.Name, Persistent: volume, Claim: r.claim, ReadOnly: readOnly})
}

func mountCSI(ctx context.Context, r *request, volume csi.Volume) (result, error) {
	if r.cfg.CSI == nil {
		return result{}, errors.New("this node takes no CSI drivers")
	}
	mounted, err := r.cfg.CSI.Mount(ctx, volume)
	if err != nil {
		return result{}, err
	}
	made := result{path: mounted.Path, renew: mounted.Renew, live: !mounted.Renew.IsZero()}
	if !mounted.ApplyGroup {
		return made, nil
	}
	return made, giveToGroup(r.pod, mounted.Path)
}

// giveToGroup gives a volume's files to the pod's group, unless they have it and
// the pod wants no more than that.
func giveToGroup(pod *corev1.Pod, path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("volume at %s: %w", path, err)
	}
	context := pod.Spec.SecurityContext
	if context != nil && context.FSGroupChangePolicy != nil && *context.FSGroupChangePolicy == corev1.FSGroupChangeOnRootMismatch && ownedByGroup(info, fsGroup(pod)) {
		return nil
	}
	return own(path, fsGroup(pod), false)
}
