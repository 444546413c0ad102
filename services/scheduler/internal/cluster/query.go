package cluster

import (
	"k8s.io/apimachinery/pkg/labels"
)

// Tally is a number per value of one topology key. It stands until the snapshot
// changes.
type Tally struct {
	Key   string
	t     *topology
	by    []int64
	extra map[int32]int64 // changes of a what-if, on top of by
	owned bool            // by is not the index's own
}

// At is the number at the value that node has, and whether it has one.
func (y *Tally) At(node *Node) (int64, bool) {
	id := y.t.id(node.Slot)
	if id < 0 {
		return 0, false
	}
	return y.of(id), true
}

func (y *Tally) of(id int32) int64 {
	n := int64(0)
	if int(id) < len(y.by) {
		n = y.by[id]
	}
	if y.extra != nil {
		n += y.extra[id]
	}
	return n
}

// Add changes the number at the value that node has, for this tally only.
func (y *Tally) Add(node *Node, delta int64) {
	id := y.t.id(node.Slot)
	if id < 0 {
		return
	}
	if y.extra == nil {
		y.extra = map[int32]int64{}
	}
	y.extra[id] += delta
}

// Empty says whether every number is zero.
func (y *Tally) Empty() bool {
	for id := range y.t.nodes {
		if y.of(int32(id)) != 0 {
			return false
		}
	}
	return true
}

// Smallest is the smallest number over the values that at least one node has, and
// how many such values there are. With no value it is 0, 0.
func (y *Tally) Smallest() (smallest int64, values int) {
	for id, nodes := range y.t.nodes {
		if nodes == 0 {
			continue
		}
		n := y.of(int32(id))
		if values == 0 || n < smallest {
			smallest = n
		}
		values++
	}
	return smallest, values
}

// Clone is a tally whose changes do not show in y.
func (y *Tally) Clone() *Tally {
	copied := *y
	copied.extra = nil
	for id, delta := range y.extra {
		if copied.extra == nil {
			copied.extra = map[int32]int64{}
		}
		copied.extra[id] = delta
	}
	return &copied
}

// merge adds other, over the same topology.
func (y *Tally) merge(other []int64, factor int64) {
	if !y.owned {
		by := make([]int64, len(y.t.nodes))
		copy(by, y.by)
		y.by, y.owned = by, true
	}
	for id, n := range other {
		if n != 0 {
			y.by = bump(y.by, int32(id), n*factor)
		}
	}
}

// NewTally is zero everywhere.
func (s *Snapshot) NewTally(key string) *Tally {
	return &Tally{Key: key, t: s.index.topology(key, s.nodes)}
}

// CountPods tallies the pods in namespace that selector matches and that are not
// being deleted.
func (s *Snapshot) CountPods(key, namespace string, selector labels.Selector) *Tally {
	y := s.NewTally(key)
	for _, c := range s.index.classes {
		if c.namespace == namespace && !c.terminating && selector.Matches(c.labels) {
			y.take(&c.counts, 1)
		}
	}
	return y
}

// CountPodsOn is how many pods CountPods counts on node alone.
func (s *Snapshot) CountPodsOn(node *Node, namespace string, selector labels.Selector) int64 {
	var n int64
	for _, c := range s.index.classes {
		if c.namespace == namespace && !c.terminating && selector.Matches(c.labels) {
			n += c.bySlot[node.Slot]
		}
	}
	return n
}

// PodsBySlot is the numbers that CountPods adds up, per node: by slot.
func (s *Snapshot) PodsBySlot(namespace string, selector labels.Selector) map[int]int64 {
	var only, sum map[int]int64
	for _, c := range s.index.classes {
		if c.namespace != namespace || c.terminating || !selector.Matches(c.labels) {
			continue
		}
		if only == nil {
			only = c.bySlot
			continue
		}
		if sum == nil {
			sum = make(map[int]int64, len(only)+len(c.bySlot))
			for slot, n := range only {
				sum[slot] = n
			}
		}
		for slot, n := range c.bySlot {
			sum[slot] += n
		}
	}
	if sum != nil {
		return sum
	}
	return only
}

// CountTerm tallies the pods on nodes that term selects, pods being deleted too.
func (s *Snapshot) CountTerm(term *Term) *Tally {
	y := s.NewTally(term.TopologyKey)
	s.eachSelected(func(c *class) bool { return term.Matches(c.namespace, s.namespaces[c.namespace], c.labels) }, func(c *class) { y.take(&c.counts, 1) })
	return y
}

// CountTerms tallies the pods on nodes that all of terms select, by the topology
// key of each.
func (s *Snapshot) CountTerms(terms []Term) []*Tally {
	tallies := make([]*Tally, len(terms))
	for i := range terms {
		tallies[i] = s.NewTally(terms[i].TopologyKey)
	}
	s.eachSelected(func(c *class) bool {
		for i := range terms {
			if !terms[i].Matches(c.namespace, s.namespaces[c.namespace], c.labels) {
				return false
			}
		}
		return true
	}, func(c *class) {
		for _, y := range tallies {
			y.take(&c.counts, 1)
		}
	})
	return tallies
}

func (s *Snapshot) eachSelected(selected func(*class) bool, do func(*class)) {
	for _, c := range s.index.classes {
		if selected(c) {
			do(c)
		}
	}
}

// take adds counts. The first are taken as they are, without a copy.
func (y *Tally) take(c *counts, factor int64) {
	by := c.by(y.t, y.Key)
	if y.by == nil && factor == 1 {
		y.by = by
		return
	}
	y.merge(by, factor)
}

// AgainstPod tallies, per topology key, the required anti-affinity terms of pods on
// nodes that select pod.
func (s *Snapshot) AgainstPod(pod *Pod) []*Tally {
	byKey := map[string]*Tally{}
	var found []*Tally
	s.eachTerm(requiredAnti, pod, func(group *termGroup) {
		found = s.tally(byKey, found, group, 1)
	})
	return found
}

// Weights are how the terms of pods on nodes count for a pod that they select.
type Weights struct {
	// HardAffinity is the weight of a required affinity term.
	HardAffinity int64
}

// DrawnToPod tallies, per topology key, how much pods on nodes want pod near
// (positive) or far (negative) by their affinity terms.
func (s *Snapshot) DrawnToPod(pod *Pod, weights Weights) []*Tally {
	byKey := map[string]*Tally{}
	var found []*Tally
	if weights.HardAffinity > 0 {
		s.eachTerm(requiredAffinity, pod, func(group *termGroup) { found = s.tally(byKey, found, group, weights.HardAffinity) })
	}
	s.eachTerm(preferredAffinity, pod, func(group *termGroup) { found = s.tally(byKey, found, group, 1) })
	s.eachTerm(preferredAnti, pod, func(group *termGroup) { found = s.tally(byKey, found, group, -1) })
	return found
}

func (s *Snapshot) eachTerm(kind termKind, pod *Pod, do func(*termGroup)) {
	groups := s.index.terms[kind]
	if len(groups) == 0 {
		return
	}
	nsLabels := s.namespaces[pod.Object.Namespace]
	for _, group := range groups {
		if group.term.Matches(pod.Object.Namespace, nsLabels, pod.Object.Labels) {
			do(group)
		}
	}
}

func (s *Snapshot) tally(byKey map[string]*Tally, found []*Tally, group *termGroup, factor int64) []*Tally {
	key := group.term.TopologyKey
	y := byKey[key]
	if y == nil {
		y = s.NewTally(key)
		byKey[key] = y
		found = append(found, y)
	}
	y.take(&group.counts, factor)
	return found
}

// EveryNodeHas says whether all nodes have all of the labels.
func (s *Snapshot) EveryNodeHas(keys ...string) bool {
	for _, key := range keys {
		if s.index.topology(key, s.nodes).total != len(s.Nodes()) {
			return false
		}
	}
	return true
}

// SmallestWhere is Smallest over the values at which present is above zero.
func (y *Tally) SmallestWhere(present *Tally) (smallest int64, values int) {
	for id := range y.t.nodes {
		if present.of(int32(id)) <= 0 {
			continue
		}
		n := y.of(int32(id))
		if values == 0 || n < smallest {
			smallest = n
		}
		values++
	}
	return smallest, values
}

// Values is how many values nodes have together, without those whose slot is
// ignored; nodes without the label have one value more, the empty one.
func (y *Tally) Values(nodes []*Node, ignored map[int]bool) int {
	seen := make([]bool, len(y.t.nodes)+1)
	count := 0
	for _, node := range nodes {
		if ignored[node.Slot] {
			continue
		}
		if at := y.t.id(node.Slot) + 1; !seen[at] {
			seen[at] = true
			count++
		}
	}
	return count
}
