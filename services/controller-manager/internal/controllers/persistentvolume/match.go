package persistentvolume

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Annotations by which binder, provisioners and scheduler talk.
const (
	bindCompleted          = "pv.kubernetes.io/bind-completed"
	boundByController      = "pv.kubernetes.io/bound-by-controller"
	provisionedBy          = "pv.kubernetes.io/provisioned-by"
	storageProvisioner     = "volume.kubernetes.io/storage-provisioner"
	betaStorageProvisioner = "volume.beta.kubernetes.io/storage-provisioner"
	selectedNode           = "volume.kubernetes.io/selected-node"
	betaClass              = "volume.beta.kubernetes.io/storage-class"

	// noProvisioner is the provisioner of classes whose volumes are made by hand.
	noProvisioner = "kubernetes.io/no-provisioner"
)

func classOfClaim(claim *corev1.PersistentVolumeClaim) string {
	if class, has := claim.Annotations[betaClass]; has {
		return class
	}
	if claim.Spec.StorageClassName != nil {
		return *claim.Spec.StorageClassName
	}
	return ""
}

func classOfVolume(volume *corev1.PersistentVolume) string {
	if class, has := volume.Annotations[betaClass]; has {
		return class
	}
	return volume.Spec.StorageClassName
}

func modeOf(mode *corev1.PersistentVolumeMode) corev1.PersistentVolumeMode {
	if mode == nil {
		return corev1.PersistentVolumeFilesystem
	}
	return *mode
}

// isFor says whether the volume names the claim, or, before the claim has been
// seen, a claim of its name.
func isFor(volume *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	reference := volume.Spec.ClaimRef
	return reference != nil && reference.Namespace == claim.Namespace && reference.Name == claim.Name && (reference.UID == "" || reference.UID == claim.UID)
}

// misfit says why the volume cannot be the claim's; it is empty if it can.
func misfit(volume *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) string {
	size := volume.Spec.Capacity[corev1.ResourceStorage]
	wanted := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	switch {
	case modeOf(volume.Spec.VolumeMode) != modeOf(claim.Spec.VolumeMode):
		return "incompatible volumeMode"
	case size.Cmp(wanted) < 0:
		return "requested PV is too small"
	case classOfVolume(volume) != classOfClaim(claim):
		return "storageClassName does not match"
	case !hasModes(volume.Spec.AccessModes, claim.Spec.AccessModes):
		return "incompatible accessMode"
	}
	return ""
}

func hasModes(have, want []corev1.PersistentVolumeAccessMode) bool {
	for _, mode := range want {
		if !slices.Contains(have, mode) {
			return false
		}
	}
	return true
}

func valueOf(p *string) string {
	if p == nil {
		return ""
	}
	return *p
}

// choose is the best volume for a claim: one that names it, or else the smallest
// free one that fits. It is nil if there is none.
func choose(claim *corev1.PersistentVolumeClaim, volumes []*corev1.PersistentVolume) *corev1.PersistentVolume {
	selector := labels.Everything()
	if claim.Spec.Selector != nil {
		var err error
		if selector, err = metav1.LabelSelectorAsSelector(claim.Spec.Selector); err != nil {
			return nil // the API lets no such selector through
		}
	}
	var best *corev1.PersistentVolume
	for _, volume := range volumes {
		if volume.DeletionTimestamp != nil {
			continue
		}
		if isFor(volume, claim) {
			if misfit(volume, claim) == "" {
				return volume
			}
			continue
		}
		if volume.Spec.ClaimRef != nil || volume.Status.Phase != corev1.VolumeAvailable || misfit(volume, claim) != "" || !selector.Matches(labels.Set(volume.Labels)) ||
			valueOf(volume.Spec.VolumeAttributesClassName) != valueOf(claim.Spec.VolumeAttributesClassName) {
			continue
		}
		if best == nil || smaller(volume, best) {
			best = volume
		}
	}
	return best
}

func smaller(a, b *corev1.PersistentVolume) bool {
	left, right := a.Spec.Capacity[corev1.ResourceStorage], b.Spec.Capacity[corev1.ResourceStorage]
	if c := left.Cmp(right); c != 0 {
		return c < 0
	}
	return a.Name < b.Name
}

// waits says whether a claim is bound only once a pod that uses it has a node.
func waits(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) bool {
	return class != nil && class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer &&
		claim.Annotations[selectedNode] == ""
}
