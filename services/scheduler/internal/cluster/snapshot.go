package cluster

import (
	"k8s.io/apimachinery/pkg/labels"
)

// Snapshot is the state that one scheduling decision is made from. Between
// decisions it is brought up to date by Replace; it is not safe for concurrent
// use with that.
type Snapshot struct {
	nodes      map[string]*Node
	ordered    []*Node        // interleaved over zones, so that a sample of them is spread
	place      map[string]int // of a node in ordered
	stale      bool           // ordered misses changes of membership or zone
	images     map[string]int
	namespaces map[string]labels.Set
	index      *index
	// Generation rises with each change.
	Generation int64
}

// NewSnapshot is an empty cluster.
func NewSnapshot() *Snapshot {
	return &Snapshot{nodes: map[string]*Node{}, place: map[string]int{}, images: map[string]int{}, namespaces: map[string]labels.Set{}, index: newIndex()}
}

// Replace sets the node of that name; nil takes it out.
func (s *Snapshot) Replace(name string, next *Node) {
	old := s.nodes[name]
	if old == next {
		return
	}
	s.Generation++
	if next != nil && next.Object == nil && len(next.Pods) == 0 {
		next = nil // nothing is known of it any more
	}
	if old == nil && next == nil {
		return
	}
	s.index.replace(old, next)
	s.countImages(old, -1)
	s.countImages(next, 1)
	if old == nil || next == nil || (old.Object == nil) != (next.Object == nil) || zone(old) != zone(next) {
		s.stale = true
	} else if !s.stale {
		s.swap(old, next)
	}
	if next == nil {
		delete(s.nodes, name)
	} else {
		s.nodes[name] = next
	}
}

func (s *Snapshot) swap(old, next *Node) {
	if old.Object != nil {
		s.ordered[s.place[old.Name]] = next
	}
}

func (s *Snapshot) countImages(node *Node, by int) {
	if node == nil {
		return
	}
	for name := range node.Images {
		s.images[name] += by
		if s.images[name] == 0 {
			delete(s.images, name)
		}
	}
}

// SetNamespace notes the labels of a namespace; nil forgets it.
func (s *Snapshot) SetNamespace(name string, set labels.Set) {
	s.Generation++
	if set == nil {
		delete(s.namespaces, name)
		return
	}
	s.namespaces[name] = set
}

// NamespaceLabels is the labels of a namespace; nil when it is not known.
func (s *Snapshot) NamespaceLabels(name string) labels.Set { return s.namespaces[name] }

// Node is the node of that name, or nil.
func (s *Snapshot) Node(name string) *Node {
	if node := s.nodes[name]; node != nil && node.Object != nil {
		return node
	}
	return nil
}

// Slot is the slot of what is known under the name of a node, or -1.
func (s *Snapshot) Slot(name string) int {
	if node := s.nodes[name]; node != nil {
		return node.Slot
	}
	return -1
}

// Nodes is all nodes, in an order that takes from each zone in turn. The caller
// must not change it.
func (s *Snapshot) Nodes() []*Node {
	if s.stale {
		s.ordered = interleave(s.nodes)
		clear(s.place)
		for at, node := range s.ordered {
			s.place[node.Name] = at
		}
		s.stale = false
	}
	return s.ordered
}

// ImageNodes is how many nodes have the image of that name.
func (s *Snapshot) ImageNodes(name string) int { return s.images[name] }
