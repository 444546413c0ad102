// Package cache holds what the scheduler knows of nodes and of the pods on them,
// with those that it has placed but the API has not confirmed yet.
package cache

import (
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sampan-io/sampan/services/scheduler/internal/cluster"
)

// Cache is safe for concurrent use. A snapshot is brought up to date from it by
// what has changed since the last time.
type Cache struct {
	mu         sync.Mutex
	nodes      map[string]*cluster.Node
	pods       map[types.UID]*placed
	namespaces map[string]labels.Set
	changed    map[string]struct{} // nodes since the last snapshot
	changedNS  map[string]struct{}
	freeSlots  []int
	slots      int
}

// placed is a pod on a node. Invariant: nodes[node] has pod.
type placed struct {
	pod     *cluster.Pod
	node    string
	assumed bool // placed by this scheduler, not confirmed by the API
}

// New is empty.
func New() *Cache {
	return &Cache{
		nodes: map[string]*cluster.Node{}, pods: map[types.UID]*placed{}, namespaces: map[string]labels.Set{},
		changed: map[string]struct{}{}, changedNS: map[string]struct{}{},
	}
}

// SetNode notes the description of a node that is there.
func (c *Cache) SetNode(object *corev1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.nodes[object.Name]; known != nil {
		c.set(object.Name, known.Described(object))
		return
	}
	c.set(object.Name, cluster.NewNode(object, c.slot()))
}

// RemoveNode notes that a node is gone. Its pods stay known until they go too.
func (c *Cache) RemoveNode(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.nodes[name]; known != nil {
		c.set(name, known.Described(nil))
	}
}

// SetNamespace notes the labels of a namespace; nil forgets it.
func (c *Cache) SetNamespace(name string, set labels.Set) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if set == nil {
		delete(c.namespaces, name)
	} else {
		c.namespaces[name] = set
	}
	c.changedNS[name] = struct{}{}
}

// SetPod notes a pod that the API says is on a node; it confirms an assumed one.
func (c *Cache) SetPod(object *corev1.Pod) error {
	pod, err := cluster.NewPod(object)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.take(object.UID)
	c.put(&placed{pod: pod, node: object.Spec.NodeName})
	return nil
}

// RemovePod notes that a pod is gone.
func (c *Cache) RemovePod(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.take(uid)
}

// Assume places pod on node before the API knows. It fails when the pod is placed
// already.
func (c *Cache) Assume(pod *cluster.Pod, node string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.pods[pod.Object.UID]; known != nil {
		return fmt.Errorf("pod %s/%s is on node %s already", pod.Object.Namespace, pod.Object.Name, known.node)
	}
	c.put(&placed{pod: pod, node: node, assumed: true})
	return nil
}

// Forget takes an assumed pod back. A confirmed one stays.
func (c *Cache) Forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.pods[uid]; known != nil && known.assumed {
		c.take(uid)
	}
}

// Placed says whether the pod of that UID is on a node, assumed or confirmed.
func (c *Cache) Placed(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pods[uid] != nil
}

// Counts is how many nodes, pods and assumed pods are known.
func (c *Cache) Counts() (nodes, pods, assumed int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, node := range c.nodes {
		if node.Object != nil {
			nodes++
		}
	}
	for _, p := range c.pods {
		if p.assumed {
			assumed++
		}
	}
	return nodes, len(c.pods), assumed
}

// Update brings snapshot up to date. All updates must go to the same snapshot.
func (c *Cache) Update(snapshot *cluster.Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.changedNS {
		snapshot.SetNamespace(name, c.namespaces[name])
	}
	clear(c.changedNS)
	// Nodes that are gone, or came back in another slot, go first: a new one may
	// have their slot.
	for name := range c.changed {
		if node := c.nodes[name]; node == nil || snapshot.Slot(name) != node.Slot {
			snapshot.Replace(name, nil)
		}
	}
	for name := range c.changed {
		if node := c.nodes[name]; node != nil {
			snapshot.Replace(name, node)
		}
	}
	clear(c.changed)
}

// put and take keep the invariant of placed. Caller must hold mu.
func (c *Cache) put(p *placed) {
	node := c.nodes[p.node]
	if node == nil {
		node = cluster.NewUnknownNode(p.node, c.slot())
	}
	c.set(p.node, node.With(p.pod))
	c.pods[p.pod.Object.UID] = p
}

func (c *Cache) take(uid types.UID) {
	known := c.pods[uid]
	if known == nil {
		return
	}
	delete(c.pods, uid)
	c.set(known.node, c.nodes[known.node].Without(uid))
}

// set replaces a node, and drops it when nothing is known of it any more. A slot
// is free again when the node is gone: Update takes the old node out first.
func (c *Cache) set(name string, node *cluster.Node) {
	c.changed[name] = struct{}{}
	if node.Object == nil && len(node.Pods) == 0 {
		delete(c.nodes, name)
		c.freeSlots = append(c.freeSlots, node.Slot)
		return
	}
	c.nodes[name] = node
}

func (c *Cache) slot() int {
	if n := len(c.freeSlots); n > 0 {
		slot := c.freeSlots[n-1]
		c.freeSlots = c.freeSlots[:n-1]
		return slot
	}
	c.slots++
	return c.slots - 1
}
