package framework

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/sampan-io/sampan/services/scheduler/internal/cluster"
)

// MaxNodeScore is the highest score of a plugin for a node, after normalizing.
const MaxNodeScore int64 = 100

// Plugin is what every plugin is; the other interfaces are the extension points
// that it may take part in.
type Plugin interface {
	Name() string
}

// QueuedPod is a pod as it waits to be scheduled.
type QueuedPod struct {
	*cluster.Pod
	Timestamp time.Time // when it came into the queue, or came back
	First     time.Time // when it was first tried; zero before
	Attempts  int
	// Refusers are the plugins that refused it last.
	Refusers sets.Set[string]
	Gated    bool // a PreEnqueue plugin holds it
}

// QueueSort orders the pods that wait. One plugin of a scheduler does.
type QueueSort interface {
	Plugin
	// Compare is negative when a goes first.
	Compare(a, b *QueuedPod) int
}

// PreEnqueue keeps pods out of the queue. It must be fast: it is asked under the
// queue's lock.
type PreEnqueue interface {
	Plugin
	PreEnqueue(ctx context.Context, pod *cluster.Pod) *Status
}

// PreFilter looks at the pod once before the nodes are filtered. It may refuse it
// altogether, name the only nodes that come into question (nil is all), or Skip
// its Filter.
type PreFilter interface {
	Plugin
	PreFilter(ctx context.Context, state *CycleState, pod *cluster.Pod, snapshot *cluster.Snapshot) (sets.Set[string], *Status)
}

// PreFilterExtensions keeps what PreFilter has worked out right in a what-if.
type PreFilterExtensions interface {
	Plugin
	// AddPod is told that other is on node too.
	AddPod(state *CycleState, pod, other *cluster.Pod, node *cluster.Node, snapshot *cluster.Snapshot) *Status
	// RemovePod is told that other is not on node any more.
	RemovePod(state *CycleState, pod, other *cluster.Pod, node *cluster.Node, snapshot *cluster.Snapshot) *Status
}

// Filter says whether pod can run on node.
type Filter interface {
	Plugin
	Filter(ctx context.Context, state *CycleState, pod *cluster.Pod, node *cluster.Node) *Status
}

// PostFilter is asked when no node passed: it may make room, and say on which
// node.
type PostFilter interface {
	Plugin
	PostFilter(ctx context.Context, state *CycleState, pod *cluster.Pod, snapshot *cluster.Snapshot, verdicts *Verdicts) (nominated string, status *Status)
}

// PreScore looks at the pod once before the nodes are scored. Skip leaves out its
// Score.
type PreScore interface {
	Plugin
	PreScore(ctx context.Context, state *CycleState, pod *cluster.Pod, snapshot *cluster.Snapshot, nodes []*cluster.Node) *Status
}

// Score ranks node; higher is better. Without Normalizer it must be within
// 0..MaxNodeScore.
type Score interface {
	Plugin
	Score(ctx context.Context, state *CycleState, pod *cluster.Pod, node *cluster.Node) (int64, *Status)
}

// Normalizer brings a plugin's scores of all nodes into 0..MaxNodeScore.
type Normalizer interface {
	Normalize(ctx context.Context, state *CycleState, pod *cluster.Pod, scores []NodeScore) *Status
}

// Reserve sets something aside for pod on a node, and gives it back.
type Reserve interface {
	Plugin
	Reserve(ctx context.Context, state *CycleState, pod *cluster.Pod, node string) *Status
	// Unreserve must be safe to call more than once, and without Reserve.
	Unreserve(ctx context.Context, state *CycleState, pod *cluster.Pod, node string)
}

// Permit allows, refuses or delays binding. A Wait ends after the returned time.
type Permit interface {
	Plugin
	Permit(ctx context.Context, state *CycleState, pod *cluster.Pod, node string) (*Status, time.Duration)
}

// PreBind does what must be done before binding.
type PreBind interface {
	Plugin
	PreBind(ctx context.Context, state *CycleState, pod *cluster.Pod, node string) *Status
}

// Bind binds pod to node. Skip hands on to the next.
type Bind interface {
	Plugin
	Bind(ctx context.Context, state *CycleState, pod *cluster.Pod, node string) *Status
}

// PostBind is told that pod is bound.
type PostBind interface {
	Plugin
	PostBind(ctx context.Context, state *CycleState, pod *cluster.Pod, node string)
}

// NodeScore is the score of one node.
type NodeScore struct {
	Node  *cluster.Node
	Score int64
}

// Verdicts is why nodes were refused.
type Verdicts struct {
	bySlot []*Status
	count  int
	// Rest is the verdict on all nodes that have none of their own; nil when these
	// were not refused.
	Rest *Status
}

// Refuse notes the verdict on node.
func (v *Verdicts) Refuse(node *cluster.Node, status *Status) {
	if node.Slot >= len(v.bySlot) {
		v.bySlot = append(v.bySlot, make([]*Status, max(node.Slot+1, 2*len(v.bySlot))-len(v.bySlot))...)
	}
	if v.bySlot[node.Slot] == nil {
		v.count++
	}
	v.bySlot[node.Slot] = status
}

// Of is the verdict on node, or nil.
func (v *Verdicts) Of(node *cluster.Node) *Status {
	if node.Slot < len(v.bySlot) && v.bySlot[node.Slot] != nil {
		return v.bySlot[node.Slot]
	}
	return v.Rest
}

// Len is how many nodes have a verdict of their own.
func (v *Verdicts) Len() int { return v.count }

// Each calls do with each node's own verdict.
func (v *Verdicts) Each(do func(*Status)) {
	for _, status := range v.bySlot {
		if status != nil {
			do(status)
		}
	}
}

// Handle is what plugins reach outside with. In a simulation parts of it are nil.
type Handle struct {
	// Binder writes bindings.
	Binder Binder
	// Evictor makes room.
	Evictor Evictor
	// Workloads knows which pods belong together.
	Workloads Workloads
	// Waiting decides on pods that a Permit plugin holds.
	Waiting Waiting
	// Volumes knows where volumes can be had.
	Volumes Volumes
	// Filterer runs the filters of the profile, for what-ifs.
	Filterer Filterer
}

// Volumes are claims and what they stand for. What is not there is nil.
type Volumes interface {
	Claim(namespace, name string) *corev1.PersistentVolumeClaim
	Volume(name string) *corev1.PersistentVolume
	OfClass(class string) []*corev1.PersistentVolume
	Class(name string) *storagev1.StorageClass
	Node(name string) *corev1.Node
	CSINode(node string) *storagev1.CSINode
	// Capacities are what the provisioner of a class can still make, by topology.
	Capacities(class string) []*storagev1.CSIStorageCapacity
	CSIDriver(name string) *storagev1.CSIDriver
	// Assign gives the claim a volume, or has one made on the node if it is nil.
	Assign(ctx context.Context, claim *corev1.PersistentVolumeClaim, volume *corev1.PersistentVolume, node string) error
}

// Waiting is the pods that a Permit plugin answered Wait for.
type Waiting interface {
	// Allow lets a pod go on, Reject refuses it; false when it does not wait.
	Allow(uid types.UID) bool
	Reject(uid types.UID, plugin, reason string) bool
}

// Binder binds pods to nodes.
type Binder interface {
	Bind(ctx context.Context, pod *corev1.Pod, node string) error
}

// Evictor removes pods to make room for another.
type Evictor interface {
	// Evict removes victim from node for the sake of preemptor, in the background.
	Evict(victim, preemptor *corev1.Pod, node string)
	// Budgets is the disruption budgets that select pod.
	Budgets(pod *corev1.Pod) []Budget
}

// Budget is how many more pods of a group may be disrupted.
type Budget struct {
	Key     string
	Allowed int32
}

// Filterer says whether pod passes the filters on node as it stands in state.
type Filterer interface {
	RunFilters(ctx context.Context, state *CycleState, pod *cluster.Pod, node *cluster.Node) *Status
	RunAddPod(state *CycleState, pod, other *cluster.Pod, node *cluster.Node, snapshot *cluster.Snapshot) *Status
	RunRemovePod(state *CycleState, pod, other *cluster.Pod, node *cluster.Node, snapshot *cluster.Snapshot) *Status
}
