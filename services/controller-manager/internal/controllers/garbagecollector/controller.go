// Package garbagecollector deletes objects whose owners are gone, in the background,
// in the foreground before their owner, or lets them go as orphans.
package garbagecollector

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"

	"github.com/sampan-io/sampan/services/controller-manager/internal/controller"
)

const (
	name = "garbage-collector-controller"
	// rediscover is how often resources that came or went are looked for, when
	// nothing says that they did.
	rediscover = 30 * time.Second
	// gather is how long further definitions are waited for once one has changed.
	gather = 200 * time.Millisecond
	// settle is how long the first lists are waited for. Without them owners are
	// looked up one by one, which is right but slow.
	settle = 10 * time.Second
)

// Definition is the controller's entry in the list.
func Definition() controller.Definition {
	return controller.Definition{Name: name, Aliases: []string{"garbagecollector"}, Account: "generic-garbage-collector", New: New}
}

// Controller is the garbage collector. Its keys are UIDs.
type Controller struct {
	client    metadata.Interface
	discovery discovery.DiscoveryInterface
	graph     *graph
	monitors  *monitors
	queue     *controller.Queue
	log       *slog.Logger
	changed   chan struct{} // what the API serves may have changed
}

// New makes the controller from env; nil when it is turned off.
func New(env controller.Env) (controller.Runner, error) {
	if !env.Config.EnableGarbageCollector {
		return nil, nil
	}
	c := &Controller{client: env.Metadata, discovery: env.Discovery, graph: newGraph(), log: env.Log, changed: make(chan struct{}, 1)}
	c.queue = controller.NewQueue("garbage_collector_attempt_to_delete", env.Config.Workers(name), env.Log, c.reconcile)
	c.monitors = &monitors{
		client: env.Metadata, log: env.Log, kinds: map[schema.GroupKind]served{}, running: map[schema.GroupVersionResource]*monitor{},
		set:     func(n *node) { c.look(c.graph.set(n)) },
		removed: func(object metav1.Object) { c.look(c.graph.remove(object.GetUID())) },
		defined: c.noteChange,
	}
	return c, nil
}

// noteChange has resources looked for again soon.
func (c *Controller) noteChange() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

func (c *Controller) look(uids []types.UID) {
	for _, uid := range uids {
		c.queue.Add(string(uid))
	}
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	c.discover(ctx)
	waiting, cancel := context.WithTimeout(ctx, settle)
	defer cancel()
	err := wait.PollUntilContextCancel(waiting, 20*time.Millisecond, true, func(context.Context) (bool, error) { return c.monitors.synced(), nil })
	if err != nil && ctx.Err() == nil {
		c.log.Warn("Not all resources could be listed yet, collecting garbage nevertheless")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.keepDiscovering(ctx)
	}()
	err = c.queue.Run(ctx)
	<-done
	c.monitors.group.Wait()
	return err
}

// keepDiscovering discovers when a definition of resources has changed, and from
// time to time.
func (c *Controller) keepDiscovering(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(rediscover):
		case <-c.changed:
			select {
			case <-ctx.Done():
				return
			case <-time.After(gather):
			}
		}
		c.discover(ctx)
	}
}

// discover brings the monitors in line with what the API serves.
func (c *Controller) discover(ctx context.Context) {
	resources, err := discover(c.discovery)
	if err != nil {
		c.log.Info("Discovery is incomplete", "controller", name, "err", err)
	}
	for _, gone := range c.monitors.update(ctx, resources, err == nil) {
		c.look(c.graph.drop(gone))
	}
}

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	known := c.graph.get(types.UID(key))
	switch {
	case known == nil:
		return 0, nil
	case known.deleting && !known.foreground && !known.orphaning:
		return 0, nil // on its way already
	case !known.deleting && c.held(known):
		return 0, nil
	}
	object, err := c.read(ctx, known)
	if err != nil {
		return 0, err
	}
	if object == nil { // gone; its event may be under way
		c.look(c.graph.remove(known.uid))
		return 0, nil
	}
	current := newNode(known.resource, known.kind, object)
	switch {
	case current.orphaning:
		return 0, c.orphan(ctx, current, object)
	case current.foreground:
		return 0, c.foreground(ctx, current, object)
	case current.deleting:
		return 0, nil
	}
	return 0, c.collect(ctx, current, object)
}

// held says whether every owner of n is in the graph and stays: then there is
// nothing to do, and no need to ask the API.
func (c *Controller) held(n *node) bool {
	for i := range n.owners {
		owner := c.graph.get(n.owners[i].UID)
		if owner == nil || !owner.is(&n.owners[i], n.namespace) || owner.foreground {
			return false
		}
	}
	return true
}

func (c *Controller) resource(n *node) metadata.ResourceInterface {
	if n.namespace == "" {
		return c.client.Resource(n.resource)
	}
	return c.client.Resource(n.resource).Namespace(n.namespace)
}

// read is the object as it is in the API; nil when it is gone or another has its
// name.
func (c *Controller) read(ctx context.Context, n *node) (*metav1.PartialObjectMetadata, error) {
	object, err := c.resource(n).Get(ctx, n.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading %s %s/%s: %w", n.resource.GroupResource(), n.namespace, n.name, err)
	case object.UID != n.uid:
		return nil, nil
	}
	return object, nil
}

// collect does what judge says with an object whose owners may be gone.
func (c *Controller) collect(ctx context.Context, n *node, object *metav1.PartialObjectMetadata) error {
	owners := make([]standing, len(n.owners))
	for i := range n.owners {
		var err error
		if owners[i], err = c.standing(ctx, &n.owners[i], n.namespace); err != nil {
			return err
		}
	}
	s := judge(object, owners, c.graph.of(n.uid))
	if len(s.drop) > 0 {
		return c.dropOwners(ctx, n, object, s.drop)
	}
	if !s.remove {
		return nil
	}
	if s.unblock {
		if err := c.unblock(ctx, n, object); err != nil {
			return err
		}
	}
	err := c.resource(n).Delete(ctx, n.name, metav1.DeleteOptions{PropagationPolicy: &s.policy, Preconditions: metav1.NewUIDPreconditions(string(n.uid))})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting %s %s/%s, whose owners are gone: %w", n.resource.GroupResource(), n.namespace, n.name, err)
	}
	c.log.Info("Deleted object whose owners are gone", "resource", n.resource.GroupResource().String(), "object", n.namespace+"/"+n.name, "policy", string(s.policy))
	return nil
}

// standing looks an owner up in the API.
func (c *Controller) standing(ctx context.Context, ref *metav1.OwnerReference, namespace string) (standing, error) {
	kind, ok := c.monitors.kind(ref.APIVersion, ref.Kind)
	if !ok {
		return unclear, nil // its definition may come back, with its objects
	}
	if kind.namespaced && namespace == "" {
		return unclear, nil // a cluster-scoped object cannot have a namespaced owner; nothing can tell which is meant
	}
	owner := &node{resource: kind.resource, kind: kind.kind, name: ref.Name, uid: ref.UID}
	if kind.namespaced {
		owner.namespace = namespace
	}
	object, err := c.read(ctx, owner)
	switch {
	case err != nil:
		return unclear, err
	case object == nil:
		return absent, nil
	case newNode(kind.resource, kind.kind, object).foreground:
		return waiting, nil
	}
	return solid, nil
}

// foreground lets the owner go when no dependent holds it up, and else looks at
// those that do.
func (c *Controller) foreground(ctx context.Context, n *node, object *metav1.PartialObjectMetadata) error {
	blocked := false
	for _, dependent := range c.graph.of(n.uid) {
		if !dependent.blocks(n.uid) {
			continue
		}
		blocked = true
		if !dependent.deleting {
			c.queue.Add(string(dependent.uid))
		}
	}
	if blocked {
		return nil
	}
	return c.dropFinalizer(ctx, n, object, metav1.FinalizerDeleteDependents)
}

// orphan takes n out of the references of its dependents, then lets it go.
func (c *Controller) orphan(ctx context.Context, n *node, object *metav1.PartialObjectMetadata) error {
	var errs []error
	for _, dependent := range c.graph.of(n.uid) {
		current, err := c.read(ctx, dependent)
		if err == nil && current != nil {
			err = c.dropOwners(ctx, dependent, current, []types.UID{n.uid})
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return c.dropFinalizer(ctx, n, object, metav1.FinalizerOrphanDependents)
}

func (c *Controller) dropOwners(ctx context.Context, n *node, object *metav1.PartialObjectMetadata, owners []types.UID) error {
	kept := []metav1.OwnerReference{}
	for _, ref := range object.OwnerReferences {
		if !contains(owners, ref.UID) {
			kept = append(kept, ref)
		}
	}
	if len(kept) == len(object.OwnerReferences) {
		return nil
	}
	return c.patch(ctx, n, object, map[string]any{"ownerReferences": kept})
}

func contains(uids []types.UID, uid types.UID) bool {
	for _, other := range uids {
		if other == uid {
			return true
		}
	}
	return false
}

// unblock makes n hold up none of its owners.
func (c *Controller) unblock(ctx context.Context, n *node, object *metav1.PartialObjectMetadata) error {
	no := false
	refs := make([]metav1.OwnerReference, len(object.OwnerReferences))
	for i, ref := range object.OwnerReferences {
		if ref.BlockOwnerDeletion != nil {
			ref.BlockOwnerDeletion = &no
		}
		refs[i] = ref
	}
	return c.patch(ctx, n, object, map[string]any{"ownerReferences": refs})
}

func (c *Controller) dropFinalizer(ctx context.Context, n *node, object *metav1.PartialObjectMetadata, finalizer string) error {
	kept := []string{}
	for _, f := range object.Finalizers {
		if f != finalizer {
			kept = append(kept, f)
		}
	}
	return c.patch(ctx, n, object, map[string]any{"finalizers": kept})
}

// patch changes the metadata of the object that was read, and no newer one: a
// conflict is an error, and the object is looked at again.
func (c *Controller) patch(ctx context.Context, n *node, object *metav1.PartialObjectMetadata, change map[string]any) error {
	change["uid"], change["resourceVersion"] = n.uid, object.ResourceVersion
	body, err := json.Marshal(map[string]any{"metadata": change})
	if err != nil {
		return fmt.Errorf("encoding patch: %w", err)
	}
	_, err = c.resource(n).Patch(ctx, n.name, types.MergePatchType, body, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("patching %s %s/%s: %w", n.resource.GroupResource(), n.namespace, n.name, err)
	}
	return nil
}
