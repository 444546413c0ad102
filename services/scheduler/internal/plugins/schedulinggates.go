package plugins

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/scheduler/internal/cluster"
	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
)

// schedulingGates holds pods that have scheduling gates (KEP-3521).
type schedulingGates struct{}

func newSchedulingGates(args []byte, _ framework.Handle) (framework.Plugin, error) {
	return schedulingGates{}, none("SchedulingGates", args)
}

func (schedulingGates) Name() string { return "SchedulingGates" }

func (schedulingGates) PreEnqueue(_ context.Context, pod *cluster.Pod) *framework.Status {
	gates := pod.Object.Spec.SchedulingGates
	if len(gates) == 0 {
		return nil
	}
	names := make([]string, len(gates))
	for i, gate := range gates {
		names[i] = gate.Name
	}
	return framework.NewStatus(framework.UnschedulableAndUnresolvable, fmt.Sprintf("waiting for scheduling gates: %v", names))
}

func (schedulingGates) Interests() []framework.Interest {
	return []framework.Interest{{Resource: framework.UnscheduledPod, Actions: framework.UpdatePodGates, Hint: func(pod *corev1.Pod, change framework.Change) bool {
		return change.NewPod != nil && change.NewPod.UID == pod.UID
	}}}
}
