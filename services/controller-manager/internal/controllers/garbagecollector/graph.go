package garbagecollector

import (
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// node is an object as the graph knows it. It never changes.
type node struct {
	resource  schema.GroupVersionResource
	kind      string
	namespace string // empty for cluster-scoped objects
	name      string
	uid       types.UID
	owners    []metav1.OwnerReference
	deleting  bool // deletionTimestamp is set
	// foreground: it is being deleted and waits until its dependents are.
	foreground bool
	// orphaning: it is being deleted and waits until its dependents are let go.
	orphaning bool
}

func newNode(resource schema.GroupVersionResource, kind string, object metav1.Object) *node {
	deleting := object.GetDeletionTimestamp() != nil
	return &node{
		resource: resource, kind: kind, namespace: object.GetNamespace(), name: object.GetName(), uid: object.GetUID(),
		owners: object.GetOwnerReferences(), deleting: deleting,
		foreground: deleting && slices.Contains(object.GetFinalizers(), metav1.FinalizerDeleteDependents),
		orphaning:  deleting && slices.Contains(object.GetFinalizers(), metav1.FinalizerOrphanDependents),
	}
}

// owner is n's reference to the owner of that UID, or nil.
func (n *node) owner(uid types.UID) *metav1.OwnerReference {
	for i := range n.owners {
		if n.owners[i].UID == uid {
			return &n.owners[i]
		}
	}
	return nil
}

// blocks says whether n holds up the deletion in the foreground of its owner.
func (n *node) blocks(owner types.UID) bool {
	ref := n.owner(owner)
	return ref != nil && ref.BlockOwnerDeletion != nil && *ref.BlockOwnerDeletion
}

// is says whether n is the object that ref, held by an object in namespace, names.
func (n *node) is(ref *metav1.OwnerReference, namespace string) bool {
	group, err := schema.ParseGroupVersion(ref.APIVersion)
	return err == nil && n.uid == ref.UID && n.kind == ref.Kind && n.name == ref.Name && n.resource.Group == group.Group &&
		(n.namespace == "" || n.namespace == namespace)
}

// graph is who owns whom. It is safe for concurrent use.
//
//	nodes: UID ──> object            dependents: UID of an owner ──> UIDs of objects that name it
//
// An owner that has not been seen, or never was, has dependents but no node.
type graph struct {
	mu         sync.Mutex
	nodes      map[types.UID]*node
	dependents map[types.UID]map[types.UID]struct{}
}

func newGraph() *graph {
	return &graph{nodes: map[types.UID]*node{}, dependents: map[types.UID]map[types.UID]struct{}{}}
}

func (g *graph) get(uid types.UID) *node {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.nodes[uid]
}

// of is the dependents of the owner of that UID.
func (g *graph) of(owner types.UID) []*node {
	g.mu.Lock()
	defer g.mu.Unlock()
	found := make([]*node, 0, len(g.dependents[owner]))
	for uid := range g.dependents[owner] {
		found = append(found, g.nodes[uid])
	}
	return found
}

// set notes an object as it is now. It returns the UIDs of the objects to look at.
func (g *graph) set(next *node) []types.UID {
	g.mu.Lock()
	defer g.mu.Unlock()
	old := g.nodes[next.uid]
	g.nodes[next.uid] = next
	var look []types.UID
	if old != nil {
		look = g.unlinked(old, next)
	}
	look = append(look, g.linked(old, next)...)
	if next.foreground && (old == nil || !old.foreground) {
		look = append(look, next.uid)
		for uid := range g.dependents[next.uid] {
			look = append(look, uid)
		}
	}
	if next.orphaning && (old == nil || !old.orphaning) {
		look = append(look, next.uid)
	}
	return look
}

// unlinked takes out the owners that an object names no more. It returns those that
// waited for it and need not any longer. Caller must hold mu.
func (g *graph) unlinked(old, next *node) (look []types.UID) {
	for _, ref := range old.owners {
		if next.owner(ref.UID) == nil {
			g.unlink(ref.UID, next.uid)
		}
		if owner := g.nodes[ref.UID]; owner != nil && owner.foreground && old.blocks(ref.UID) && !next.blocks(ref.UID) {
			look = append(look, ref.UID)
		}
	}
	return look
}

// linked puts in the owners that an object names. It returns the object when a new
// one of them may not hold it. Caller must hold mu.
func (g *graph) linked(old, next *node) (look []types.UID) {
	for _, ref := range next.owners {
		if g.dependents[ref.UID] == nil {
			g.dependents[ref.UID] = map[types.UID]struct{}{}
		}
		g.dependents[ref.UID][next.uid] = struct{}{}
		if old != nil && old.owner(ref.UID) != nil {
			continue
		}
		if owner := g.nodes[ref.UID]; owner == nil || !owner.is(&ref, next.namespace) || owner.foreground {
			look = append(look, next.uid)
		}
	}
	return look
}

// remove notes that an object is gone. It returns the UIDs of the objects to look
// at: its dependents, and owners that waited for it.
func (g *graph) remove(uid types.UID) []types.UID {
	g.mu.Lock()
	defer g.mu.Unlock()
	var look []types.UID
	for dependent := range g.dependents[uid] {
		look = append(look, dependent)
	}
	old := g.nodes[uid]
	if old == nil {
		return look
	}
	delete(g.nodes, uid)
	for _, ref := range old.owners {
		g.unlink(ref.UID, uid)
		if owner := g.nodes[ref.UID]; owner != nil && owner.foreground {
			look = append(look, ref.UID)
		}
	}
	return look
}

func (g *graph) unlink(owner, dependent types.UID) {
	delete(g.dependents[owner], dependent)
	if len(g.dependents[owner]) == 0 {
		delete(g.dependents, owner)
	}
}

// drop forgets the objects of a resource that is not served any more. It returns
// their dependents.
func (g *graph) drop(resource schema.GroupVersionResource) []types.UID {
	g.mu.Lock()
	var gone []types.UID
	for uid, n := range g.nodes {
		if n.resource == resource {
			gone = append(gone, uid)
		}
	}
	g.mu.Unlock()
	var look []types.UID
	for _, uid := range gone {
		look = append(look, g.remove(uid)...)
	}
	return look
}
