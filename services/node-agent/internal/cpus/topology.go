package cpus

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"

	"github.com/sampan-io/sampan/services/node-agent/internal/topology"
)

// Place is where a CPU is. Node is its NUMA node.
type Place struct{ Socket, Node, Core int }

// Topology is the place of each CPU that is online.
type Topology map[int]Place

// ReadTopology asks the kernel, at /sys for tests' sake.
func ReadTopology(sys string) (Topology, error) {
	root := filepath.Join(sys, "devices", "system", "cpu")
	data, err := os.ReadFile(filepath.Join(root, "online"))
	if err != nil {
		return nil, fmt.Errorf("reading which CPUs there are: %w", err)
	}
	online, err := cpuset.Parse(strings.TrimSpace(string(data)))
	if err != nil {
		return nil, fmt.Errorf("reading which CPUs there are: %w", err)
	}
	out := Topology{}
	nodes, err := numaNodes(sys)
	if err != nil {
		return nil, err
	}
	for _, cpu := range online.List() {
		dir := filepath.Join(root, "cpu"+strconv.Itoa(cpu), "topology")
		// Where the kernel does not tell, each CPU is a core of its own.
		out[cpu] = Place{Socket: number(filepath.Join(dir, "physical_package_id"), 0), Node: nodes[cpu], Core: number(filepath.Join(dir, "core_id"), cpu)}
	}
	return out, nil
}

// numaNodes is the NUMA node of each CPU; a machine without such nodes is one, number 0.
func numaNodes(sys string) (map[int]int, error) {
	lists, err := filepath.Glob(filepath.Join(sys, "devices", "system", "node", "node[0-9]*", "cpulist"))
	if err != nil {
		return nil, err
	}
	out := map[int]int{}
	for _, path := range lists {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("reading the CPUs of a NUMA node: %w", err)
		}
		members, err := cpuset.Parse(strings.TrimSpace(string(data)))
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, err)
		}
		id, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(filepath.Dir(path)), "node"))
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, err)
		}
		for _, cpu := range members.List() {
			out[cpu] = id
		}
	}
	return out, nil
}

func number(path string, otherwise int) int {
	data, err := os.ReadFile(path)
	if err != nil {
		return otherwise
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || n < 0 {
		return otherwise
	}
	return n
}

// All are the CPUs.
func (t Topology) All() cpuset.CPUSet {
	var list []int
	for cpu := range t {
		list = append(list, cpu)
	}
	return cpuset.New(list...)
}

// nodes are the NUMA nodes, in order.
func (t Topology) nodes() []int {
	seen := map[int]bool{}
	for _, place := range t {
		seen[place.Node] = true
	}
	return slices.Sorted(maps.Keys(seen))
}

// in are the CPUs of some NUMA nodes.
func (t Topology) in(nodes topology.Nodes) cpuset.CPUSet {
	var list []int
	for cpu, place := range t {
		if nodes.Has(place.Node) {
			list = append(list, cpu)
		}
	}
	return cpuset.New(list...)
}

// groups are the CPUs that share what by says, in order.
func (t Topology) groups(of cpuset.CPUSet, by func(p Place) Place) []cpuset.CPUSet {
	var order []Place
	members := map[Place][]int{}
	for _, cpu := range of.List() {
		key := by(t[cpu])
		if len(members[key]) == 0 {
			order = append(order, key)
		}
		members[key] = append(members[key], cpu)
	}
	var out []cpuset.CPUSet
	for _, key := range order {
		out = append(out, cpuset.New(members[key]...))
	}
	return out
}

func bySocket(p Place) Place { return Place{Socket: p.Socket} }
func byCore(p Place) Place   { return p }

// take picks count of the free CPUs: whole sockets, then whole cores, then single
// threads of the cores that are least free, so that whole ones stay whole.
func (t Topology) take(free cpuset.CPUSet, count int) (cpuset.CPUSet, error) {
	taken := cpuset.New()
	if free.Size() < count {
		return taken, fmt.Errorf("not enough cpus available to satisfy request: requested=%d, available=%d", count, free.Size())
	}
	for _, by := range []func(Place) Place{bySocket, byCore} {
		whole := map[string]bool{}
		for _, group := range t.groups(t.All(), by) {
			whole[group.String()] = true
		}
		for _, group := range t.groups(free.Difference(taken), by) {
			if whole[group.String()] && group.Size() <= count-taken.Size() {
				taken = taken.Union(group)
			}
		}
	}
	for taken.Size() < count {
		var least cpuset.CPUSet
		for _, group := range t.groups(free.Difference(taken), byCore) {
			if least.IsEmpty() || group.Size() < least.Size() {
				least = group
			}
		}
		taken = taken.Union(cpuset.New(least.List()[0]))
	}
	return taken, nil
}
