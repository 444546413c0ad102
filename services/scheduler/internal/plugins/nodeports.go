package plugins

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/scheduler/internal/cluster"
	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
)

// nodePorts keeps two pods from taking one port of a node.
type nodePorts struct{}

func newNodePorts(args []byte, _ framework.Handle) (framework.Plugin, error) {
	return nodePorts{}, none("NodePorts", args)
}

func (nodePorts) Name() string { return "NodePorts" }

func (nodePorts) PreFilter(_ context.Context, _ *framework.CycleState, pod *cluster.Pod, _ *cluster.Snapshot) (onlyNodes, *framework.Status) {
	if len(pod.Ports) == 0 {
		return nil, framework.NewStatus(framework.Skip)
	}
	return nil, nil
}

func (nodePorts) Filter(_ context.Context, _ *framework.CycleState, pod *cluster.Pod, node *cluster.Node) *framework.Status {
	if !node.PortsFree(pod.Ports) {
		return framework.NewStatus(framework.Unschedulable, "node(s) didn't have free ports for the requested pod ports")
	}
	return nil
}

func (nodePorts) Interests() []framework.Interest {
	return []framework.Interest{
		{Resource: framework.PodResource, Actions: framework.Delete, Hint: func(_ *corev1.Pod, change framework.Change) bool {
			gone, err := cluster.NewPod(change.OldPod)
			return err != nil || len(gone.Ports) > 0
		}},
		{Resource: framework.NodeResource, Actions: framework.Add},
	}
}
