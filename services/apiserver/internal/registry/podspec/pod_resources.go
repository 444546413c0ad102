package podspec

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// defaultPodResources fills pod-level requests and limits from each other and
// from the containers' where a part of them is set (KEP-2837).
func defaultPodResources(spec *corev1.PodSpec) {
	if spec.Resources == nil || len(spec.Resources.Limits)+len(spec.Resources.Requests) == 0 {
		return
	}
	limits := containerTotals(spec, func(c *corev1.Container) corev1.ResourceList { return c.Resources.Limits })
	for name, total := range limits {
		_, limited := spec.Resources.Limits[name]
		_, requested := spec.Resources.Requests[name]
		if isHugePage(name) && !limited && !requested {
			setResource(&spec.Resources.Limits, name, total)
		}
	}
	requests := containerTotals(spec, func(c *corev1.Container) corev1.ResourceList { return c.Resources.Requests })
	if len(spec.Resources.Limits) > 0 {
		for name, total := range requests {
			if _, set := spec.Resources.Requests[name]; !set && isPodLevelResource(name) && !isHugePage(name) {
				setResource(&spec.Resources.Requests, name, total)
			}
		}
		for name, limit := range spec.Resources.Limits {
			if _, set := spec.Resources.Requests[name]; !set && isPodLevelResource(name) {
				setResource(&spec.Resources.Requests, name, limit)
			}
		}
	}
	if len(spec.Resources.Limits) == 0 {
		for name, total := range limits {
			if isPodLevelResource(name) && !isHugePage(name) && allContainersLimit(spec, name) {
				setResource(&spec.Resources.Limits, name, total)
			}
		}
	}
}

// containerTotals is what a pod's containers need together: running containers
// and sidecars at once, or the largest of the init containers' steps if that is
// more.
func containerTotals(spec *corev1.PodSpec, of func(*corev1.Container) corev1.ResourceList) corev1.ResourceList {
	total := corev1.ResourceList{}
	for i := range spec.Containers {
		addResources(total, of(&spec.Containers[i]))
	}
	sidecars, peak := corev1.ResourceList{}, corev1.ResourceList{}
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		step := corev1.ResourceList{}
		if isSidecar(c) {
			addResources(total, of(c))
			addResources(sidecars, of(c))
		} else {
			addResources(step, of(c))
		}
		addResources(step, sidecars)
		maxResources(peak, step)
	}
	maxResources(total, peak)
	return total
}

func addResources(total, more corev1.ResourceList) {
	for name, quantity := range more {
		sum := total[name].DeepCopy()
		sum.Add(quantity)
		total[name] = sum
	}
}

func maxResources(most, other corev1.ResourceList) {
	for name, quantity := range other {
		if have, set := most[name]; !set || quantity.Cmp(have) > 0 {
			most[name] = quantity.DeepCopy()
		}
	}
}

func setResource(list *corev1.ResourceList, name corev1.ResourceName, quantity resource.Quantity) {
	if *list == nil {
		*list = corev1.ResourceList{}
	}
	(*list)[name] = quantity.DeepCopy()
}

func allContainersLimit(spec *corev1.PodSpec, name corev1.ResourceName) bool {
	for i := range spec.Containers {
		if _, set := spec.Containers[i].Resources.Limits[name]; !set {
			return false
		}
	}
	for i := range spec.InitContainers {
		if _, set := spec.InitContainers[i].Resources.Limits[name]; !set {
			return false
		}
	}
	return true
}

func isHugePage(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// isPodLevelResource says that requests and limits of a whole pod may name it.
func isPodLevelResource(name corev1.ResourceName) bool {
	return name == corev1.ResourceCPU || name == corev1.ResourceMemory || isHugePage(name)
}

// isSidecar says that an init container goes on running beside the others.
func isSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}
