package podspec

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// QOS is the quality of service class that a pod's requests and limits of CPU
// and memory give it.
func QOS(spec *corev1.PodSpec) corev1.PodQOSClass {
	all := make([]corev1.ResourceRequirements, 0, len(spec.Containers)+len(spec.InitContainers)+1)
	if spec.Resources != nil && len(spec.Resources.Requests)+len(spec.Resources.Limits) > 0 {
		all = append(all, *spec.Resources)
	} else {
		for i := range spec.Containers {
			all = append(all, spec.Containers[i].Resources)
		}
		for i := range spec.InitContainers {
			all = append(all, spec.InitContainers[i].Resources)
		}
	}
	requests, limits := corev1.ResourceList{}, corev1.ResourceList{}
	guaranteed := true
	for _, r := range all {
		addResources(requests, computeResources(r.Requests))
		limited := computeResources(r.Limits)
		addResources(limits, limited)
		if len(limited) < 2 {
			guaranteed = false
		}
	}
	switch {
	case len(requests) == 0 && len(limits) == 0:
		return corev1.PodQOSBestEffort
	case guaranteed && sameResources(requests, limits):
		return corev1.PodQOSGuaranteed
	default:
		return corev1.PodQOSBurstable
	}
}

func computeResources(list corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if quantity, set := list[name]; set && quantity.Cmp(resource.Quantity{}) > 0 {
			out[name] = quantity
		}
	}
	return out
}

func sameResources(a, b corev1.ResourceList) bool {
	if len(a) != len(b) {
		return false
	}
	for name, quantity := range a {
		if other, set := b[name]; !set || quantity.Cmp(other) != 0 {
			return false
		}
	}
	return true
}
