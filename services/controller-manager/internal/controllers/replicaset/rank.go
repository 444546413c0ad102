package replicaset

import (
	"cmp"
	"math/bits"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/controller-manager/internal/pods"
)

func metaTime(t time.Time) metav1.Time { return metav1.NewTime(t) }

// victims picks count of the active pods to delete: those whose loss costs least
// come first.
func victims(active, related []*corev1.Pod, count int, now time.Time) []*corev1.Pod {
	if count >= len(active) {
		return slices.Clone(active)
	}
	crowd := map[string]int{}
	for _, pod := range related {
		if pods.Active(pod) {
			crowd[pod.Spec.NodeName]++
		}
	}
	ranked := slices.Clone(active)
	slices.SortStableFunc(ranked, func(a, b *corev1.Pod) int {
		return rank(a, b, crowd[a.Spec.NodeName], crowd[b.Spec.NodeName], now)
	})
	return ranked[:count]
}

// rank orders two pods by which should be deleted first, by upstream's criteria
// in their order: without a node; pending, then unknown, then running; not
// ready; lower pod-deletion-cost; on a node with more pods of the same owner;
// ready for a shorter time; with more container restarts; created later. Times
// are compared on a logarithmic scale, so that pods of about one age rank alike
// and the UID decides.
func rank(a, b *corev1.Pod, crowdA, crowdB int, now time.Time) int {
	if c := compareBool(a.Spec.NodeName == "", b.Spec.NodeName == ""); c != 0 {
		return c
	}
	if c := cmp.Compare(phaseOrder(a), phaseOrder(b)); c != 0 {
		return c
	}
	readyA, readyB := pods.Ready(a), pods.Ready(b)
	if c := compareBool(!readyA, !readyB); c != 0 {
		return c
	}
	if c := cmp.Compare(deletionCost(a), deletionCost(b)); c != 0 {
		return c
	}
	if c := cmp.Compare(crowdB, crowdA); c != 0 {
		return c
	}
	if readyA && readyB {
		since, other := readySince(a), readySince(b)
		if !since.Equal(&other) {
			return compareAge(since, other, a, b, now)
		}
	}
	if c := compareRestarts(a, b); c != 0 {
		return c
	}
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return compareAge(a.CreationTimestamp, b.CreationTimestamp, a, b, now)
	}
	return 0
}

// compareBool puts true first.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}

func phaseOrder(pod *corev1.Pod) int {
	switch pod.Status.Phase {
	case corev1.PodPending:
		return 0
	case corev1.PodUnknown:
		return 1
	default:
		return 2
	}
}

func deletionCost(pod *corev1.Pod) int32 {
	cost, err := strconv.ParseInt(pod.Annotations[corev1.PodDeletionCost], 10, 32)
	if err != nil {
		return 0 // absent or malformed: as if not set
	}
	return int32(cost)
}

func readySince(pod *corev1.Pod) metav1.Time {
	if c := pods.Condition(pod, corev1.PodReady); c != nil && c.Status == corev1.ConditionTrue {
		return c.LastTransitionTime
	}
	return metav1.Time{}
}

// compareAge puts the younger first. A zero time counts as younger than any.
func compareAge(since, other metav1.Time, a, b *corev1.Pod, now time.Time) int {
	if since.IsZero() || other.IsZero() {
		return compareBool(since.IsZero(), other.IsZero())
	}
	if c := cmp.Compare(magnitude(now.Sub(since.Time)), magnitude(now.Sub(other.Time))); c != 0 {
		return c
	}
	return cmp.Compare(a.UID, b.UID)
}

// magnitude is the binary logarithm of a duration in nanoseconds; negative ones
// rank below all others.
func magnitude(d time.Duration) int {
	if d < 0 {
		return -1
	}
	return bits.Len64(uint64(d))
}

// compareRestarts puts the pod first whose most restarted container has more
// restarts; sidecars are compared only when the containers are even.
func compareRestarts(a, b *corev1.Pod) int {
	regularA, initA := restarts(a)
	regularB, initB := restarts(b)
	if c := cmp.Compare(regularB, regularA); c != 0 {
		return c
	}
	return cmp.Compare(initB, initA)
}

func restarts(pod *corev1.Pod) (regular, sidecar int32) {
	for i := range pod.Status.ContainerStatuses {
		regular = max(regular, pod.Status.ContainerStatuses[i].RestartCount)
	}
	always := map[string]bool{}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		always[c.Name] = c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
	}
	for i := range pod.Status.InitContainerStatuses {
		if s := &pod.Status.InitContainerStatuses[i]; always[s.Name] {
			sidecar = max(sidecar, s.RestartCount)
		}
	}
	return regular, sidecar
}
