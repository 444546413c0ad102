package plugins

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/scheduler/internal/cluster"
	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
)

// nodeUnschedulable keeps pods off cordoned nodes, unless they tolerate that.
type nodeUnschedulable struct{}

func newNodeUnschedulable(args []byte, _ framework.Handle) (framework.Plugin, error) {
	return nodeUnschedulable{}, none("NodeUnschedulable", args)
}

func (nodeUnschedulable) Name() string { return "NodeUnschedulable" }

func (nodeUnschedulable) Filter(_ context.Context, _ *framework.CycleState, pod *cluster.Pod, node *cluster.Node) *framework.Status {
	if !node.Object.Spec.Unschedulable || toleratesUnschedulable(pod.Object) {
		return nil
	}
	return framework.NewStatus(framework.UnschedulableAndUnresolvable, "node(s) were unschedulable")
}

func toleratesUnschedulable(pod *corev1.Pod) bool {
	return tolerates(pod.Spec.Tolerations, &corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
}

func (nodeUnschedulable) Interests() []framework.Interest {
	return []framework.Interest{{Resource: framework.NodeResource, Actions: framework.Add | framework.UpdateNodeTaints, Hint: func(pod *corev1.Pod, change framework.Change) bool {
		return !change.NewNode.Spec.Unschedulable || toleratesUnschedulable(pod)
	}}}
}
