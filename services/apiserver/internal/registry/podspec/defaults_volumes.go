package podspec

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// fileMode is the mode of files that volumes make from API objects.
const fileMode int32 = 0o644

// tokenSeconds is how long a projected token lives.
const tokenSeconds int64 = 3600

func defaultVolume(v *corev1.Volume) {
	if v.VolumeSource == (corev1.VolumeSource{}) {
		v.EmptyDir = &corev1.EmptyDirVolumeSource{}
		return
	}
	switch {
	case v.Secret != nil:
		defaultMode(&v.Secret.DefaultMode)
	case v.ConfigMap != nil:
		defaultMode(&v.ConfigMap.DefaultMode)
	case v.DownwardAPI != nil:
		defaultMode(&v.DownwardAPI.DefaultMode)
		defaultDownwardFiles(v.DownwardAPI.Items)
	case v.Projected != nil:
		defaultProjected(v.Projected)
	case v.HostPath != nil:
		if v.HostPath.Type == nil {
			v.HostPath.Type = ptr.To(corev1.HostPathUnset)
		}
	case v.Image != nil:
		if v.Image.PullPolicy == "" {
			v.Image.PullPolicy = pullPolicyOf(v.Image.Reference)
		}
	case v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil:
		DefaultClaim(&v.Ephemeral.VolumeClaimTemplate.Spec)
	default:
		defaultNetworkVolume(&v.VolumeSource)
	}
}

// defaultNetworkVolume defaults the sources that reach storage outside the
// node.
func defaultNetworkVolume(v *corev1.VolumeSource) {
	switch {
	case v.ISCSI != nil:
		if v.ISCSI.ISCSIInterface == "" {
			v.ISCSI.ISCSIInterface = "default"
		}
	case v.RBD != nil:
		setIfEmpty(&v.RBD.RBDPool, "rbd")
		setIfEmpty(&v.RBD.RadosUser, "admin")
		setIfEmpty(&v.RBD.Keyring, "/etc/ceph/keyring")
	case v.AzureDisk != nil:
		if v.AzureDisk.CachingMode == nil {
			v.AzureDisk.CachingMode = ptr.To(corev1.AzureDataDiskCachingReadWrite)
		}
		if v.AzureDisk.Kind == nil {
			v.AzureDisk.Kind = ptr.To(corev1.AzureSharedBlobDisk)
		}
		if v.AzureDisk.FSType == nil {
			v.AzureDisk.FSType = ptr.To("ext4")
		}
		if v.AzureDisk.ReadOnly == nil {
			v.AzureDisk.ReadOnly = ptr.To(false)
		}
	case v.ScaleIO != nil:
		setIfEmpty(&v.ScaleIO.StorageMode, "ThinProvisioned")
		setIfEmpty(&v.ScaleIO.FSType, "xfs")
	}
}

func setIfEmpty(s *string, value string) {
	if *s == "" {
		*s = value
	}
}

func defaultMode(mode **int32) {
	if *mode == nil {
		*mode = ptr.To(fileMode)
	}
}

func defaultDownwardFiles(files []corev1.DownwardAPIVolumeFile) {
	for i := range files {
		if ref := files[i].FieldRef; ref != nil && ref.APIVersion == "" {
			ref.APIVersion = "v1"
		}
	}
}

func defaultProjected(p *corev1.ProjectedVolumeSource) {
	defaultMode(&p.DefaultMode)
	for i := range p.Sources {
		source := &p.Sources[i]
		if source.DownwardAPI != nil {
			defaultDownwardFiles(source.DownwardAPI.Items)
		}
		if token := source.ServiceAccountToken; token != nil && token.ExpirationSeconds == nil {
			token.ExpirationSeconds = ptr.To(tokenSeconds)
		}
	}
}

// DefaultClaim sets a claim spec's absent fields.
func DefaultClaim(spec *corev1.PersistentVolumeClaimSpec) {
	if spec.VolumeMode == nil {
		spec.VolumeMode = ptr.To(corev1.PersistentVolumeFilesystem)
	}
	RoundQuantities(spec.Resources.Limits)
	RoundQuantities(spec.Resources.Requests)
}
