package cluster

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"
)

// index counts pods by topology value, so that affinity and spread are answered
// without walking pods.
//
//	topology key ──> topology: value ──> id (dense)      slot of node ──> id
//	class (namespace, labels, terminating) ──> pods by slot, and per topology key: count by value id
//	term of pods that are there ──────────────> the same, weighted
//
// Pods with the same labels in one namespace are one class: a workload of a
// thousand replicas is looked at once. A count per topology key is made when it
// is first asked for, and kept up to date from then on.
type index struct {
	topologies map[string]*topology
	classes    map[string]*class
	terms      [termKinds]map[string]*termGroup
}

// termKind sorts the terms of pods that are on nodes.
type termKind int

const (
	requiredAnti termKind = iota
	requiredAffinity
	preferredAffinity
	preferredAnti
	termKinds
)

// topology is the values of one node label.
type topology struct {
	ids    map[string]int32
	names  []string
	nodes  []int32 // by value id: nodes that have the value
	bySlot []int32 // by slot: value id, or -1
	values int     // value ids with a node
	total  int     // nodes that have the label
}

// counts is a number per topology value, for several topology keys.
type counts struct {
	bySlot map[int]int64      // weight on each node
	byKey  map[string][]int64 // by topology key, by value id
	total  int64
}

type class struct {
	counts
	namespace   string
	labels      labels.Set
	terminating bool
}

type termGroup struct {
	counts
	term Term
}

func newIndex() *index {
	ix := &index{topologies: map[string]*topology{}, classes: map[string]*class{}}
	for kind := range ix.terms {
		ix.terms[kind] = map[string]*termGroup{}
	}
	return ix
}

// topology is that of a key, made from nodes when it is new.
func (ix *index) topology(key string, nodes map[string]*Node) *topology {
	t := ix.topologies[key]
	if t == nil {
		t = &topology{ids: map[string]int32{}}
		ix.topologies[key] = t
		for _, node := range nodes {
			t.place(node.Slot, value(node, key))
		}
	}
	return t
}

func value(node *Node, key string) *string {
	if node == nil || node.Object == nil {
		return nil
	}
	if v, ok := node.Object.Labels[key]; ok {
		return &v
	}
	return nil
}

// place notes the value of the node in slot; nil takes the node out.
func (t *topology) place(slot int, value *string) {
	for len(t.bySlot) <= slot {
		t.bySlot = append(t.bySlot, -1)
	}
	if id := t.bySlot[slot]; id >= 0 {
		t.nodes[id]--
		t.total--
		if t.nodes[id] == 0 {
			t.values--
		}
	}
	t.bySlot[slot] = -1
	if value == nil {
		return
	}
	id, ok := t.ids[*value]
	if !ok {
		id = int32(len(t.nodes))
		t.ids[*value] = id
		t.nodes = append(t.nodes, 0)
		t.names = append(t.names, *value)
	}
	if t.nodes[id] == 0 {
		t.values++
	}
	t.nodes[id]++
	t.total++
	t.bySlot[slot] = id
}

// id is the value id of the node in slot, or -1.
func (t *topology) id(slot int) int32 {
	if slot >= len(t.bySlot) {
		return -1
	}
	return t.bySlot[slot]
}

// add puts weight on the node in slot.
func (c *counts) add(ix *index, slot int, weight int64) {
	c.total += weight
	if c.bySlot == nil {
		c.bySlot = map[int]int64{}
	}
	c.bySlot[slot] += weight
	if c.bySlot[slot] == 0 {
		delete(c.bySlot, slot)
	}
	for key, by := range c.byKey {
		if id := ix.topologies[key].id(slot); id >= 0 {
			c.byKey[key] = bump(by, id, weight)
		}
	}
}

func bump(by []int64, id int32, weight int64) []int64 {
	if int(id) >= len(by) {
		by = append(by, make([]int64, int(id)+1-len(by))...)
	}
	by[id] += weight
	return by
}

// by is the counts per value id of a topology key, made when it is new.
func (c *counts) by(t *topology, key string) []int64 {
	by, ok := c.byKey[key]
	if !ok {
		by = make([]int64, len(t.nodes))
		for slot, weight := range c.bySlot {
			if id := t.id(slot); id >= 0 {
				by = bump(by, id, weight)
			}
		}
		if c.byKey == nil {
			c.byKey = map[string][]int64{}
		}
		c.byKey[key] = by
	}
	return by
}

// addPod puts pod on (sign 1) or takes it off (sign -1) the node in slot.
func (ix *index) addPod(slot int, pod *Pod, sign int64) {
	c := ix.classes[pod.class]
	if c == nil {
		c = &class{namespace: pod.Object.Namespace, labels: pod.Object.Labels, terminating: pod.Object.DeletionTimestamp != nil}
		ix.classes[pod.class] = c
	}
	c.add(ix, slot, sign)
	if c.total == 0 && len(c.bySlot) == 0 {
		delete(ix.classes, pod.class)
	}
	ix.addTerms(requiredAnti, slot, pod.RequiredAntiAffinity, sign)
	ix.addTerms(requiredAffinity, slot, pod.RequiredAffinity, sign)
	ix.addTerms(preferredAffinity, slot, pod.PreferredAffinity, sign)
	ix.addTerms(preferredAnti, slot, pod.PreferredAntiAffinity, sign)
}

func (ix *index) addTerms(kind termKind, slot int, terms []Term, sign int64) {
	for i := range terms {
		group := ix.terms[kind][terms[i].key]
		if group == nil {
			group = &termGroup{term: terms[i]}
			ix.terms[kind][terms[i].key] = group
		}
		weight := sign
		if kind == preferredAffinity || kind == preferredAnti {
			weight *= int64(terms[i].Weight)
		}
		group.add(ix, slot, weight)
		if group.total == 0 && len(group.bySlot) == 0 {
			delete(ix.terms[kind], terms[i].key)
		}
	}
}

// replace brings the index from old to next, the same node before and after; nil
// is no node.
func (ix *index) replace(old, next *Node) {
	switch {
	case old == nil:
		ix.label(nil, next)
		ix.addPods(next.Slot, next.Pods, 1)
	case next == nil:
		ix.addPods(old.Slot, old.Pods, -1)
		ix.label(old, nil)
	case ix.moved(old, next):
		ix.addPods(old.Slot, old.Pods, -1)
		ix.label(old, next)
		ix.addPods(next.Slot, next.Pods, 1)
	default:
		gone, come := difference(old.Pods, next.Pods)
		ix.addPods(old.Slot, gone, -1)
		ix.addPods(next.Slot, come, 1)
	}
}

// moved says whether a label that is a topology key, or the slot, changed.
func (ix *index) moved(old, next *Node) bool {
	if old.Slot != next.Slot {
		return true
	}
	if old.Object == next.Object {
		return false
	}
	for key := range ix.topologies {
		was, is := value(old, key), value(next, key)
		if (was == nil) != (is == nil) || was != nil && *was != *is {
			return true
		}
	}
	return false
}

func (ix *index) label(old, next *Node) {
	for key, t := range ix.topologies {
		if old != nil && (next == nil || next.Slot != old.Slot) {
			t.place(old.Slot, nil)
		}
		if next != nil {
			t.place(next.Slot, value(next, key))
		}
	}
}

func (ix *index) addPods(slot int, pods []*Pod, sign int64) {
	for _, pod := range pods {
		ix.addPod(slot, pod, sign)
	}
}

// difference is the pods only in before and only in after, by identity of value.
// Most often one was appended.
func difference(before, after []*Pod) (gone, come []*Pod) {
	same := 0
	for same < len(before) && same < len(after) && before[same] == after[same] {
		same++
	}
	before, after = before[same:], after[same:]
	if len(before) == 0 || len(after) == 0 {
		return before, after
	}
	for _, pod := range before {
		if !slices.Contains(after, pod) {
			gone = append(gone, pod)
		}
	}
	for _, pod := range after {
		if !slices.Contains(before, pod) {
			come = append(come, pod)
		}
	}
	return gone, come
}
