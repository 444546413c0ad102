// Package endpointslice keeps the EndpointSlices of each Service in step with the
// pods that it selects.
package endpointslice

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/sampan-io/sampan/services/controller-manager/internal/controller"
	"github.com/sampan-io/sampan/services/controller-manager/internal/endpoint"
	"github.com/sampan-io/sampan/services/controller-manager/internal/expectations"
	"github.com/sampan-io/sampan/services/controller-manager/internal/podcontrol"
)

const name = "endpointslice-controller"

// Definition is the controller's entry in the list.
func Definition() controller.Definition {
	return controller.Definition{Name: name, Aliases: []string{"endpointslice"}, Account: name, New: New}
}

// Controller is the EndpointSlice controller. Its keys are those of Services.
type Controller struct {
	client   kubernetes.Interface
	recorder record.EventRecorder
	services corelisters.ServiceLister
	pods     corelisters.PodLister
	nodes    corelisters.NodeLister
	slices   discoverylisters.EndpointSliceLister
	limit    int
	expected *expectations.Store
	triggers *endpoint.Triggers
	queue    *controller.Queue
	synced   []cache.InformerSynced
}

// New makes the controller from env.
func New(env controller.Env) (controller.Runner, error) {
	core, slices := env.Informers.Core().V1(), env.Informers.Discovery().V1().EndpointSlices()
	c := &Controller{
		client: env.Client, recorder: env.Events.Recorder("endpoint-slice-controller"),
		services: core.Services().Lister(), pods: core.Pods().Lister(), nodes: core.Nodes().Lister(), slices: slices.Lister(),
		limit: env.Config.MaxEndpointsPerSlice, expected: expectations.New(clock.RealClock{}), triggers: endpoint.NewTriggers(),
	}
	c.queue = controller.NewQueue("endpoint_slice", env.Config.Workers(name), env.Log, c.reconcile)
	add := func(service *corev1.Service) { c.queue.AddObject(service) }
	servicesSynced, err := controller.Watch(core.Services().Informer(), add, func(_, service *corev1.Service) { add(service) }, add)
	if err != nil {
		return nil, err
	}
	podsSynced, err := controller.Watch(core.Pods().Informer(), c.podChanged, func(old, pod *corev1.Pod) {
		if endpoint.Relevant(old, pod) {
			c.podChanged(old)
			c.podChanged(pod)
		}
	}, c.podChanged)
	if err != nil {
		return nil, err
	}
	slicesSynced, err := controller.Watch(slices.Informer(), c.sliceChanged, func(old, slice *discoveryv1.EndpointSlice) {
		c.sliceChanged(old)
		c.sliceChanged(slice)
	}, c.sliceGone)
	if err != nil {
		return nil, err
	}
	nodesSynced, err := controller.Watch(core.Nodes().Informer(), nil, c.nodeChanged, nil)
	if err != nil {
		return nil, err
	}
	c.synced = []cache.InformerSynced{servicesSynced, podsSynced, slicesSynced, nodesSynced}
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.queue.Run(ctx, c.synced...) }

func (c *Controller) podChanged(pod *corev1.Pod) {
	services, err := c.services.Services(pod.Namespace).List(labels.Everything())
	if err != nil {
		return // a lister over memory does not fail
	}
	for _, service := range services {
		if endpoint.Selects(service) && endpoint.Selector(service).Matches(labels.Set(pod.Labels)) {
			c.queue.AddObject(service)
		}
	}
}

// nodeChanged looks at all services when a node moves to another zone.
func (c *Controller) nodeChanged(old, node *corev1.Node) {
	if old.Labels[corev1.LabelTopologyZone] == node.Labels[corev1.LabelTopologyZone] {
		return
	}
	services, err := c.services.List(labels.Everything())
	if err != nil {
		return
	}
	for _, service := range services {
		c.queue.AddObject(service)
	}
}

func (c *Controller) sliceChanged(slice *discoveryv1.EndpointSlice) {
	if slice.Labels[discoveryv1.LabelManagedBy] == managedBy && slice.Labels[discoveryv1.LabelServiceName] != "" {
		c.queue.Add(serviceKey(slice))
	}
}

func (c *Controller) sliceGone(slice *discoveryv1.EndpointSlice) {
	c.expected.Gone(serviceKey(slice), slice.Name)
	c.sliceChanged(slice)
}

func serviceKey(slice *discoveryv1.EndpointSlice) string {
	return slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName]
}

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil // not a key of ours: trying again cannot mend it
	}
	service, err := c.services.Services(namespace).Get(name)
	switch {
	case apierrors.IsNotFound(err):
		c.expected.Forget(key)
		c.triggers.Forget(key)
		return 0, nil // the garbage collector removes its slices
	case err != nil:
		return 0, fmt.Errorf("reading service %s: %w", key, err)
	case !endpoint.Selects(service):
		return 0, nil
	}
	standing, err := c.slices.EndpointSlices(namespace).List(labels.SelectorFromSet(labels.Set{
		discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: managedBy,
	}))
	if err != nil {
		return 0, fmt.Errorf("listing endpoint slices of %s: %w", key, err)
	}
	if !c.expected.Satisfied(key, c.look(namespace, standing)) {
		return expectations.Timeout, nil // the slices' events bring the next look
	}
	behind, err := c.pods.Pods(namespace).List(endpoint.Selector(service))
	if err != nil {
		return 0, fmt.Errorf("listing pods of service %s: %w", key, err)
	}
	todo := decide(state{
		service: service, pods: behind, slices: standing, limit: c.limit, node: c.node,
		trigger: c.triggers.Next(key, service, behind),
	})
	if err := c.carryOut(ctx, key, todo); err != nil {
		c.recorder.Eventf(service, corev1.EventTypeWarning, "FailedToUpdateEndpointSlices", "Error updating Endpoint Slices for Service %s: %v", key, err)
		return 0, err
	}
	if len(todo.homeless) > 0 {
		return 0, fmt.Errorf("pods %v of service %s are on nodes that are not known", todo.homeless, key)
	}
	return 0, nil
}

func (c *Controller) look(namespace string, standing []*discoveryv1.EndpointSlice) expectations.Look {
	return expectations.Look{
		Exists: func(name string) bool { _, err := c.slices.EndpointSlices(namespace).Get(name); return err == nil },
		Live: func(uid types.UID) bool {
			for _, slice := range standing {
				if slice.UID == uid && slice.DeletionTimestamp == nil {
					return true
				}
			}
			return false
		},
	}
}

func (c *Controller) node(name string) *corev1.Node {
	node, err := c.nodes.Get(name)
	if err != nil {
		return nil
	}
	return node
}

// carryOut creates before it deletes, so that no endpoint is missing between.
func (c *Controller) carryOut(ctx context.Context, key string, todo plan) error {
	var errs []error
	for _, slice := range todo.create {
		made, err := c.client.DiscoveryV1().EndpointSlices(slice.Namespace).Create(ctx, slice, metav1.CreateOptions{})
		switch {
		case err == nil:
			c.expected.Created(key, made.Name)
		case podcontrol.NamespaceEnding(err):
			return nil
		default:
			errs = append(errs, fmt.Errorf("creating endpoint slice of service %s: %w", key, err))
		}
	}
	for _, slice := range todo.update {
		if _, err := c.client.DiscoveryV1().EndpointSlices(slice.Namespace).Update(ctx, slice, metav1.UpdateOptions{}); err != nil {
			if apierrors.IsConflict(err) {
				return fmt.Errorf("updating endpoint slice %s: %w", slice.Name, err)
			}
			errs = append(errs, fmt.Errorf("updating endpoint slice %s: %w", slice.Name, err))
		}
	}
	for _, slice := range todo.remove {
		c.expected.Deleted(key, slice.UID)
		err := c.client.DiscoveryV1().EndpointSlices(slice.Namespace).Delete(ctx, slice.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			c.expected.Undeleted(key, slice.UID)
			errs = append(errs, fmt.Errorf("deleting endpoint slice %s: %w", slice.Name, err))
		}
	}
	return errors.Join(errs...)
}
