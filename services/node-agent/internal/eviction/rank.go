package eviction

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Usage is what a pod uses of the node.
type Usage struct {
	Pod        *corev1.Pod
	Memory     int64 // bytes
	Disk       int64 // bytes, of writable layers, logs and emptyDir volumes
	Inodes     int64
	PIDs       int64
	Containers []ContainerUsage
}

// ContainerUsage is what one container uses.
type ContainerUsage struct {
	Name         string
	Memory, Disk int64
}

func (u *Usage) of(name corev1.ResourceName) int64 {
	switch name {
	case corev1.ResourceMemory:
		return u.Memory
	case corev1.ResourceEphemeralStorage:
		return u.Disk
	case "inodes":
		return u.Inodes
	}
	return u.PIDs
}

// request is what the pod has asked for; nobody asks for inodes or processes.
func (u *Usage) request(name corev1.ResourceName) int64 {
	if name != corev1.ResourceMemory && name != corev1.ResourceEphemeralStorage {
		return 0
	}
	request := resourcehelper.PodRequests(u.Pod, resourcehelper.PodResourcesOptions{})[name]
	return request.Value()
}

// Rank orders pods by who is to go first: those that use more than they asked for,
// of these and of the others those of lower priority, then those that are further
// above what they asked for.
func Rank(pods []Usage, name corev1.ResourceName) []Usage {
	return slices.SortedStableFunc(slices.Values(pods), func(a, b Usage) int {
		above := func(u *Usage) int64 { return u.of(name) - u.request(name) }
		exceeds := func(u *Usage) int {
			if (name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage) && above(u) > 0 {
				return 1
			}
			return 0
		}
		return cmp.Or(
			cmp.Compare(exceeds(&b), exceeds(&a)),
			cmp.Compare(priority(a.Pod), priority(b.Pod)),
			cmp.Compare(above(&b), above(&a)),
		)
	})
}

func priority(pod *corev1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}

// lowMessage is why a pod goes, in upstream's words.
func lowMessage(u *Usage, t Threshold, seen Observation) string {
	name := t.Signal.resource()
	format := func(n int64) string { return amount(name, n).String() }
	var text strings.Builder
	fmt.Fprintf(&text, "The node was low on resource: %s. ", name)
	fmt.Fprintf(&text, "Threshold quantity: %s, available: %s. ", format(t.Value.Of(seen.Capacity)), format(seen.Available))
	for _, c := range u.Containers {
		used := c.Memory
		if name == corev1.ResourceEphemeralStorage {
			used = c.Disk
		}
		request := containerRequest(u.Pod, c.Name, name)
		if (name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage) && used > request.Value() {
			fmt.Fprintf(&text, "Container %s was using %s, request is %s, has larger consumption of %s. ", c.Name, format(used), request.String(), name)
		}
	}
	return text.String()
}

// amount is in kibibytes where it is bytes, as upstream rounds it.
func amount(name corev1.ResourceName, n int64) *resource.Quantity {
	if name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage {
		return resource.NewQuantity(n>>10<<10, resource.BinarySI)
	}
	return resource.NewQuantity(n, resource.DecimalSI)
}

func containerRequest(pod *corev1.Pod, container string, name corev1.ResourceName) resource.Quantity {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == container {
				return list[i].Resources.Requests[name]
			}
		}
	}
	return resource.Quantity{}
}
