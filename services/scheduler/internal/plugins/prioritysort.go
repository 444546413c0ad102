package plugins

import (
	"cmp"

	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
)

// prioritySort lets pods of higher priority go first, then those that have waited
// longer.
type prioritySort struct{}

func newPrioritySort(args []byte, _ framework.Handle) (framework.Plugin, error) {
	return prioritySort{}, none("PrioritySort", args)
}

func (prioritySort) Name() string { return "PrioritySort" }

func (prioritySort) Compare(a, b *framework.QueuedPod) int {
	if c := cmp.Compare(corev1helpers.PodPriority(b.Object), corev1helpers.PodPriority(a.Object)); c != 0 {
		return c
	}
	return a.Timestamp.Compare(b.Timestamp)
}
