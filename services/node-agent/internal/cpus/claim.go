package cpus

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/cpuset"

	"github.com/sampan-io/sampan/services/node-agent/internal/topology"
)

// Claim gives one pod its CPUs, container after container in the pod's order, init
// containers first. Nobody has them before Commit, so that only one claim may be open.
type Claim struct {
	pool  *Pool
	pod   *corev1.Pod
	given map[string]cpuset.CPUSet
	free  cpuset.CPUSet
	left  cpuset.CPUSet // of init containers that have ended by then
}

// Begin opens a claim.
func (p *Pool) Begin(pod *corev1.Pod) *Claim {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &Claim{pool: p, pod: pod, given: map[string]cpuset.CPUSet{}, free: p.shared().Difference(p.reserved), left: cpuset.New()}
}

// Hints are the NUMA nodes that count CPUs could come from; nil for none.
func (c *Claim) Hints(count int) []topology.Hint {
	if count == 0 {
		return nil
	}
	machine, free := c.pool.topology, c.free.Union(c.left)
	return topology.Possible(machine.nodes(),
		func(nodes topology.Nodes) bool { return machine.in(nodes).Size() >= count },
		func(nodes topology.Nodes) bool { return machine.in(nodes).Intersection(free).Size() >= count })
}

// Exclusive tells how many CPUs a container is to have alone.
func (c *Claim) Exclusive(container *corev1.Container) int { return Exclusive(c.pod, container) }

// Give chooses the CPUs of one container, of these NUMA nodes as long as they have any.
// One that does not stay leaves its CPUs to those after it.
func (c *Claim) Give(container *corev1.Container, stays bool, on topology.Nodes) error {
	count := Exclusive(c.pod, container)
	if count == 0 {
		return nil
	}
	set, err := c.choose(count, on)
	if err != nil {
		return err
	}
	c.given[container.Name], c.free = set, c.free.Difference(set)
	if stays {
		c.left = c.left.Difference(set)
	} else {
		c.left = c.left.Union(set)
	}
	return nil
}

func (c *Claim) choose(count int, on topology.Nodes) (cpuset.CPUSet, error) {
	sources := []cpuset.CPUSet{c.left, c.free}
	if on != 0 {
		near := c.pool.topology.in(on)
		sources = []cpuset.CPUSet{c.left.Intersection(near), c.free.Intersection(near), c.left.Difference(near), c.free.Difference(near)}
	}
	set := cpuset.New()
	for i, source := range sources {
		wanted := count - set.Size()
		if i < len(sources)-1 { // the last one says what is missing
			wanted = min(wanted, source.Size())
		}
		more, err := c.pool.topology.take(source, wanted)
		if err != nil {
			return set, err
		}
		set = set.Union(more)
	}
	return set, nil
}

// Commit keeps what was given, and tells whether the shared CPUs have changed.
func (c *Claim) Commit() (changed bool, err error) {
	if len(c.given) == 0 {
		return false, nil
	}
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	c.pool.entries[c.pod.UID] = c.given
	return true, c.pool.save()
}
