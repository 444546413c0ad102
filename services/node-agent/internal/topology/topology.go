// Package topology decides on which NUMA nodes a container's resources come from, as
// the kubelet's topology manager does: those that give CPUs, memory and devices each
// tell where they could, and a policy makes one answer of that.
package topology

import (
	"fmt"
	"math/bits"
	"slices"
)

// Nodes is a set of NUMA nodes, by their numbers; empty stands for any.
type Nodes uint64

// MaxNodes is the most that a machine may have for a policy other than none,
// upstream's: the work grows with the number of their subsets.
const MaxNodes = 8

// Of makes a set.
func Of(ids ...int) Nodes {
	var out Nodes
	for _, id := range ids {
		out |= 1 << id
	}
	return out
}

// Has tells whether the node is in the set.
func (n Nodes) Has(id int) bool { return id >= 0 && id < bits.UintSize && n&(1<<id) != 0 }

// Count is how many nodes the set has.
func (n Nodes) Count() int { return bits.OnesCount64(uint64(n)) }

// List are the numbers, in order.
func (n Nodes) List() []int {
	var out []int
	for id := range bits.UintSize {
		if n.Has(id) {
			out = append(out, id)
		}
	}
	return out
}

// narrower prefers fewer nodes, and lower numbers among equally many.
func (n Nodes) narrower(than Nodes) bool {
	if n.Count() != than.Count() {
		return n.Count() < than.Count()
	}
	return n < than
}

// Hint is one possible place for a resource.
type Hint struct {
	Nodes Nodes
	// Preferred tells that a machine with nothing else on it could not do with fewer.
	Preferred bool
}

// Possible are the hints for a resource that every set of nodes has some of. Ever tells
// whether a set of nodes could give it if nobody else had any, now whether it can. The
// result is never nil: without hints nothing can give the resource.
func Possible(ids []int, ever, now func(Nodes) bool) []Hint {
	hints, fewest := []Hint{}, len(ids)
	for mask := Nodes(1); mask < 1<<len(ids); mask++ {
		var set Nodes
		for _, at := range mask.List() {
			set |= Of(ids[at])
		}
		if !ever(set) {
			continue
		}
		fewest = min(fewest, set.Count())
		if now(set) {
			hints = append(hints, Hint{Nodes: set})
		}
	}
	for i := range hints {
		hints[i].Preferred = hints[i].Nodes.Count() == fewest
	}
	return hints
}

// Policy is what becomes of the hints, by upstream's names.
type Policy string

// The policies.
const (
	None       Policy = "none"
	BestEffort Policy = "best-effort"
	Restricted Policy = "restricted"
	SingleNode Policy = "single-numa-node"
)

// Policies are all.
func Policies() []Policy { return []Policy{None, BestEffort, Restricted, SingleNode} }

// Scope is what gets one place: each container, or the pod.
type Scope string

// The scopes.
const (
	Container Scope = "container"
	Pod       Scope = "pod"
)

// Refused says that a pod cannot have its resources where the policy wants them.
type Refused struct{}

// Error is upstream's text.
func (Refused) Error() string { return "Resources cannot be allocated with Topology locality" }

// Reason is upstream's, of the pod's status.
const Reason = "TopologyAffinityError"

// Decide makes one place of what the resources could have. A nil list has no
// preference. The error is Refused.
func (p Policy) Decide(ids []int, lists ...[]Hint) (Nodes, error) {
	if p == None || p == "" {
		return 0, nil
	}
	if len(ids) > MaxNodes {
		return 0, fmt.Errorf("topology policy %s: %d NUMA nodes are more than %d", p, len(ids), MaxNodes)
	}
	all := Of(ids...)
	best := merge(all, p.filter(lists))
	if p == SingleNode && best.Nodes == all {
		best.Nodes = 0
	}
	if p != BestEffort && !best.Preferred {
		return 0, Refused{}
	}
	return best.Nodes, nil
}

// filter puts something in the place of lists without hints, and drops what a single
// node cannot give.
func (p Policy) filter(lists [][]Hint) [][]Hint {
	out := make([][]Hint, 0, len(lists))
	for _, list := range lists {
		switch {
		case list == nil:
			list = []Hint{{Preferred: true}}
		case len(list) == 0:
			list = []Hint{{}}
		}
		if p == SingleNode {
			list = slices.DeleteFunc(slices.Clone(list), func(h Hint) bool { return !h.Preferred || h.Nodes.Count() > 1 })
		}
		out = append(out, list)
	}
	return out
}

// merge tries all combinations of one hint of each list, and picks the best.
func merge(all Nodes, lists [][]Hint) Hint {
	best := Hint{Nodes: all}
	found := false
	wanted := widestNeed(lists)
	each(lists, func(combination []Hint) {
		h := intersect(all, combination)
		switch {
		case h.Nodes == 0:
		case !found || better(best, h, wanted):
			best, found = h, true
		}
	})
	return best
}

// each calls fn with all combinations.
func each(lists [][]Hint, fn func([]Hint)) {
	chosen := make([]Hint, len(lists))
	var next func(at int)
	next = func(at int) {
		if at == len(lists) {
			fn(chosen)
			return
		}
		for _, h := range lists[at] {
			chosen[at] = h
			next(at + 1)
		}
	}
	next(0)
}

// intersect is preferred if all are, and name the same nodes.
func intersect(all Nodes, combination []Hint) Hint {
	out, first := Hint{Nodes: all, Preferred: true}, Nodes(0)
	for _, h := range combination {
		out.Preferred = out.Preferred && h.Preferred
		if h.Nodes == 0 {
			continue
		}
		if first == 0 {
			first = h.Nodes
		}
		out.Preferred = out.Preferred && h.Nodes == first
		out.Nodes &= h.Nodes
	}
	return out
}

// widestNeed is the number of nodes that the neediest resource must have at least: a
// place that is not preferred should come close to it, for a narrower one leaves that
// resource out.
func widestNeed(lists [][]Hint) int {
	most := 0
	for _, list := range lists {
		fewest := 0
		for _, h := range list {
			if n := h.Nodes.Count(); n > 0 && (fewest == 0 || n < fewest) {
				fewest = n
			}
		}
		most = max(most, fewest)
	}
	return most
}

// better tells whether the candidate is better than what there is.
func better(current, candidate Hint, wanted int) bool {
	if current.Preferred != candidate.Preferred {
		return candidate.Preferred
	}
	now, then := current.Nodes.Count(), candidate.Nodes.Count()
	if current.Preferred || now == then {
		return candidate.Nodes.narrower(current.Nodes)
	}
	switch {
	case now > wanted: // the fewer the better
		return then < now
	case now == wanted:
		return false
	default: // too few: the nearer to what is wanted from below the better
		return then <= wanted && then > now
	}
}
