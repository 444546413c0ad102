package scheduler

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sampan-io/sampan/services/scheduler/internal/cluster"
)

// Nominees are pods for which room is being made, by node. It is safe for
// concurrent use.
type Nominees struct {
	mu    sync.Mutex
	nodes map[types.UID]string
	pods  map[string]map[types.UID]*cluster.Pod
}

// NewNominees has none.
func NewNominees() *Nominees {
	return &Nominees{nodes: map[types.UID]string{}, pods: map[string]map[types.UID]*cluster.Pod{}}
}

// On is the pods nominated to node.
func (n *Nominees) On(node string) []*cluster.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.pods[node]) == 0 {
		return nil
	}
	found := make([]*cluster.Pod, 0, len(n.pods[node]))
	for _, pod := range n.pods[node] {
		found = append(found, pod)
	}
	return found
}

// Set nominates pod to node. With an empty node the nomination in the pod's status
// stands.
func (n *Nominees) Set(pod *cluster.Pod, node string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.remove(pod.Object.UID)
	if node == "" {
		node = pod.Object.Status.NominatedNodeName
	}
	if node == "" {
		return
	}
	n.nodes[pod.Object.UID] = node
	if n.pods[node] == nil {
		n.pods[node] = map[types.UID]*cluster.Pod{}
	}
	n.pods[node][pod.Object.UID] = pod
}

// Remove ends a nomination.
func (n *Nominees) Remove(uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.remove(uid)
}

func (n *Nominees) remove(uid types.UID) {
	node, ok := n.nodes[uid]
	if !ok {
		return
	}
	delete(n.nodes, uid)
	delete(n.pods[node], uid)
	if len(n.pods[node]) == 0 {
		delete(n.pods, node)
	}
}
