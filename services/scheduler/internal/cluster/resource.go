// Package cluster is the scheduler's model of nodes and the pods on them: values
// that never change once made, and a snapshot of them with indexes by topology
// value. It knows no API client.
package cluster

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// What a container without requests counts as when nodes are scored, so that a
// crowd of such pods does not look free.
const (
	defaultMilliCPU = 100
	defaultMemory   = 200 * 1024 * 1024
)

// Resource is an amount of each resource: CPU in thousandths of a core, the rest
// in bytes or counts.
type Resource struct {
	MilliCPU         int64
	Memory           int64
	EphemeralStorage int64
	Pods             int64
	Scalars          map[corev1.ResourceName]int64 // extended resources and huge pages
}

// NewResource reads list.
func NewResource(list corev1.ResourceList) Resource {
	var r Resource
	for name, quantity := range list {
		switch name {
		case corev1.ResourceCPU:
			r.MilliCPU = quantity.MilliValue()
		case corev1.ResourceMemory:
			r.Memory = quantity.Value()
		case corev1.ResourceEphemeralStorage:
			r.EphemeralStorage = quantity.Value()
		case corev1.ResourcePods:
			r.Pods = quantity.Value()
		default:
			if r.Scalars == nil {
				r.Scalars = map[corev1.ResourceName]int64{}
			}
			r.Scalars[name] = quantity.Value()
		}
	}
	return r
}

// Of is the amount of the named resource.
func (r *Resource) Of(name corev1.ResourceName) int64 {
	switch name {
	case corev1.ResourceCPU:
		return r.MilliCPU
	case corev1.ResourceMemory:
		return r.Memory
	case corev1.ResourceEphemeralStorage:
		return r.EphemeralStorage
	case corev1.ResourcePods:
		return r.Pods
	default:
		return r.Scalars[name]
	}
}

// Plus is r and sign times other. The result shares no map with either.
func (r Resource) Plus(other *Resource, sign int64) Resource {
	r.MilliCPU += sign * other.MilliCPU
	r.Memory += sign * other.Memory
	r.EphemeralStorage += sign * other.EphemeralStorage
	if len(other.Scalars) > 0 {
		scalars := make(map[corev1.ResourceName]int64, len(r.Scalars)+len(other.Scalars))
		maps.Copy(scalars, r.Scalars)
		for name, amount := range other.Scalars {
			scalars[name] += sign * amount
		}
		r.Scalars = scalars
	}
	return r
}

// requests is what pod asks for: the larger of its init phase and its running
// phase with sidecars counted in both, its pod-level requests where set, and its
// overhead. A resize that is under way counts with the larger of old and new.
func requests(pod *corev1.Pod) Resource {
	return NewResource(resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{UseStatusResources: true}))
}

// scoredRequests is requests with a default for containers that name no CPU or
// memory.
func scoredRequests(pod *corev1.Pod) Resource {
	missing := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(defaultMilliCPU, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(defaultMemory, resource.BinarySI),
	}
	if set := resourcehelper.IsPodLevelRequestsSet(pod); set {
		// What the pod asks for as a whole stands in for its containers.
		for name := range missing {
			if _, ok := pod.Spec.Resources.Requests[name]; ok {
				delete(missing, name)
			}
		}
	}
	return NewResource(resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{
		UseStatusResources: true, NonMissingContainerRequests: missing,
	}))
}
