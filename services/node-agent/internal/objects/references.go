package objects

import corev1 "k8s.io/api/core/v1"

// references are all secrets and config maps that the pod names, and the cluster's trust
// bundles if it uses any.
func references(pod *corev1.Pod) map[key]struct{} {
	refs := referenceSet{namespace: pod.Namespace, keys: map[key]struct{}{}}
	for _, ref := range pod.Spec.ImagePullSecrets {
		refs.add(secrets, ref.Name)
	}
	for i := range pod.Spec.InitContainers {
		refs.container(pod.Spec.InitContainers[i].Env, pod.Spec.InitContainers[i].EnvFrom)
	}
	for i := range pod.Spec.Containers {
		refs.container(pod.Spec.Containers[i].Env, pod.Spec.Containers[i].EnvFrom)
	}
	for i := range pod.Spec.EphemeralContainers {
		refs.container(pod.Spec.EphemeralContainers[i].Env, pod.Spec.EphemeralContainers[i].EnvFrom)
	}
	for i := range pod.Spec.Volumes {
		refs.volume(&pod.Spec.Volumes[i])
	}
	return refs.keys
}

type referenceSet struct {
	namespace string
	keys      map[key]struct{}
}

func (r referenceSet) add(kind kind, name string) {
	if name != "" {
		r.keys[key{kind, r.namespace, name}] = struct{}{}
	}
}

func (r referenceSet) container(env []corev1.EnvVar, from []corev1.EnvFromSource) {
	for _, v := range env {
		if v.ValueFrom == nil {
			continue
		}
		if ref := v.ValueFrom.ConfigMapKeyRef; ref != nil {
			r.add(configMaps, ref.Name)
		}
		if ref := v.ValueFrom.SecretKeyRef; ref != nil {
			r.add(secrets, ref.Name)
		}
	}
	for _, source := range from {
		if source.ConfigMapRef != nil {
			r.add(configMaps, source.ConfigMapRef.Name)
		}
		if source.SecretRef != nil {
			r.add(secrets, source.SecretRef.Name)
		}
	}
}

func (r referenceSet) volume(volume *corev1.Volume) {
	if volume.ConfigMap != nil {
		r.add(configMaps, volume.ConfigMap.Name)
	}
	if volume.Secret != nil {
		r.add(secrets, volume.Secret.SecretName)
	}
	if volume.Projected == nil {
		return
	}
	for _, source := range volume.Projected.Sources {
		if source.ConfigMap != nil {
			r.add(configMaps, source.ConfigMap.Name)
		}
		if source.Secret != nil {
			r.add(secrets, source.Secret.Name)
		}
		if source.ClusterTrustBundle != nil {
			r.keys[key{kind: trustBundles}] = struct{}{}
		}
	}
}
