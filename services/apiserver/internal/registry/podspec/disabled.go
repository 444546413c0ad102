package podspec

import (
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func equalTemplates(a, b *corev1.PodTemplateSpec) bool { return apiequality.Semantic.DeepEqual(a, b) }

// DropDisabled drops the fields of features that are off, as upstream does for
// its alpha features, so that nothing seems to work that does not. What old has
// is kept; old may be nil.
func DropDisabled(spec, old *corev1.PodSpec) {
	if old == nil || old.SchedulingGroup == nil {
		spec.SchedulingGroup = nil
	}
	if old == nil || old.EvictionResponders == nil {
		spec.EvictionResponders = nil
	}
	if !usesBindOptions(old) {
		for i := range spec.InitContainers {
			dropBindOptions(spec.InitContainers[i].VolumeMounts)
		}
		for i := range spec.Containers {
			dropBindOptions(spec.Containers[i].VolumeMounts)
		}
		for i := range spec.EphemeralContainers {
			dropBindOptions(spec.EphemeralContainers[i].VolumeMounts)
		}
	}
	if usesVolumeOwners(old) {
		return
	}
	for i := range spec.Volumes {
		v := &spec.Volumes[i]
		if v.EmptyDir != nil {
			v.EmptyDir.Mode = nil
		}
		if v.Projected == nil {
			continue
		}
		for j := range v.Projected.Sources {
			s := &v.Projected.Sources[j]
			if s.ClusterTrustBundle != nil {
				s.ClusterTrustBundle.User = nil
			}
			if s.PodCertificate != nil {
				s.PodCertificate.User = nil
			}
		}
	}
}

func dropBindOptions(mounts []corev1.VolumeMount) {
	for i := range mounts {
		mounts[i].BindMountOptions = nil
	}
}

func usesBindOptions(spec *corev1.PodSpec) bool {
	if spec == nil {
		return false
	}
	found := false
	eachContainer(spec, nil, func(c *corev1.Container, _ *field.Path) {
		for i := range c.VolumeMounts {
			found = found || c.VolumeMounts[i].BindMountOptions != nil
		}
	})
	return found
}

func usesVolumeOwners(spec *corev1.PodSpec) bool {
	if spec == nil {
		return false
	}
	for i := range spec.Volumes {
		if v := &spec.Volumes[i]; v.EmptyDir != nil && v.EmptyDir.Mode != nil {
			return true
		}
	}
	return false
}
