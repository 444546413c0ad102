package core

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
)

func podStatusBehaviour() registry.Behaviour[*corev1.Pod] {
	return registry.Behaviour[*corev1.Pod]{
		Default: podspec.DefaultPod,
		PrepareForUpdate: func(_ context.Context, pod, old *corev1.Pod) {
			pod.Spec = old.Spec
			pod.OwnerReferences = old.OwnerReferences
			if pod.Status.QOSClass == "" {
				pod.Status.QOSClass = old.Status.QOSClass
			}
			keepObservedGenerations(pod, old)
		},
		ValidateUpdate: func(_ context.Context, pod, old *corev1.Pod) field.ErrorList {
			return podspec.ValidatePodStatusUpdate(pod, old)
		},
		ResetFields: []string{"spec", "metadata.deletionTimestamp", "metadata.ownerReferences"},
	}
}

// keepObservedGenerations restores observed generations that a client which
// does not know them left out.
func keepObservedGenerations(pod, old *corev1.Pod) {
	if pod.Status.ObservedGeneration == 0 {
		pod.Status.ObservedGeneration = old.Status.ObservedGeneration
	}
	before := map[corev1.PodConditionType][]int64{}
	for _, c := range old.Status.Conditions {
		before[c.Type] = append(before[c.Type], c.ObservedGeneration)
	}
	for i := range pod.Status.Conditions {
		c := &pod.Status.Conditions[i]
		var was int64
		if list := before[c.Type]; len(list) > 0 {
			was, before[c.Type] = list[0], list[1:]
		}
		if c.ObservedGeneration == 0 {
			c.ObservedGeneration = was
		}
	}
}

// ephemeralContainersBehaviour lets the ephemeral containers change and nothing
// else.
func ephemeralContainersBehaviour() registry.Behaviour[*corev1.Pod] {
	return registry.Behaviour[*corev1.Pod]{
		Default: podspec.DefaultPod,
		PrepareForUpdate: func(_ context.Context, pod, old *corev1.Pod) {
			containers := pod.Spec.EphemeralContainers
			pod.Spec = *old.Spec.DeepCopy()
			pod.Spec.EphemeralContainers = containers
			pod.Status = old.Status
			metav1.ResetObjectMetaForStatus(&pod.ObjectMeta, &old.ObjectMeta)
			bumpPodGeneration(pod, old)
		},
		ValidateUpdate: func(_ context.Context, pod, old *corev1.Pod) field.ErrorList {
			return podspec.ValidateEphemeralContainersUpdate(pod, old)
		},
	}
}

// resizeBehaviour lets containers' resources and resize policies change, and
// the pod's own resources.
func resizeBehaviour() registry.Behaviour[*corev1.Pod] {
	return registry.Behaviour[*corev1.Pod]{
		Default: podspec.DefaultPod,
		PrepareForUpdate: func(_ context.Context, pod, old *corev1.Pod) {
			keepOnlyResources(pod, old)
			bumpPodGeneration(pod, old)
		},
		ValidateUpdate: func(_ context.Context, pod, old *corev1.Pod) field.ErrorList {
			return podspec.ValidateResize(pod, old)
		},
	}
}

// keepOnlyResources leaves a pod whose containers were added, removed or renamed
// as it is, for validation to refuse.
func keepOnlyResources(pod, old *corev1.Pod) {
	containers, ok := withResourcesOf(pod.Spec.Containers, old.Spec.Containers)
	if !ok {
		return
	}
	initContainers, ok := withResourcesOf(pod.Spec.InitContainers, old.Spec.InitContainers)
	if !ok {
		return
	}
	whole := pod.Spec.Resources
	pod.Spec = *old.Spec.DeepCopy()
	pod.Spec.Containers, pod.Spec.InitContainers, pod.Spec.Resources = containers, initContainers, whole
	pod.Status = old.Status
	metav1.ResetObjectMetaForStatus(&pod.ObjectMeta, &old.ObjectMeta)
}

func withResourcesOf(now, old []corev1.Container) ([]corev1.Container, bool) {
	if len(now) != len(old) {
		return nil, false
	}
	var out []corev1.Container
	for i := range old {
		if now[i].Name != old[i].Name {
			return nil, false
		}
		c := *old[i].DeepCopy()
		c.Resources, c.ResizePolicy = now[i].Resources, now[i].ResizePolicy
		out = append(out, c)
	}
	return out, true
}

func bumpPodGeneration(pod, old *corev1.Pod) {
	pod.Generation = old.Generation
	if !apiequality.Semantic.DeepEqual(pod.Spec, old.Spec) {
		pod.Generation++
	}
}
