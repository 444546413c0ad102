package plugins

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	kubeschedulerv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/sampan-io/sampan/services/scheduler/internal/cluster"
	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
)

const fitName = "NodeResourcesFit"

// Reasons of refusals.
const (
	tooManyPods        = "Too many pods"
	insufficient       = "Insufficient "
	insufficientCPU    = insufficient + string(corev1.ResourceCPU)
	insufficientMemory = insufficient + string(corev1.ResourceMemory)
)

// nodeResourcesFit keeps pods off nodes that have not enough left, and scores
// nodes by how much is left.
type nodeResourcesFit struct {
	ignored       []string
	ignoredGroups []string
	resources     []kubeschedulerv1.ResourceSpec
	// score is of one resource: 0..MaxNodeScore.
	score func(requested, allocatable int64) int64
	// common is the refusals for one reason alone, by code and reason.
	common map[framework.Code]map[string]*framework.Status
}

func newNodeResourcesFit(args []byte, _ framework.Handle) (framework.Plugin, error) {
	var parsed struct {
		IgnoredResources      []string                         `json:"ignoredResources,omitempty"`
		IgnoredResourceGroups []string                         `json:"ignoredResourceGroups,omitempty"`
		ScoringStrategy       *kubeschedulerv1.ScoringStrategy `json:"scoringStrategy,omitempty"`
	}
	if err := decode(fitName, args, &parsed); err != nil {
		return nil, err
	}
	plugin := &nodeResourcesFit{
		ignored: parsed.IgnoredResources, ignoredGroups: parsed.IgnoredResourceGroups,
		resources: cpuAndMemory(), score: leastAllocated, common: map[framework.Code]map[string]*framework.Status{},
	}
	for _, code := range []framework.Code{framework.Unschedulable, framework.UnschedulableAndUnresolvable} {
		plugin.common[code] = map[string]*framework.Status{}
		for _, reason := range []string{tooManyPods, insufficientCPU, insufficientMemory} {
			plugin.common[code][reason] = refusal(fitName, code, reason)
		}
	}
	strategy := parsed.ScoringStrategy
	if strategy == nil {
		return plugin, nil
	}
	if len(strategy.Resources) > 0 {
		plugin.resources = withWeights(strategy.Resources)
	}
	switch strategy.Type {
	case "", kubeschedulerv1.LeastAllocated:
	case kubeschedulerv1.MostAllocated:
		plugin.score = mostAllocated
	case kubeschedulerv1.RequestedToCapacityRatio:
		shape, err := newShape(strategy.RequestedToCapacityRatio)
		if err != nil {
			return nil, err
		}
		plugin.score = shape.score
	default:
		return nil, fmt.Errorf("arguments of NodeResourcesFit: scoringStrategy.type: %q is not supported", strategy.Type)
	}
	return plugin, nil
}

func cpuAndMemory() []kubeschedulerv1.ResourceSpec {
	return []kubeschedulerv1.ResourceSpec{{Name: string(corev1.ResourceCPU), Weight: 1}, {Name: string(corev1.ResourceMemory), Weight: 1}}
}

func withWeights(resources []kubeschedulerv1.ResourceSpec) []kubeschedulerv1.ResourceSpec {
	made := slices.Clone(resources)
	for i := range made {
		if made[i].Weight == 0 {
			made[i].Weight = 1
		}
	}
	return made
}

func (*nodeResourcesFit) Name() string { return fitName }

func (p *nodeResourcesFit) Filter(_ context.Context, _ *framework.CycleState, pod *cluster.Pod, node *cluster.Node) *framework.Status {
	var space [8]string
	reasons, hopeless := p.lacking(space[:0], &pod.Requests, node)
	if len(reasons) == 0 {
		return nil
	}
	code := framework.Unschedulable
	if hopeless {
		code = framework.UnschedulableAndUnresolvable
	}
	if made := p.common[code][reasons[0]]; len(reasons) == 1 && made != nil {
		return made
	}
	return framework.NewStatus(code, slices.Clone(reasons)...)
}

// lacking appends a reason for each resource that node has not enough of. Hopeless says
// that one would not be enough on the empty node either.
func (p *nodeResourcesFit) lacking(reasons []string, want *cluster.Resource, node *cluster.Node) (_ []string, hopeless bool) {
	if int64(len(node.Pods))+1 > node.Allocatable.Pods {
		reasons = append(reasons, tooManyPods)
	}
	check := func(reason string, want, have, used int64) {
		if want > 0 && want > have-used {
			reasons = append(reasons, reason)
			hopeless = hopeless || want > have
		}
	}
	check(insufficientCPU, want.MilliCPU, node.Allocatable.MilliCPU, node.Requested.MilliCPU)
	check(insufficientMemory, want.Memory, node.Allocatable.Memory, node.Requested.Memory)
	check(insufficient+string(corev1.ResourceEphemeralStorage), want.EphemeralStorage, node.Allocatable.EphemeralStorage, node.Requested.EphemeralStorage)
	if len(want.Scalars) == 0 {
		return reasons, hopeless
	}
	names := make([]corev1.ResourceName, 0, len(want.Scalars))
	for name := range want.Scalars {
		if !p.ignores(string(name)) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		check(insufficient+string(name), want.Scalars[name], node.Allocatable.Scalars[name], node.Requested.Scalars[name])
	}
	return reasons, hopeless
}

func (p *nodeResourcesFit) ignores(name string) bool {
	group, _, grouped := strings.Cut(name, "/")
	return slices.Contains(p.ignored, name) || grouped && slices.Contains(p.ignoredGroups, group)
}

func (p *nodeResourcesFit) Score(_ context.Context, _ *framework.CycleState, pod *cluster.Pod, node *cluster.Node) (int64, *framework.Status) {
	var sum, weights int64
	for _, resource := range p.resources {
		requested, allocatable, ok := scoredUse(pod, node, corev1.ResourceName(resource.Name))
		if !ok {
			continue
		}
		sum += p.score(requested, allocatable) * resource.Weight
		weights += resource.Weight
	}
	if weights == 0 {
		return 0, nil
	}
	return sum / weights, nil
}

// scoredUse is what of a resource would be requested on node with pod, counting
// containers without requests by a default; ok is false when the resource does not
// count on this node or for this pod.
func scoredUse(pod *cluster.Pod, node *cluster.Node, name corev1.ResourceName) (requested, allocatable int64, ok bool) {
	allocatable = node.Allocatable.Of(name)
	if allocatable == 0 {
		return 0, 0, false
	}
	switch name {
	case corev1.ResourceCPU, corev1.ResourceMemory:
		return node.Scored.Of(name) + pod.Scored.Of(name), allocatable, true
	case corev1.ResourceEphemeralStorage:
		return node.Requested.Of(name) + pod.Requests.Of(name), allocatable, true
	}
	want := pod.Requests.Of(name)
	return node.Requested.Of(name) + want, allocatable, want > 0
}

func leastAllocated(requested, allocatable int64) int64 {
	if requested > allocatable {
		return 0
	}
	return (allocatable - requested) * framework.MaxNodeScore / allocatable
}

func mostAllocated(requested, allocatable int64) int64 {
	return min(requested, allocatable) * framework.MaxNodeScore / allocatable
}

func (p *nodeResourcesFit) Interests() []framework.Interest {
	return []framework.Interest{
		{Resource: framework.PodResource, Actions: framework.Delete | framework.UpdatePodScaleDown},
		{Resource: framework.NodeResource, Actions: framework.Add | framework.UpdateNodeAllocatable, Hint: func(pod *corev1.Pod, change framework.Change) bool {
			waiting, err := cluster.NewPod(pod)
			if err != nil {
				return true
			}
			// Whether it fits the empty node; what is on it is for the filter to say.
			reasons, _ := p.lacking(nil, &waiting.Requests, cluster.NewNode(change.NewNode, 0))
			return len(reasons) == 0
		}},
	}
}
