package plugins

import (
	"context"

	"github.com/sampan-io/sampan/services/scheduler/internal/cluster"
	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
)

// nodeName lets a pod that names its node run nowhere else.
type nodeName struct{}

func newNodeName(args []byte, _ framework.Handle) (framework.Plugin, error) {
	return nodeName{}, none("NodeName", args)
}

func (nodeName) Name() string { return "NodeName" }

func (nodeName) PreFilter(_ context.Context, _ *framework.CycleState, pod *cluster.Pod, _ *cluster.Snapshot) (onlyNodes, *framework.Status) {
	if pod.Object.Spec.NodeName == "" {
		return nil, framework.NewStatus(framework.Skip)
	}
	return nil, nil
}

func (nodeName) Filter(_ context.Context, _ *framework.CycleState, pod *cluster.Pod, node *cluster.Node) *framework.Status {
	if wanted := pod.Object.Spec.NodeName; wanted != "" && wanted != node.Name {
		return framework.NewStatus(framework.UnschedulableAndUnresolvable, "node(s) didn't match the requested node name")
	}
	return nil
}

func (nodeName) Interests() []framework.Interest {
	return []framework.Interest{{Resource: framework.NodeResource, Actions: framework.Add}}
}
