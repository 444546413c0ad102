package plugins

import (
	"context"
	"math"

	corev1 "k8s.io/api/core/v1"
	kubeschedulerv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/sampan-io/sampan/services/scheduler/internal/cluster"
	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
)

const balancedName = "NodeResourcesBalancedAllocation"

// nodeResourcesBalancedAllocation prefers nodes whose resources would be used to
// about the same part.
type nodeResourcesBalancedAllocation struct {
	resources []kubeschedulerv1.ResourceSpec
}

func newNodeResourcesBalancedAllocation(args []byte, _ framework.Handle) (framework.Plugin, error) {
	var parsed struct {
		Resources []kubeschedulerv1.ResourceSpec `json:"resources,omitempty"`
	}
	if err := decode(balancedName, args, &parsed); err != nil {
		return nil, err
	}
	plugin := &nodeResourcesBalancedAllocation{resources: cpuAndMemory()}
	if len(parsed.Resources) > 0 {
		plugin.resources = parsed.Resources
	}
	return plugin, nil
}

func (*nodeResourcesBalancedAllocation) Name() string { return balancedName }

// PreScore skips pods that ask for nothing: they would all go to the one best
// balanced node.
func (p *nodeResourcesBalancedAllocation) PreScore(_ context.Context, _ *framework.CycleState, pod *cluster.Pod, _ *cluster.Snapshot, _ []*cluster.Node) *framework.Status {
	for _, resource := range p.resources {
		if pod.Requests.Of(corev1.ResourceName(resource.Name)) > 0 {
			return nil
		}
	}
	return framework.NewStatus(framework.Skip)
}

func (p *nodeResourcesBalancedAllocation) Score(_ context.Context, _ *framework.CycleState, pod *cluster.Pod, node *cluster.Node) (int64, *framework.Status) {
	var fractions [8]float64
	parts := fractions[:0]
	for _, resource := range p.resources {
		name := corev1.ResourceName(resource.Name)
		allocatable := node.Allocatable.Of(name)
		want := pod.Requests.Of(name)
		plain := name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage
		if allocatable == 0 || !plain && want == 0 {
			continue
		}
		parts = append(parts, min(float64(node.Requested.Of(name)+want)/float64(allocatable), 1))
	}
	return int64((1 - deviation(parts)) * float64(framework.MaxNodeScore)), nil
}

// deviation is the standard deviation of parts.
func deviation(parts []float64) float64 {
	switch len(parts) {
	case 0, 1:
		return 0
	case 2:
		return math.Abs(parts[0]-parts[1]) / 2
	}
	var mean, sum float64
	for _, part := range parts {
		mean += part / float64(len(parts))
	}
	for _, part := range parts {
		sum += (part - mean) * (part - mean)
	}
	return math.Sqrt(sum / float64(len(parts)))
}
