package admission

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/sampan-io/sampan/services/node-agent/internal/qos"
)

// PreemptedReason and PreemptedMessage are what a pod's status says that had to make room,
// upstream's.
const (
	PreemptedReason  = "Preempting"
	PreemptedMessage = "Preempted in order to admit critical pod"
)

// preemptable tells whether the pod may be ended for the critical one.
func preemptable(critical, pod *corev1.Pod) bool {
	if !qos.Critical(pod) {
		return true
	}
	return critical.Spec.Priority != nil && pod.Spec.Priority != nil && *critical.Spec.Priority > *pod.Spec.Priority
}

// Preempt chooses the pods to end so that a critical pod fits, which is rejected for want
// of resources alone: as few of the better classes of service as can be, as upstream does.
// It is nil if the pod is not critical, if something else is in its way, or if ending all
// others would not be enough.
func (n Node) Preempt(pod *corev1.Pod, others []*corev1.Pod) []*corev1.Pod {
	rest := active(others)
	if !qos.Critical(pod) {
		return nil
	}
	for _, check := range n.checks() {
		if check.other && check.run(pod, rest) != nil {
			return nil
		}
	}
	short := n.shortages(pod, rest)
	if len(short) == 0 {
		return nil
	}
	classes := map[corev1.PodQOSClass][]*corev1.Pod{}
	for _, other := range rest {
		if preemptable(pod, other) {
			class := qos.Class(other)
			classes[class] = append(classes[class], other)
		}
	}
	least, middle, best := classes[corev1.PodQOSBestEffort], classes[corev1.PodQOSBurstable], classes[corev1.PodQOSGuaranteed]
	if len(short.without(slices.Concat(least, middle, best))) > 0 {
		return nil
	}
	fromBest := short.without(slices.Concat(least, middle)).nearest(best)
	fromMiddle := short.without(slices.Concat(least, fromBest)).nearest(middle)
	fromLeast := short.without(slices.Concat(fromBest, fromMiddle)).nearest(least)
	return slices.Concat(fromLeast, fromMiddle, fromBest)
}

// amounts are of resources: CPU in thousandths, all others in their unit.
type amounts map[corev1.ResourceName]int64

// shortages are what the node lacks for the pod.
func (n Node) shortages(pod *corev1.Pod, others []*corev1.Pod) amounts {
	short := amounts{}
	allocatable, used, wanted := n.Allocatable(), usedBy(others), requests(pod)
	for _, name := range checked(wanted, allocatable) {
		if missing := amount(name, wanted[name]) + amount(name, used[name]) - amount(name, allocatable[name]); missing > 0 && amount(name, wanted[name]) > 0 {
			short[name] = missing
		}
	}
	return short
}

// without is what is lacking still when these pods are gone.
func (a amounts) without(pods []*corev1.Pod) amounts {
	left := amounts{}
	for name, missing := range a {
		for _, pod := range pods {
			missing -= amount(name, requests(pod)[name])
		}
		if missing > 0 {
			left[name] = missing
		}
	}
	return left
}

// nearest picks pods one after the other: each time the one that leaves the least to
// find, and of equal ones that with the smaller requests.
func (a amounts) nearest(pods []*corev1.Pod) []*corev1.Pod {
	var chosen []*corev1.Pod
	rest := slices.Clone(pods)
	for len(a) > 0 && len(rest) > 0 {
		at := 0
		for i := range rest[1:] {
			this, other := a.distance(rest[i+1]), a.distance(rest[at])
			if this < other || (this == other && smaller(rest[i+1], rest[at])) {
				at = i + 1
			}
		}
		chosen = append(chosen, rest[at])
		a = a.without(rest[at : at+1])
		rest = slices.Delete(rest, at, at+1)
	}
	return chosen
}

// distance is how much would be lacking without the pod: the sum of the squares of each
// resource's part.
func (a amounts) distance(pod *corev1.Pod) float64 {
	sum, has := 0.0, requests(pod)
	for name, missing := range a {
		part := float64(missing-amount(name, has[name])) / float64(missing)
		if part > 0 {
			sum += part * part
		}
	}
	return sum
}

func smaller(a, b *corev1.Pod) bool {
	one, other := requests(a), requests(b)
	for _, name := range []corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceCPU} {
		if x, y := amount(name, one[name]), amount(name, other[name]); x != y {
			return x < y
		}
	}
	return false
}

func requests(pod *corev1.Pod) corev1.ResourceList {
	list := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	list[corev1.ResourcePods] = one()
	return list
}
