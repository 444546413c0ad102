package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"

	corev1 "k8s.io/api/core/v1"
)

// Claims reads what claims stand for. Nil means that the agent has no claims.
type Claims interface {
	Claim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error)
	Volume(ctx context.Context, name string) (*corev1.PersistentVolume, error)
}

// claimKind is a volume that a claim, or a claim made for the pod, stands for:
// one of the kinds below.
type claimKind struct{ kinds []persistentKind }

// persistentKind is one kind of persistent volume.
type persistentKind interface {
	owns(volume *corev1.PersistentVolume) bool
	setUp(ctx context.Context, r *request, volume *corev1.PersistentVolume) (result, error)
}

func (claimKind) name() string { return "kubernetes.io~claim" }

func (claimKind) owns(v *corev1.Volume) bool {
	return v.PersistentVolumeClaim != nil || v.Ephemeral != nil
}

func (k claimKind) setUp(ctx context.Context, r *request) (result, error) {
	if r.cfg.Claims == nil {
		return result{}, errors.New("this node cannot read persistent volume claims")
	}
	claim, readOnly, err := claimOf(ctx, r)
	if err != nil {
		return result{}, err
	}
	volume, err := r.cfg.Claims.Volume(ctx, claim.Spec.VolumeName)
	if err != nil {
		return result{}, fmt.Errorf("reading persistent volume %s: %w", claim.Spec.VolumeName, err)
	}
	if reference := volume.Spec.ClaimRef; reference == nil || reference.UID != claim.UID {
		return result{}, fmt.Errorf("persistent volume %s is bound to another claim", volume.Name)
	}
	if volume.Spec.VolumeMode != nil && *volume.Spec.VolumeMode == corev1.PersistentVolumeBlock {
		return result{}, fmt.Errorf("persistent volume %s is a block device, which this node cannot give to containers", volume.Name)
	}
	r.claim = claim
	for _, kind := range k.kinds {
		if kind.owns(volume) {
			made, err := kind.setUp(ctx, r, volume)
			// A volume that is for readers only is so for every container.
			made.readOnly = made.readOnly || readOnly || slices.Equal(volume.Spec.AccessModes, []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany})
			return made, err
		}
	}
	return result{}, fmt.Errorf("persistent volume %s is of a kind that is not supported by this node; it has host paths, local volumes and CSI drivers", volume.Name)
}

// claimOf is the bound claim of the request's volume.
func claimOf(ctx context.Context, r *request) (claim *corev1.PersistentVolumeClaim, readOnly bool, err error) {
	name := r.pod.Name + "-" + r.volume.Name // of an ephemeral volume
	if source := r.volume.PersistentVolumeClaim; source != nil {
		name, readOnly = source.ClaimName, source.ReadOnly
	}
	claim, err = r.cfg.Claims.Claim(ctx, r.pod.Namespace, name)
	if err != nil {
		return nil, false, fmt.Errorf("reading claim %s: %w", name, err)
	}
	if r.volume.Ephemeral != nil && !ownedBy(claim, r.pod) {
		return nil, false, fmt.Errorf("PVC %s was not created for pod %s (pod is not owner)", name, r.pod.Name)
	}
	if claim.Spec.VolumeName == "" || claim.Status.Phase != corev1.ClaimBound {
		return nil, false, fmt.Errorf("claim %s is not bound to a volume yet", name)
	}
	return claim, readOnly, nil
}

func ownedBy(claim *corev1.PersistentVolumeClaim, pod *corev1.Pod) bool {
	for _, owner := range claim.OwnerReferences {
		if owner.Controller != nil && *owner.Controller && owner.UID == pod.UID {
			return true
		}
	}
	return false
}

// persistentHostPath is a path of the node that a persistent volume names.
type persistentHostPath struct{}

func (persistentHostPath) owns(volume *corev1.PersistentVolume) bool {
	return volume.Spec.HostPath != nil
}

func (persistentHostPath) setUp(ctx context.Context, r *request, volume *corev1.PersistentVolume) (result, error) {
	asVolume := *r
	asVolume.volume = &corev1.Volume{Name: r.volume.Name, VolumeSource: corev1.VolumeSource{HostPath: volume.Spec.HostPath}}
	return hostPathKind{}.setUp(ctx, &asVolume)
}

// persistentLocal is a disk or a folder of one node.
type persistentLocal struct{}

func (persistentLocal) owns(volume *corev1.PersistentVolume) bool { return volume.Spec.Local != nil }

func (persistentLocal) setUp(_ context.Context, r *request, volume *corev1.PersistentVolume) (result, error) {
	path := volume.Spec.Local.Path
	info, err := os.Stat(path)
	if err != nil {
		return result{}, fmt.Errorf("path of local volume %s: %w", volume.Name, err)
	}
	if !info.IsDir() {
		return result{}, fmt.Errorf("local volume %s: %s is not a directory; disks must be formatted and mounted by the node's operator", volume.Name, path)
	}
	return result{path: path}, giveToGroup(r.pod, path)
}

// ownedByGroup says whether a folder belongs to the group already, for those who
// do not want all in it to be changed each time.
func ownedByGroup(info os.FileInfo, group *int64) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return group == nil || ok && int64(stat.Gid) == *group && info.Mode()&os.ModeSetgid != 0 && info.Mode().Perm()&0o060 == 0o060
}
