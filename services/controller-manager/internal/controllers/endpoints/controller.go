// Package endpoints keeps the core/v1 Endpoints of each Service, which older
// clients read instead of EndpointSlices.
//
//nolint:staticcheck // Endpoints are deprecated, and older clients still read them
package endpoints

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/sampan-io/sampan/services/controller-manager/internal/controller"
	"github.com/sampan-io/sampan/services/controller-manager/internal/endpoint"
	"github.com/sampan-io/sampan/services/controller-manager/internal/podcontrol"
)

const name = "endpoints-controller"

// Definition is the controller's entry in the list.
func Definition() controller.Definition {
	return controller.Definition{Name: name, Aliases: []string{"endpoint"}, Account: "endpoint-controller", New: New}
}

// Controller is the Endpoints controller. Its keys are those of Services.
type Controller struct {
	client    kubernetes.Interface
	services  corelisters.ServiceLister
	pods      corelisters.PodLister
	endpoints corelisters.EndpointsLister
	triggers  *endpoint.Triggers
	queue     *controller.Queue
	synced    []cache.InformerSynced
}

// New makes the controller from env.
func New(env controller.Env) (controller.Runner, error) {
	core := env.Informers.Core().V1()
	c := &Controller{
		client: env.Client, services: core.Services().Lister(), pods: core.Pods().Lister(), endpoints: core.Endpoints().Lister(),
		triggers: endpoint.NewTriggers(),
	}
	c.queue = controller.NewQueue("endpoint", env.Config.Workers(name), env.Log, c.reconcile)
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
	changed := func(e *corev1.Endpoints) { c.queue.AddObject(e) }
	endpointsSynced, err := controller.Watch(core.Endpoints().Informer(), changed, func(_, e *corev1.Endpoints) { changed(e) }, changed)
	if err != nil {
		return nil, err
	}
	c.synced = []cache.InformerSynced{servicesSynced, podsSynced, endpointsSynced}
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

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil // not a key of ours: trying again cannot mend it
	}
	service, err := c.services.Services(namespace).Get(name)
	switch {
	case apierrors.IsNotFound(err):
		c.triggers.Forget(key)
		return 0, c.removeOrphan(ctx, namespace, name)
	case err != nil:
		return 0, fmt.Errorf("reading service %s: %w", key, err)
	case !endpoint.Selects(service):
		return 0, nil
	}
	behind, err := c.pods.Pods(namespace).List(endpoint.Selector(service))
	if err != nil {
		return 0, fmt.Errorf("listing pods of service %s: %w", key, err)
	}
	current, err := c.endpoints.Endpoints(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		current = nil
	} else if err != nil {
		return 0, fmt.Errorf("reading endpoints %s: %w", key, err)
	}
	next, change := decide(service, behind, current, c.triggers.Next(key, service, behind))
	if !change {
		return 0, nil
	}
	if current == nil {
		_, err = c.client.CoreV1().Endpoints(namespace).Create(ctx, next, metav1.CreateOptions{})
	} else {
		_, err = c.client.CoreV1().Endpoints(namespace).Update(ctx, next, metav1.UpdateOptions{})
	}
	if err != nil && !apierrors.IsAlreadyExists(err) && !podcontrol.NamespaceEnding(err) {
		return 0, fmt.Errorf("writing endpoints %s: %w", key, err)
	}
	return 0, nil
}

// removeOrphan deletes Endpoints that this controller made for a Service that is
// gone. Those that others made by hand are not its own to remove.
func (c *Controller) removeOrphan(ctx context.Context, namespace, name string) error {
	current, err := c.endpoints.Endpoints(namespace).Get(name)
	if err != nil || current.Labels[managedByLabel] != managedBy {
		return nil
	}
	err = c.client.CoreV1().Endpoints(namespace).Delete(ctx, name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(current.UID))})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting endpoints %s/%s: %w", namespace, name, err)
	}
	return nil
}
