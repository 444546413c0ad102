package plugins

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/sampan-io/sampan/services/scheduler/internal/cluster"
	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
)

// onlyNodes is the names of the only nodes that come into question.
type onlyNodes = sets.Set[string]

const nodeAffinityName = "NodeAffinity"

// nodeAffinity matches nodeSelector and the node affinity of pods.
type nodeAffinity struct {
	added     *nodeaffinity.NodeSelector // for all pods of the profile
	preferred *nodeaffinity.PreferredSchedulingTerms
	mismatch  *framework.Status
}

func newNodeAffinity(args []byte, _ framework.Handle) (framework.Plugin, error) {
	var parsed struct {
		AddedAffinity *corev1.NodeAffinity `json:"addedAffinity,omitempty"`
	}
	if err := decode(nodeAffinityName, args, &parsed); err != nil {
		return nil, err
	}
	plugin := &nodeAffinity{mismatch: refusal(nodeAffinityName, framework.UnschedulableAndUnresolvable, "node(s) didn't match Pod's node affinity/selector")}
	if parsed.AddedAffinity == nil {
		return plugin, nil
	}
	var err error
	if required := parsed.AddedAffinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		if plugin.added, err = nodeaffinity.NewNodeSelector(required); err != nil {
			return nil, fmt.Errorf("addedAffinity of NodeAffinity: %w", err)
		}
	}
	if preferred := parsed.AddedAffinity.PreferredDuringSchedulingIgnoredDuringExecution; len(preferred) > 0 {
		if plugin.preferred, err = nodeaffinity.NewPreferredSchedulingTerms(preferred); err != nil {
			return nil, fmt.Errorf("addedAffinity of NodeAffinity: %w", err)
		}
	}
	return plugin, nil
}

func (*nodeAffinity) Name() string { return nodeAffinityName }

func requiredTerms(pod *corev1.Pod) []corev1.NodeSelectorTerm {
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	}
	return nil
}

// restricted says whether pod chooses among nodes.
func restricted(pod *corev1.Pod) bool {
	return len(pod.Spec.NodeSelector) > 0 || pod.Spec.Affinity != nil && pod.Spec.Affinity.NodeAffinity != nil &&
		pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil
}

func (p *nodeAffinity) PreFilter(_ context.Context, state *framework.CycleState, pod *cluster.Pod, _ *cluster.Snapshot) (onlyNodes, *framework.Status) {
	if !restricted(pod.Object) && p.added == nil {
		return nil, framework.NewStatus(framework.Skip)
	}
	state.Write(nodeAffinityName, nodeaffinity.GetRequiredNodeAffinity(pod.Object))
	names, conflict := namedNodes(requiredTerms(pod.Object))
	if conflict {
		return nil, framework.NewStatus(framework.UnschedulableAndUnresolvable, "pod affinity terms conflict")
	}
	return names, nil
}

// namedNodes is the nodes that terms name by metadata.name, nil when one of them
// does not. A term that names two nodes at once can match none.
func namedNodes(terms []corev1.NodeSelectorTerm) (names onlyNodes, conflict bool) {
	for _, term := range terms {
		var named onlyNodes
		for _, field := range term.MatchFields {
			if field.Key == metav1.ObjectNameField && field.Operator == corev1.NodeSelectorOpIn {
				set := sets.New(field.Values...)
				if named == nil {
					named = set
				} else {
					named = named.Intersection(set)
				}
			}
		}
		if named == nil {
			return nil, false
		}
		if names == nil {
			names = sets.New[string]()
		}
		names = names.Union(named)
	}
	return names, names != nil && len(names) == 0
}

func (p *nodeAffinity) Filter(_ context.Context, state *framework.CycleState, pod *cluster.Pod, node *cluster.Node) *framework.Status {
	if p.added != nil && !p.added.Match(node.Object) {
		return framework.NewStatus(framework.UnschedulableAndUnresolvable, "node(s) didn't match scheduler-enforced node affinity")
	}
	required, ok := framework.Read[nodeaffinity.RequiredNodeAffinity](state, nodeAffinityName)
	if !ok {
		required = nodeaffinity.GetRequiredNodeAffinity(pod.Object)
	}
	// Terms that do not parse match nothing; the API does not let them through.
	if match, _ := required.Match(node.Object); !match {
		return p.mismatch
	}
	return nil
}

func (p *nodeAffinity) PreScore(_ context.Context, state *framework.CycleState, pod *cluster.Pod, _ *cluster.Snapshot, _ []*cluster.Node) *framework.Status {
	var terms []corev1.PreferredSchedulingTerm
	if a := pod.Object.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		terms = a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	}
	if len(terms) == 0 && p.preferred == nil {
		return framework.NewStatus(framework.Skip)
	}
	parsed, err := nodeaffinity.NewPreferredSchedulingTerms(terms)
	if err != nil {
		return framework.AsStatus(err)
	}
	state.Write("PreScore"+nodeAffinityName, parsed)
	return nil
}

func (p *nodeAffinity) Score(_ context.Context, state *framework.CycleState, _ *cluster.Pod, node *cluster.Node) (int64, *framework.Status) {
	var score int64
	if p.preferred != nil {
		score += p.preferred.Score(node.Object)
	}
	if terms, ok := framework.Read[*nodeaffinity.PreferredSchedulingTerms](state, "PreScore"+nodeAffinityName); ok {
		score += terms.Score(node.Object)
	}
	return score, nil
}

func (*nodeAffinity) Normalize(_ context.Context, _ *framework.CycleState, _ *cluster.Pod, scores []framework.NodeScore) *framework.Status {
	return framework.DefaultNormalize(false, scores)
}

func (p *nodeAffinity) Interests() []framework.Interest {
	return []framework.Interest{{Resource: framework.NodeResource, Actions: framework.Add | framework.UpdateNodeLabels, Hint: func(pod *corev1.Pod, change framework.Change) bool {
		match, _ := nodeaffinity.GetRequiredNodeAffinity(pod).Match(change.NewNode)
		return match && (p.added == nil || p.added.Match(change.NewNode))
	}}}
}
