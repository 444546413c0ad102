package plugins

import (
	"context"
	"errors"
	"fmt"
	"math"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/sampan-io/sampan/services/scheduler/internal/cluster"
	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
)

const spreadName = "PodTopologySpread"

// podTopologySpread spreads pods over topology values. Its numbers come from the
// snapshot's index.
type podTopologySpread struct {
	workloads framework.Workloads
	defaults  []corev1.TopologySpreadConstraint
	system    bool // the defaults are the system's: they do not ask for every label

	unlabelled, skewed *framework.Status
}

func newPodTopologySpread(args []byte, handle framework.Handle) (framework.Plugin, error) {
	var parsed struct {
		DefaultConstraints []corev1.TopologySpreadConstraint `json:"defaultConstraints,omitempty"`
		DefaultingType     string                            `json:"defaultingType,omitempty"`
	}
	if err := decode(spreadName, args, &parsed); err != nil {
		return nil, err
	}
	plugin := &podTopologySpread{workloads: handle.Workloads, defaults: parsed.DefaultConstraints}
	plugin.skewed = refusal(spreadName, framework.Unschedulable, "node(s) didn't match pod topology spread constraints")
	plugin.unlabelled = refusal(spreadName, framework.UnschedulableAndUnresolvable, "node(s) didn't match pod topology spread constraints (missing required label)")
	switch parsed.DefaultingType {
	case "", "System":
		if len(parsed.DefaultConstraints) > 0 {
			return nil, errors.New(`arguments of PodTopologySpread: defaultConstraints want defaultingType "List"`)
		}
		plugin.system = true
		plugin.defaults = []corev1.TopologySpreadConstraint{
			{TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, MaxSkew: 3},
			{TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.ScheduleAnyway, MaxSkew: 5},
		}
	case "List":
		for i, c := range parsed.DefaultConstraints {
			if c.LabelSelector != nil {
				return nil, fmt.Errorf("arguments of PodTopologySpread: defaultConstraints[%d].labelSelector must not be set: it is that of the pod's workload", i)
			}
		}
	default:
		return nil, fmt.Errorf("arguments of PodTopologySpread: defaultingType: %q is not supported", parsed.DefaultingType)
	}
	return plugin, nil
}

func (*podTopologySpread) Name() string { return spreadName }

// constraint is a constraint of one pod.
type constraint struct {
	key         string
	maxSkew     int64
	minDomains  int64
	selector    labels.Selector
	honorNodes  bool // only nodes count that the pod's node affinity matches
	honorTaints bool // only nodes count whose taints the pod tolerates
	self        int64
}

// constraints is those of pod with the given effect.
func (p *podTopologySpread) constraints(pod *corev1.Pod, effect corev1.UnsatisfiableConstraintAction) ([]constraint, error) {
	given := pod.Spec.TopologySpreadConstraints
	var workload labels.Selector
	if len(given) == 0 {
		given = p.defaults
		if p.workloads == nil || !hasEffect(given, effect) {
			return nil, nil
		}
		if workload = p.workloads.Selector(pod); workload.Empty() {
			return nil, nil
		}
	}
	var made []constraint
	for i := range given {
		if given[i].WhenUnsatisfiable != effect {
			continue
		}
		c, err := newConstraint(pod, &given[i], workload)
		if err != nil {
			return nil, err
		}
		made = append(made, c)
	}
	return made, nil
}

func hasEffect(given []corev1.TopologySpreadConstraint, effect corev1.UnsatisfiableConstraintAction) bool {
	for i := range given {
		if given[i].WhenUnsatisfiable == effect {
			return true
		}
	}
	return false
}

func newConstraint(pod *corev1.Pod, given *corev1.TopologySpreadConstraint, workload labels.Selector) (constraint, error) {
	selector := workload
	if selector == nil {
		var err error
		if selector, err = metav1.LabelSelectorAsSelector(given.LabelSelector); err != nil {
			return constraint{}, fmt.Errorf("spread constraint of pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
	}
	for _, key := range given.MatchLabelKeys {
		if value, ok := pod.Labels[key]; ok {
			requirement, err := labels.NewRequirement(key, "in", []string{value})
			if err != nil {
				return constraint{}, fmt.Errorf("matchLabelKeys of pod %s/%s: %w", pod.Namespace, pod.Name, err)
			}
			selector = selector.Add(*requirement)
		}
	}
	c := constraint{
		key: given.TopologyKey, maxSkew: int64(given.MaxSkew), minDomains: 1, selector: selector,
		honorNodes:  given.NodeAffinityPolicy == nil || *given.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor,
		honorTaints: given.NodeTaintsPolicy != nil && *given.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor,
	}
	if given.MinDomains != nil {
		c.minDomains = int64(*given.MinDomains)
	}
	if selector.Matches(labelSet(pod)) {
		c.self = 1
	}
	return c, nil
}

func labelSet(pod *corev1.Pod) labels.Set { return pod.Labels }

func keys(constraints []constraint) []string {
	all := make([]string, len(constraints))
	for i := range constraints {
		all[i] = constraints[i].key
	}
	return all
}

// counts says whether node counts for c.
func (c *constraint) counts(pod *corev1.Pod, required nodeaffinity.RequiredNodeAffinity, node *corev1.Node) bool {
	if c.honorNodes {
		if match, _ := required.Match(node); !match {
			return false
		}
	}
	return !c.honorTaints || !untolerated(pod, node)
}

// all says whether every node counts for c, whichever it is.
func (c *constraint) all(pod *corev1.Pod) bool {
	return !c.honorTaints && (!c.honorNodes || !restricted(pod))
}

// domain is the numbers of one constraint. Where not all nodes count, tally and
// present are of those that do.
type domain struct {
	constraint
	tally   *cluster.Tally
	present *cluster.Tally // nodes that count, by value; nil when all do
	least   int64
	values  int
}

// Clone is for what-ifs.
func (d *domain) clone() *domain {
	copied := *d
	copied.tally = d.tally.Clone()
	return &copied
}

func (d *domain) settle() {
	if d.present == nil {
		d.least, d.values = d.tally.Smallest()
		return
	}
	d.least, d.values = d.tally.SmallestWhere(d.present)
}

// floor is the number to measure skew against: 0 when there are fewer values than
// minDomains.
func (d *domain) floor() int64 {
	if int64(d.values) < d.minDomains {
		return 0
	}
	return d.least
}

// tallyOf counts pods for c over the nodes that count and have all keys.
func tallyOf(c constraint, all []string, pod *corev1.Pod, snapshot *cluster.Snapshot, uniform bool) *domain {
	d := &domain{constraint: c}
	if uniform && c.all(pod) {
		d.tally = snapshot.CountPods(c.key, pod.Namespace, c.selector)
		return d
	}
	required := nodeaffinity.GetRequiredNodeAffinity(pod)
	on := snapshot.PodsBySlot(pod.Namespace, c.selector)
	d.tally, d.present = snapshot.NewTally(c.key), snapshot.NewTally(c.key)
	for _, node := range snapshot.Nodes() {
		if !hasKeys(node.Object, all) || !c.counts(pod, required, node.Object) {
			continue
		}
		d.present.Add(node, 1)
		if n := on[node.Slot]; n > 0 {
			d.tally.Add(node, n)
		}
	}
	return d
}

func hasKeys(node *corev1.Node, all []string) bool {
	for _, key := range all {
		if _, ok := node.Labels[key]; !ok {
			return false
		}
	}
	return true
}

type spreadState struct {
	domains []*domain
	keys    []string
}

// Clone is for what-ifs.
func (s *spreadState) Clone() any {
	copied := &spreadState{keys: s.keys}
	for _, d := range s.domains {
		copied.domains = append(copied.domains, d.clone())
	}
	return copied
}

func (p *podTopologySpread) PreFilter(_ context.Context, state *framework.CycleState, pod *cluster.Pod, snapshot *cluster.Snapshot) (onlyNodes, *framework.Status) {
	constraints, err := p.constraints(pod.Object, corev1.DoNotSchedule)
	if err != nil {
		return nil, framework.AsStatus(err)
	}
	if len(constraints) == 0 {
		return nil, framework.NewStatus(framework.Skip)
	}
	s := &spreadState{keys: keys(constraints)}
	uniform := snapshot.EveryNodeHas(s.keys...)
	for _, c := range constraints {
		d := tallyOf(c, s.keys, pod.Object, snapshot, uniform)
		d.settle()
		s.domains = append(s.domains, d)
	}
	state.Write(spreadName, s)
	return nil, nil
}

func (p *podTopologySpread) Filter(_ context.Context, state *framework.CycleState, _ *cluster.Pod, node *cluster.Node) *framework.Status {
	s, ok := framework.Read[*spreadState](state, spreadName)
	if !ok {
		return nil
	}
	for _, d := range s.domains {
		n, has := d.tally.At(node)
		if !has {
			return p.unlabelled
		}
		if n+d.self-d.floor() > d.maxSkew {
			return p.skewed
		}
	}
	return nil
}

func (p *podTopologySpread) AddPod(state *framework.CycleState, pod, other *cluster.Pod, node *cluster.Node, _ *cluster.Snapshot) *framework.Status {
	return p.change(state, pod, other, node, 1)
}

func (p *podTopologySpread) RemovePod(state *framework.CycleState, pod, other *cluster.Pod, node *cluster.Node, _ *cluster.Snapshot) *framework.Status {
	return p.change(state, pod, other, node, -1)
}

func (*podTopologySpread) change(state *framework.CycleState, pod, other *cluster.Pod, node *cluster.Node, delta int64) *framework.Status {
	s, ok := framework.Read[*spreadState](state, spreadName)
	if !ok || pod.Object.Namespace != other.Object.Namespace || other.Object.DeletionTimestamp != nil || !hasKeys(node.Object, s.keys) {
		return nil
	}
	required := nodeaffinity.GetRequiredNodeAffinity(pod.Object)
	for _, d := range s.domains {
		if d.selector.Matches(labelSet(other.Object)) && d.counts(pod.Object, required, node.Object) {
			d.tally.Add(node, delta)
			d.settle()
		}
	}
	return nil
}

// spreadScore is what PreScore works out for the soft constraints.
type spreadScore struct {
	domains []*domain
	weights []float64
	ignored map[int]bool // slots of nodes that miss a key
}

func (p *podTopologySpread) PreScore(_ context.Context, state *framework.CycleState, pod *cluster.Pod, snapshot *cluster.Snapshot, nodes []*cluster.Node) *framework.Status {
	constraints, err := p.constraints(pod.Object, corev1.ScheduleAnyway)
	if err != nil {
		return framework.AsStatus(err)
	}
	if len(constraints) == 0 {
		return framework.NewStatus(framework.Skip)
	}
	s := &spreadScore{ignored: map[int]bool{}}
	all := keys(constraints)
	if p.system && len(pod.Object.Spec.TopologySpreadConstraints) == 0 {
		all = nil // a cluster without zones is still spread over nodes
	}
	uniform := snapshot.EveryNodeHas(all...)
	for _, node := range nodes {
		if !uniform && !hasKeys(node.Object, all) {
			s.ignored[node.Slot] = true
		}
	}
	for _, c := range constraints {
		d := tallyOf(c, all, pod.Object, snapshot, uniform)
		size := len(nodes) - len(s.ignored)
		if c.key != corev1.LabelHostname {
			size = d.tally.Values(nodes, s.ignored)
		}
		s.domains = append(s.domains, d)
		s.weights = append(s.weights, math.Log(float64(size+2)))
	}
	state.Write("PreScore"+spreadName, s)
	return nil
}

func (*podTopologySpread) Score(_ context.Context, state *framework.CycleState, _ *cluster.Pod, node *cluster.Node) (int64, *framework.Status) {
	s, ok := framework.Read[*spreadScore](state, "PreScore"+spreadName)
	if !ok || s.ignored[node.Slot] {
		return 0, nil
	}
	var score float64
	for i, d := range s.domains {
		if n, has := d.tally.At(node); has {
			score += float64(n)*s.weights[i] + float64(d.maxSkew-1)
		}
	}
	return int64(math.Round(score)), nil
}

func (*podTopologySpread) Normalize(_ context.Context, state *framework.CycleState, _ *cluster.Pod, scores []framework.NodeScore) *framework.Status {
	s, ok := framework.Read[*spreadScore](state, "PreScore"+spreadName)
	if !ok {
		return nil
	}
	least, most := int64(math.MaxInt64), int64(0)
	for _, score := range scores {
		if !s.ignored[score.Node.Slot] {
			least, most = min(least, score.Score), max(most, score.Score)
		}
	}
	for i := range scores {
		switch {
		case s.ignored[scores[i].Node.Slot]:
			scores[i].Score = 0
		case most == 0:
			scores[i].Score = framework.MaxNodeScore
		default:
			scores[i].Score = framework.MaxNodeScore * (most + least - scores[i].Score) / most
		}
	}
	return nil
}

func (p *podTopologySpread) Interests() []framework.Interest {
	return []framework.Interest{
		{Resource: framework.PodResource, Actions: framework.Add | framework.Delete | framework.UpdatePodLabels, Hint: func(pod *corev1.Pod, change framework.Change) bool {
			constraints, err := p.constraints(pod, corev1.DoNotSchedule)
			if err != nil {
				return true
			}
			for _, other := range []*corev1.Pod{change.OldPod, change.NewPod} {
				for i := range constraints {
					if other != nil && other.Namespace == pod.Namespace && constraints[i].selector.Matches(labelSet(other)) {
						return true
					}
				}
			}
			return false
		}},
		{Resource: framework.NodeResource, Actions: framework.Add | framework.Delete | framework.UpdateNodeLabels | framework.UpdateNodeTaints},
	}
}
