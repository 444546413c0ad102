package plugins

import (
	corev1 "k8s.io/api/core/v1"
)

// refs are the names of a pod's secrets or config maps by where they are used.
type refs struct {
	volumes, environment, pull []string
}

func (r *refs) all() []string {
	return append(append(append([]string(nil), r.volumes...), r.environment...), r.pull...)
}

// containersOf are all containers of a pod of every kind.
func containersOf(pod *corev1.Pod) []corev1.Container {
	all := append(append([]corev1.Container(nil), pod.Spec.InitContainers...), pod.Spec.Containers...)
	for i := range pod.Spec.EphemeralContainers {
		all = append(all, corev1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
	return all
}

// secretsOf are the secrets that a pod refers to.
func secretsOf(pod *corev1.Pod) refs {
	var r refs
	for _, secret := range pod.Spec.ImagePullSecrets {
		r.pull = append(r.pull, secret.Name)
	}
	for _, container := range containersOf(pod) {
		for _, from := range container.EnvFrom {
			if from.SecretRef != nil {
				r.environment = append(r.environment, from.SecretRef.Name)
			}
		}
		for _, variable := range container.Env {
			if variable.ValueFrom != nil && variable.ValueFrom.SecretKeyRef != nil {
				r.environment = append(r.environment, variable.ValueFrom.SecretKeyRef.Name)
			}
		}
	}
	for i := range pod.Spec.Volumes {
		r.volumes = append(r.volumes, secretsOfVolume(&pod.Spec.Volumes[i])...)
	}
	return r
}

func secretsOfVolume(v *corev1.Volume) []string {
	var names []string
	local := func(ref *corev1.LocalObjectReference) {
		if ref != nil {
			names = append(names, ref.Name)
		}
	}
	switch {
	case v.Secret != nil:
		names = append(names, v.Secret.SecretName)
	case v.Projected != nil:
		for _, source := range v.Projected.Sources {
			if source.Secret != nil {
				names = append(names, source.Secret.Name)
			}
		}
	case v.AzureFile != nil:
		names = append(names, v.AzureFile.SecretName)
	case v.CSI != nil:
		local(v.CSI.NodePublishSecretRef)
	case v.FlexVolume != nil:
		local(v.FlexVolume.SecretRef)
	case v.ISCSI != nil:
		local(v.ISCSI.SecretRef)
	case v.CephFS != nil:
		local(v.CephFS.SecretRef)
	case v.Cinder != nil:
		local(v.Cinder.SecretRef)
	case v.RBD != nil:
		local(v.RBD.SecretRef)
	case v.ScaleIO != nil:
		local(v.ScaleIO.SecretRef)
	case v.StorageOS != nil:
		local(v.StorageOS.SecretRef)
	}
	return names
}

// configMapsOf are the config maps that a pod refers to.
func configMapsOf(pod *corev1.Pod) []string {
	var names []string
	for _, container := range containersOf(pod) {
		for _, from := range container.EnvFrom {
			if from.ConfigMapRef != nil {
				names = append(names, from.ConfigMapRef.Name)
			}
		}
		for _, variable := range container.Env {
			if variable.ValueFrom != nil && variable.ValueFrom.ConfigMapKeyRef != nil {
				names = append(names, variable.ValueFrom.ConfigMapKeyRef.Name)
			}
		}
	}
	for i := range pod.Spec.Volumes {
		switch v := &pod.Spec.Volumes[i]; {
		case v.ConfigMap != nil:
			names = append(names, v.ConfigMap.Name)
		case v.Projected != nil:
			for _, source := range v.Projected.Sources {
				if source.ConfigMap != nil {
					names = append(names, source.ConfigMap.Name)
				}
			}
		}
	}
	return names
}
