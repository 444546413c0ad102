package queue

import (
	"container/heap"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sampan-io/sampan/services/scheduler/internal/cluster"
	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
)

// podHeap is a heap of pods that finds them by UID too.
type podHeap struct {
	pods    []*framework.QueuedPod
	at      map[types.UID]int
	compare func(a, b *framework.QueuedPod) int
}

func newHeap(compare func(a, b *framework.QueuedPod) int) *podHeap {
	return &podHeap{at: map[types.UID]int{}, compare: compare}
}

func (h *podHeap) Len() int           { return len(h.pods) }
func (h *podHeap) Less(i, j int) bool { return h.compare(h.pods[i], h.pods[j]) < 0 }

func (h *podHeap) Swap(i, j int) {
	h.pods[i], h.pods[j] = h.pods[j], h.pods[i]
	h.at[h.pods[i].Object.UID], h.at[h.pods[j].Object.UID] = i, j
}

func (h *podHeap) Push(x any) {
	queued := x.(*framework.QueuedPod)
	h.at[queued.Object.UID] = len(h.pods)
	h.pods = append(h.pods, queued)
}

func (h *podHeap) Pop() any {
	last := len(h.pods) - 1
	queued := h.pods[last]
	h.pods[last] = nil
	h.pods = h.pods[:last]
	delete(h.at, queued.Object.UID)
	return queued
}

func (h *podHeap) has(uid types.UID) bool { _, ok := h.at[uid]; return ok }

func (h *podHeap) remove(uid types.UID) {
	if at, ok := h.at[uid]; ok {
		heap.Remove(h, at)
	}
}

// replace gives a pod that is in the heap its new version.
func (h *podHeap) replace(pod *cluster.Pod) bool {
	at, ok := h.at[pod.Object.UID]
	if ok {
		h.pods[at].Pod = pod
		heap.Fix(h, at)
	}
	return ok
}

// changesPlacement says whether the change from old to pod can make a difference to
// where pod may run. What the scheduler itself writes does not.
func changesPlacement(old, pod *corev1.Pod) bool {
	return !equality.Semantic.DeepEqual(old.Spec, pod.Spec) || !equality.Semantic.DeepEqual(old.Labels, pod.Labels) ||
		(old.DeletionTimestamp == nil) != (pod.DeletionTimestamp == nil)
}
