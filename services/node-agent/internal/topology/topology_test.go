package topology_test

import (
	"errors"
	"testing"

	"github.com/sampan-io/sampan/services/node-agent/internal/topology"
)

type hints = []topology.Hint

func hint(preferred bool, ids ...int) topology.Hint {
	return topology.Hint{Nodes: topology.Of(ids...), Preferred: preferred}
}

func TestDecide(t *testing.T) {
	const refused = topology.Nodes(1 << 40)
	one, two, both := topology.Of(0), topology.Of(1), topology.Of(0, 1)
	for _, c := range []struct {
		name                           string
		lists                          []hints
		bestEffort, restricted, single topology.Nodes
	}{
		{"no resource has a preference", []hints{nil, nil}, both, both, 0},
		{"one has", []hints{{hint(true, 0), hint(true, 1), hint(false, 0, 1)}, nil}, one, one, one},
		{"two agree on the second", []hints{{hint(true, 0), hint(true, 1)}, {hint(true, 1), hint(false, 0, 1)}}, two, two, two},
		{"two cannot agree", []hints{{hint(true, 0)}, {hint(true, 1)}}, both, refused, refused},
		{"one needs both nodes", []hints{{hint(true, 0, 1)}}, both, both, refused},
		{"only a wider place than need be is free", []hints{{hint(false, 0, 1)}}, both, refused, refused},
		{"nothing can give it", []hints{{}}, both, refused, refused},
		{"a narrow and a wide one", []hints{{hint(true, 0), hint(false, 0, 1)}, {hint(false, 0, 1)}}, both, refused, refused}, // the wide one would lack half
	} {
		t.Run(c.name, func(t *testing.T) {
			for policy, want := range map[topology.Policy]topology.Nodes{topology.BestEffort: c.bestEffort, topology.Restricted: c.restricted, topology.SingleNode: c.single, topology.None: 0} {
				got, err := policy.Decide([]int{0, 1}, c.lists...)
				if errors.Is(err, topology.Refused{}) {
					got = refused
				} else if err != nil {
					t.Fatal(err)
				}
				if got != want {
					t.Errorf("%s: %v, want %v", policy, got.List(), want.List())
				}
			}
		})
	}
}

func TestPossiblePrefersWhatAnEmptyMachineWouldNeed(t *testing.T) {
	free := map[int]int{0: 1, 3: 4}
	enough := func(of map[int]int, n int) func(topology.Nodes) bool {
		return func(set topology.Nodes) bool {
			sum := 0
			for _, id := range set.List() {
				sum += of[id]
			}
			return sum >= n
		}
	}
	whole := enough(map[int]int{0: 4, 3: 4}, 2)
	got := topology.Possible([]int{0, 3}, whole, enough(free, 2))
	if len(got) != 2 || got[0] != hint(true, 3) || got[1] != hint(false, 0, 3) {
		t.Errorf("hints %+v", got)
	}
	got = topology.Possible([]int{0, 3}, enough(map[int]int{0: 4, 3: 4}, 5), enough(free, 5))
	if len(got) != 1 || got[0] != hint(true, 0, 3) {
		t.Errorf("for what no node has alone: %+v", got)
	}
	if got = topology.Possible([]int{0, 3}, whole, enough(free, 6)); got == nil || len(got) != 0 {
		t.Errorf("for what is not free: %+v", got)
	}
}

func TestTooManyNodesAreRefused(t *testing.T) {
	if _, err := topology.Restricted.Decide([]int{0, 1, 2, 3, 4, 5, 6, 7, 8}); err == nil || errors.Is(err, topology.Refused{}) {
		t.Errorf("nine nodes: %v", err)
	}
}
