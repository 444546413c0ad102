package authz

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// samePodRefs says whether an update changed nothing that refsOfPod reads. Of a
// pod on a node, only ephemeral containers and claim statuses can change.
func samePodRefs(old, new *corev1.Pod) bool {
	return old.UID == new.UID && old.Spec.NodeName == new.Spec.NodeName &&
		len(old.Spec.EphemeralContainers) == len(new.Spec.EphemeralContainers) &&
		equality.Semantic.DeepEqual(old.Status.ResourceClaimStatuses, new.Status.ResourceClaimStatuses) &&
		equality.Semantic.DeepEqual(old.Status.ExtendedResourceClaimStatus, new.Status.ExtendedResourceClaimStatus)
}

// refsOfPod are the objects that pod gives its node a right to. A mirror pod is
// the node's own word and gives none.
func refsOfPod(pod *corev1.Pod) []ref {
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return nil
	}
	seen := map[ref]bool{}
	var refs []ref
	add := func(kind refKind, name string) {
		r := ref{kind, pod.Namespace, name}
		if name != "" && !seen[r] {
			seen[r] = true
			refs = append(refs, r)
		}
	}
	add(serviceAccountRef, pod.Spec.ServiceAccountName)
	for _, secret := range pod.Spec.ImagePullSecrets {
		add(secretRef, secret.Name)
	}
	for i := range pod.Spec.InitContainers {
		addEnvironment(&pod.Spec.InitContainers[i], add)
	}
	for i := range pod.Spec.Containers {
		addEnvironment(&pod.Spec.Containers[i], add)
	}
	for i := range pod.Spec.EphemeralContainers {
		container := corev1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		addEnvironment(&container, add)
	}
	for i := range pod.Spec.Volumes {
		addPodVolume(pod, &pod.Spec.Volumes[i], add)
	}
	addResourceClaims(pod, add)
	return refs
}

func addEnvironment(container *corev1.Container, add func(refKind, string)) {
	for _, from := range container.EnvFrom {
		if from.SecretRef != nil {
			add(secretRef, from.SecretRef.Name)
		}
		if from.ConfigMapRef != nil {
			add(configMapRef, from.ConfigMapRef.Name)
		}
	}
	for _, variable := range container.Env {
		if variable.ValueFrom == nil {
			continue
		}
		if from := variable.ValueFrom.SecretKeyRef; from != nil {
			add(secretRef, from.Name)
		}
		if from := variable.ValueFrom.ConfigMapKeyRef; from != nil {
			add(configMapRef, from.Name)
		}
	}
}

func addPodVolume(pod *corev1.Pod, v *corev1.Volume, add func(refKind, string)) {
	switch {
	case v.Secret != nil:
		add(secretRef, v.Secret.SecretName)
	case v.ConfigMap != nil:
		add(configMapRef, v.ConfigMap.Name)
	case v.PersistentVolumeClaim != nil:
		add(claimRef, v.PersistentVolumeClaim.ClaimName)
	case v.Ephemeral != nil:
		add(claimRef, pod.Name+"-"+v.Name)
	case v.Projected != nil:
		for _, source := range v.Projected.Sources {
			if source.Secret != nil {
				add(secretRef, source.Secret.Name)
			}
			if source.ConfigMap != nil {
				add(configMapRef, source.ConfigMap.Name)
			}
		}
	case v.AzureFile != nil:
		add(secretRef, v.AzureFile.SecretName)
	default:
		if secret := driverSecret(v); secret != nil {
			add(secretRef, secret.Name)
		}
	}
}

// driverSecret is the secret that a volume's driver needs.
func driverSecret(v *corev1.Volume) *corev1.LocalObjectReference {
	switch {
	case v.CSI != nil:
		return v.CSI.NodePublishSecretRef
	case v.FlexVolume != nil:
		return v.FlexVolume.SecretRef
	case v.ISCSI != nil:
		return v.ISCSI.SecretRef
	case v.CephFS != nil:
		return v.CephFS.SecretRef
	case v.Cinder != nil:
		return v.Cinder.SecretRef
	case v.RBD != nil:
		return v.RBD.SecretRef
	case v.ScaleIO != nil:
		return v.ScaleIO.SecretRef
	case v.StorageOS != nil:
		return v.StorageOS.SecretRef
	}
	return nil
}

func addResourceClaims(pod *corev1.Pod, add func(refKind, string)) {
	for _, claim := range pod.Spec.ResourceClaims {
		if claim.ResourceClaimName != nil {
			add(resourceClaimRef, *claim.ResourceClaimName)
		}
	}
	for _, status := range pod.Status.ResourceClaimStatuses {
		if status.ResourceClaimName != nil {
			add(resourceClaimRef, *status.ResourceClaimName)
		}
	}
	if status := pod.Status.ExtendedResourceClaimStatus; status != nil {
		add(resourceClaimRef, status.ResourceClaimName)
	}
}

// secretsOfVolume are the secrets that a node needs to mount a persistent volume
// that is bound to a claim.
func secretsOfVolume(pv *corev1.PersistentVolume) []ref {
	var refs []ref
	for _, secret := range mountSecrets(&pv.Spec.PersistentVolumeSource) {
		if secret == nil || secret.Name == "" {
			continue
		}
		namespace := secret.Namespace
		if namespace == "" {
			namespace = pv.Spec.ClaimRef.Namespace
		}
		refs = append(refs, ref{secretRef, namespace, secret.Name})
	}
	return refs
}

// mountSecrets are the secrets of a volume's source that a node uses; a secret
// without a namespace is in the claim's.
func mountSecrets(source *corev1.PersistentVolumeSource) []*corev1.SecretReference {
	one := func(secret *corev1.SecretReference) []*corev1.SecretReference {
		return []*corev1.SecretReference{secret}
	}
	switch {
	case source.AzureFile != nil:
		secret := &corev1.SecretReference{Name: source.AzureFile.SecretName}
		if source.AzureFile.SecretNamespace != nil {
			secret.Namespace = *source.AzureFile.SecretNamespace
		}
		return one(secret)
	case source.CSI != nil:
		return []*corev1.SecretReference{source.CSI.NodeStageSecretRef, source.CSI.NodePublishSecretRef, source.CSI.NodeExpandSecretRef}
	case source.FlexVolume != nil:
		return one(source.FlexVolume.SecretRef)
	case source.ISCSI != nil:
		return one(source.ISCSI.SecretRef)
	case source.CephFS != nil:
		return one(source.CephFS.SecretRef)
	case source.Cinder != nil:
		return one(source.Cinder.SecretRef)
	case source.RBD != nil:
		return one(source.RBD.SecretRef)
	case source.ScaleIO != nil:
		return one(source.ScaleIO.SecretRef)
	case source.StorageOS != nil && source.StorageOS.SecretRef != nil:
		return one(&corev1.SecretReference{Name: source.StorageOS.SecretRef.Name, Namespace: source.StorageOS.SecretRef.Namespace})
	}
	return nil
}
