// Package namespace empties namespaces that are being deleted, and lets them go.
package namespace

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/sampan-io/sampan/services/controller-manager/internal/controller"
)

const (
	name = "namespace-controller"
	// recheck is how long to wait for finalizers and graceful ends, of which this
	// controller hears nothing.
	recheck = time.Second
)

// Definition is the controller's entry in the list.
func Definition() controller.Definition {
	return controller.Definition{Name: name, Aliases: []string{"namespace"}, Account: name, New: New}
}

// Controller deletes what is in namespaces. Its keys are their names.
type Controller struct {
	client     kubernetes.Interface
	metadata   metadata.Interface
	discovery  discovery.DiscoveryInterface
	namespaces corelisters.NamespaceLister
	clock      clock.PassiveClock
	queue      *controller.Queue
	synced     cache.InformerSynced
}

// New makes the controller from env.
func New(env controller.Env) (controller.Runner, error) {
	namespaces := env.Informers.Core().V1().Namespaces()
	c := &Controller{
		client: env.Client, metadata: env.Metadata, discovery: env.Discovery, namespaces: namespaces.Lister(), clock: clock.RealClock{},
	}
	c.queue = controller.NewQueue("namespace", env.Config.Workers(name), env.Log, c.reconcile)
	add := func(ns *corev1.Namespace) {
		if ns.DeletionTimestamp != nil {
			c.queue.Add(ns.Name)
		}
	}
	synced, err := controller.Watch(namespaces.Informer(), add, func(_, ns *corev1.Namespace) { add(ns) }, nil)
	if err != nil {
		return nil, err
	}
	c.synced = synced
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.queue.Run(ctx, c.synced) }

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	ns, err := c.namespaces.Get(key)
	switch {
	case apierrors.IsNotFound(err):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("reading namespace %s: %w", key, err)
	case ns.DeletionTimestamp == nil || !finalizing(ns):
		return 0, nil
	}
	resources, discoveryErr := c.deletable()
	found := c.empty(ctx, ns, resources)
	found.discovery = discoveryErr
	if err := c.writeConditions(ctx, ns, found); err != nil {
		return 0, err
	}
	switch {
	case discoveryErr != nil || len(found.failed) > 0:
		return 0, errors.Join(append(found.failed, discoveryErr)...)
	case len(found.remaining) > 0:
		return recheck, nil
	}
	return 0, c.finalize(ctx, ns)
}

// finalizing says whether ns still waits for this controller.
func finalizing(ns *corev1.Namespace) bool {
	for _, finalizer := range ns.Spec.Finalizers {
		if finalizer == corev1.FinalizerKubernetes {
			return true
		}
	}
	return false
}

// deletable is every namespaced resource that can be listed and deleted. A group
// whose discovery fails makes an error, and the rest goes on.
func (c *Controller) deletable() ([]schema.GroupVersionResource, error) {
	lists, err := discovery.ServerPreferredNamespacedResources(c.discovery)
	lists = discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "delete"}}, lists)
	found, parseErr := discovery.GroupVersionResources(lists)
	resources := make([]schema.GroupVersionResource, 0, len(found))
	for resource := range found {
		resources = append(resources, resource)
	}
	return inOrder(resources), errors.Join(err, parseErr)
}

// empty deletes all objects of resources in ns and looks at what is left.
func (c *Controller) empty(ctx context.Context, ns *corev1.Namespace, resources []schema.GroupVersionResource) remains {
	found := remains{remaining: map[schema.GroupResource]int{}, finalizers: map[string]int{}}
	podsLeft := false
	for _, resource := range resources {
		left, err := c.deleteAll(ctx, resource, ns.Name)
		if err != nil {
			found.failed = append(found.failed, err)
			continue
		}
		for i := range left {
			found.remaining[resource.GroupResource()]++
			for _, finalizer := range left[i].Finalizers {
				found.finalizers[finalizer]++
			}
		}
		podsLeft = podsLeft || resource.Resource == "pods" && resource.Group == "" && len(left) > 0
		if podsLeft && resource.Resource == "pods" {
			// What pods use on their way out stays until they are gone.
			return found
		}
	}
	return found
}

// deleteAll asks for the deletion of all objects of resource in namespace, and
// returns those that are still there.
func (c *Controller) deleteAll(ctx context.Context, resource schema.GroupVersionResource, namespace string) ([]metav1.PartialObjectMetadata, error) {
	client := c.metadata.Resource(resource).Namespace(namespace)
	list, err := client.List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
		return nil, nil // the resource went while we looked
	}
	if err != nil {
		return nil, fmt.Errorf("listing %s in namespace %s: %w", resource.GroupResource(), namespace, err)
	}
	if len(list.Items) == 0 {
		return nil, nil
	}
	background := metav1.DeletePropagationBackground
	options := metav1.DeleteOptions{PropagationPolicy: &background}
	err = client.DeleteCollection(ctx, options, metav1.ListOptions{})
	if apierrors.IsMethodNotSupported(err) || apierrors.IsNotFound(err) {
		err = c.deleteEach(ctx, client, list.Items, options)
	}
	if err != nil {
		return nil, fmt.Errorf("deleting %s in namespace %s: %w", resource.GroupResource(), namespace, err)
	}
	if list, err = client.List(ctx, metav1.ListOptions{}); err != nil {
		return nil, fmt.Errorf("listing %s in namespace %s: %w", resource.GroupResource(), namespace, err)
	}
	return list.Items, nil
}

func (c *Controller) deleteEach(ctx context.Context, client metadata.ResourceInterface, items []metav1.PartialObjectMetadata, options metav1.DeleteOptions) error {
	for i := range items {
		if err := client.Delete(ctx, items[i].Name, options); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

func (c *Controller) writeConditions(ctx context.Context, ns *corev1.Namespace, found remains) error {
	next := ns.DeepCopy()
	next.Status.Phase = corev1.NamespaceTerminating
	next.Status.Conditions = found.conditions(ns.Status.Conditions, c.clock.Now())
	if equality.Semantic.DeepEqual(next.Status, ns.Status) {
		return nil
	}
	_, err := c.client.CoreV1().Namespaces().UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("writing conditions of namespace %s: %w", ns.Name, err)
	}
	return nil
}

// finalize takes this controller's finalizer away: with the last one the API
// removes the namespace.
func (c *Controller) finalize(ctx context.Context, ns *corev1.Namespace) error {
	fresh, err := c.client.CoreV1().Namespaces().Get(ctx, ns.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && fresh.UID != ns.UID {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading namespace %s: %w", ns.Name, err)
	}
	var kept []corev1.FinalizerName
	for _, finalizer := range fresh.Spec.Finalizers {
		if finalizer != corev1.FinalizerKubernetes {
			kept = append(kept, finalizer)
		}
	}
	fresh.Spec.Finalizers = kept
	if _, err := c.client.CoreV1().Namespaces().Finalize(ctx, fresh, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("finalizing namespace %s: %w", ns.Name, err)
	}
	return nil
}
