package numa

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/qos"
	"github.com/sampan-io/sampan/services/node-agent/internal/topology"
)

// Claim gives one pod its memory, container after container. Nobody has it before
// Commit, so that only one claim may be open.
type Claim struct {
	pool  *Pool
	pod   *corev1.Pod
	given map[string]Block
	// ending are init containers that end: they use what the others will, which is not
	// counted twice.
	ending map[string]Block
}

// Begin opens a claim.
func (p *Pool) Begin(pod *corev1.Pod) *Claim {
	return &Claim{pool: p, pod: pod, given: map[string]Block{}, ending: map[string]Block{}}
}

// Wanted is how much memory a container is to have of single nodes, in bytes.
func (c *Claim) Wanted(container *corev1.Container) int64 {
	if qos.Class(c.pod) != corev1.PodQOSGuaranteed {
		return 0
	}
	return container.Resources.Limits.Memory().Value()
}

// Hints are the NUMA nodes that size bytes could come from; nil for none.
func (c *Claim) Hints(size int64) []topology.Hint {
	if size == 0 {
		return nil
	}
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	blocks := c.blocks()
	return topology.Possible(slices.Sorted(maps.Keys(c.pool.free)),
		func(nodes topology.Nodes) bool { return c.pool.room(nodes.List(), nil) >= size },
		func(nodes topology.Nodes) bool { return c.pool.room(nodes.List(), blocks) >= size })
}

// blocks are all that were given, the claim's too. Caller must hold the pool's mu.
func (c *Claim) blocks() []Block {
	return slices.AppendSeq(c.pool.blocks(), maps.Values(c.given))
}

// Give chooses the memory of one container: of these nodes if they have it, or else of
// as few as can be.
func (c *Claim) Give(container *corev1.Container, stays bool, on topology.Nodes) error {
	if qos.Class(c.pod) != corev1.PodQOSGuaranteed {
		return nil
	}
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	size, blocks := c.Wanted(container), c.pool.blocks()
	if stays {
		blocks = c.blocks()
	}
	nodes := on.List()
	if on == 0 || c.pool.room(nodes, blocks) < size {
		var err error
		if nodes, err = c.pool.choose(size, blocks); err != nil {
			return err
		}
	}
	if stays {
		c.given[container.Name] = Block{Nodes: nodes, Type: memory, Size: size}
	} else {
		c.ending[container.Name] = Block{Nodes: nodes, Type: memory}
	}
	return nil
}

// Commit keeps what was given.
func (c *Claim) Commit() error {
	if len(c.given)+len(c.ending) == 0 {
		return nil
	}
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	maps.Copy(c.given, c.ending)
	c.pool.entries[c.pod.UID] = c.given
	return c.pool.save()
}
