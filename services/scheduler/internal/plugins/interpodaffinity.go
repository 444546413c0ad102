package plugins

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/scheduler/internal/cluster"
	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
)

const interPodAffinityName = "InterPodAffinity"

// interPodAffinity keeps pods near to and away from other pods. Its numbers come
// from the snapshot's index by topology value.
type interPodAffinity struct {
	hardWeight      int64
	ignorePreferred bool // of pods that are on nodes, for pods without terms of their own

	far, shunned, unwanted *framework.Status
}

func newInterPodAffinity(args []byte, _ framework.Handle) (framework.Plugin, error) {
	parsed := struct {
		HardPodAffinityWeight              *int32 `json:"hardPodAffinityWeight,omitempty"`
		IgnorePreferredTermsOfExistingPods bool   `json:"ignorePreferredTermsOfExistingPods,omitempty"`
	}{}
	if err := decode(interPodAffinityName, args, &parsed); err != nil {
		return nil, err
	}
	plugin := &interPodAffinity{hardWeight: 1, ignorePreferred: parsed.IgnorePreferredTermsOfExistingPods}
	plugin.far = refusal(interPodAffinityName, framework.UnschedulableAndUnresolvable, "node(s) didn't match pod affinity rules")
	plugin.shunned = refusal(interPodAffinityName, framework.Unschedulable, "node(s) didn't match pod anti-affinity rules")
	plugin.unwanted = refusal(interPodAffinityName, framework.Unschedulable, "node(s) didn't satisfy existing pods anti-affinity rules")
	if parsed.HardPodAffinityWeight != nil {
		if w := *parsed.HardPodAffinityWeight; w < 0 || w > 100 {
			return nil, fmt.Errorf("arguments of InterPodAffinity: hardPodAffinityWeight: %d is not within 0 and 100", w)
		}
		plugin.hardWeight = int64(*parsed.HardPodAffinityWeight)
	}
	return plugin, nil
}

func (*interPodAffinity) Name() string { return interPodAffinityName }

// affinityState is what PreFilter works out.
type affinityState struct {
	against  []*cluster.Tally // anti-affinity terms of others that select the pod
	affinity []*cluster.Tally // pods that all affinity terms select, by the key of each term
	anti     []*cluster.Tally // pods that an anti-affinity term selects
	first    bool             // the pod selects itself by all its affinity terms
}

// Clone is for what-ifs.
func (s *affinityState) Clone() any {
	return &affinityState{against: cloneTallies(s.against), affinity: cloneTallies(s.affinity), anti: cloneTallies(s.anti), first: s.first}
}

func cloneTallies(from []*cluster.Tally) []*cluster.Tally {
	made := make([]*cluster.Tally, len(from))
	for i, y := range from {
		made[i] = y.Clone()
	}
	return made
}

func (*interPodAffinity) PreFilter(_ context.Context, state *framework.CycleState, pod *cluster.Pod, snapshot *cluster.Snapshot) (onlyNodes, *framework.Status) {
	s := &affinityState{against: snapshot.AgainstPod(pod)}
	if len(pod.RequiredAffinity) > 0 {
		s.affinity = snapshot.CountTerms(pod.RequiredAffinity)
		s.first = selectedByAll(pod.RequiredAffinity, pod, snapshot)
	}
	for i := range pod.RequiredAntiAffinity {
		s.anti = append(s.anti, snapshot.CountTerm(&pod.RequiredAntiAffinity[i]))
	}
	if len(s.against)+len(s.affinity)+len(s.anti) == 0 {
		return nil, framework.NewStatus(framework.Skip)
	}
	state.Write(interPodAffinityName, s)
	return nil, nil
}

func selectedByAll(terms []cluster.Term, pod *cluster.Pod, snapshot *cluster.Snapshot) bool {
	for i := range terms {
		if !selects(&terms[i], pod, snapshot) {
			return false
		}
	}
	return true
}

func selects(term *cluster.Term, pod *cluster.Pod, snapshot *cluster.Snapshot) bool {
	return term.Matches(pod.Object.Namespace, snapshot.NamespaceLabels(pod.Object.Namespace), pod.Object.Labels)
}

func (p *interPodAffinity) Filter(_ context.Context, state *framework.CycleState, pod *cluster.Pod, node *cluster.Node) *framework.Status {
	s, ok := framework.Read[*affinityState](state, interPodAffinityName)
	if !ok {
		return nil
	}
	if !s.near(node) {
		return p.far
	}
	for _, y := range s.anti {
		if n, has := y.At(node); has && n > 0 {
			return p.shunned
		}
	}
	for _, y := range s.against {
		if n, has := y.At(node); has && n > 0 {
			return p.unwanted
		}
	}
	return nil
}

// near says whether each affinity term has a pod at the value of node. The first
// pod of a group that wants its own kind near may go anywhere with the labels.
func (s *affinityState) near(node *cluster.Node) bool {
	all := true
	for _, y := range s.affinity {
		n, has := y.At(node)
		if !has {
			return false
		}
		all = all && n > 0
	}
	if all {
		return true
	}
	for _, y := range s.affinity {
		if !y.Empty() {
			return false
		}
	}
	return s.first
}

func (p *interPodAffinity) AddPod(state *framework.CycleState, pod, other *cluster.Pod, node *cluster.Node, snapshot *cluster.Snapshot) *framework.Status {
	return p.change(state, pod, other, node, snapshot, 1)
}

func (p *interPodAffinity) RemovePod(state *framework.CycleState, pod, other *cluster.Pod, node *cluster.Node, snapshot *cluster.Snapshot) *framework.Status {
	return p.change(state, pod, other, node, snapshot, -1)
}

func (*interPodAffinity) change(state *framework.CycleState, pod, other *cluster.Pod, node *cluster.Node, snapshot *cluster.Snapshot, delta int64) *framework.Status {
	s, ok := framework.Read[*affinityState](state, interPodAffinityName)
	if !ok {
		return nil
	}
	for i := range other.RequiredAntiAffinity {
		if term := &other.RequiredAntiAffinity[i]; selects(term, pod, snapshot) {
			s.changeAgainst(term.TopologyKey, node, snapshot, delta)
		}
	}
	if len(pod.RequiredAffinity) > 0 && selectedByAll(pod.RequiredAffinity, other, snapshot) {
		for _, y := range s.affinity {
			y.Add(node, delta)
		}
	}
	for i := range pod.RequiredAntiAffinity {
		if selects(&pod.RequiredAntiAffinity[i], other, snapshot) {
			s.anti[i].Add(node, delta)
		}
	}
	return nil
}

func (s *affinityState) changeAgainst(key string, node *cluster.Node, snapshot *cluster.Snapshot, delta int64) {
	for _, y := range s.against {
		if y.Key == key {
			y.Add(node, delta)
			return
		}
	}
	y := snapshot.NewTally(key)
	y.Add(node, delta)
	s.against = append(s.against, y)
}

// drawState is what PreScore works out: tallies with a factor each.
type drawState struct {
	tallies []*cluster.Tally
	factors []int64
}

func (p *interPodAffinity) PreScore(_ context.Context, state *framework.CycleState, pod *cluster.Pod, snapshot *cluster.Snapshot, _ []*cluster.Node) *framework.Status {
	s := &drawState{}
	own := len(pod.PreferredAffinity)+len(pod.PreferredAntiAffinity) > 0
	if own || !p.ignorePreferred {
		for _, y := range snapshot.DrawnToPod(pod, cluster.Weights{HardAffinity: p.hardWeight}) {
			s.add(y, 1)
		}
	}
	for i := range pod.PreferredAffinity {
		s.add(snapshot.CountTerm(&pod.PreferredAffinity[i]), int64(pod.PreferredAffinity[i].Weight))
	}
	for i := range pod.PreferredAntiAffinity {
		s.add(snapshot.CountTerm(&pod.PreferredAntiAffinity[i]), -int64(pod.PreferredAntiAffinity[i].Weight))
	}
	if len(s.tallies) == 0 {
		return framework.NewStatus(framework.Skip)
	}
	state.Write("PreScore"+interPodAffinityName, s)
	return nil
}

func (s *drawState) add(y *cluster.Tally, factor int64) {
	s.tallies, s.factors = append(s.tallies, y), append(s.factors, factor)
}

func (*interPodAffinity) Score(_ context.Context, state *framework.CycleState, _ *cluster.Pod, node *cluster.Node) (int64, *framework.Status) {
	s, ok := framework.Read[*drawState](state, "PreScore"+interPodAffinityName)
	if !ok {
		return 0, nil
	}
	var score int64
	for i, y := range s.tallies {
		if n, has := y.At(node); has {
			score += n * s.factors[i]
		}
	}
	return score, nil
}

func (*interPodAffinity) Normalize(_ context.Context, _ *framework.CycleState, _ *cluster.Pod, scores []framework.NodeScore) *framework.Status {
	if len(scores) == 0 {
		return nil
	}
	least, most := scores[0].Score, scores[0].Score
	for _, s := range scores {
		least, most = min(least, s.Score), max(most, s.Score)
	}
	for i := range scores {
		if most == least {
			scores[i].Score = 0
			continue
		}
		scores[i].Score = int64(float64(framework.MaxNodeScore) * (float64(scores[i].Score-least) / float64(most-least)))
	}
	return nil
}

func (*interPodAffinity) Interests() []framework.Interest {
	return []framework.Interest{
		{Resource: framework.PodResource, Actions: framework.Add | framework.Delete | framework.UpdatePodLabels, Hint: affinityHint},
		{Resource: framework.NodeResource, Actions: framework.Add | framework.UpdateNodeLabels},
		{Resource: framework.NamespaceResource, Actions: framework.UpdateNamespaceLabels},
	}
}

// affinityHint looks at changes of pods that the waiting pod's terms name, or
// whose terms may have named it.
func affinityHint(waiting *corev1.Pod, change framework.Change) bool {
	pod, err := cluster.NewPod(waiting)
	if err != nil {
		return true
	}
	terms := append(append([]cluster.Term(nil), pod.RequiredAffinity...), pod.RequiredAntiAffinity...)
	for _, other := range []*corev1.Pod{change.OldPod, change.NewPod} {
		if other == nil {
			continue
		}
		for i := range terms {
			// Namespaces' labels are not at hand: a namespace selector counts as a match.
			if (terms[i].Namespaces.Has(other.Namespace) || !terms[i].NamespaceSelector.Empty() || len(terms[i].Namespaces) == 0) && terms[i].Selector.Matches(labelSet(other)) {
				return true
			}
		}
		if changed, err := cluster.NewPod(other); err != nil || len(changed.RequiredAntiAffinity) > 0 {
			return true
		}
	}
	return false
}
