// Package resourcequota counts what namespaces use of their ResourceQuotas.
//
// The API server charges each write to the quotas before it stores the object, so
// that the figures only drift by charges whose objects came to nothing, and by
// objects that go. A count that came between a charge and its object would miss
// the object, and let a namespace pass its limit: a quota is therefore counted only
// when it has been quiet for a moment, and the count is stored only if the quota
// has not changed since.
package resourcequota

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/sampan-io/sampan/services/controller-manager/internal/controller"
	"github.com/sampan-io/sampan/services/internal/quota"
)

const (
	name = "resourcequota-controller"
	// quiet is how long a quota must not have changed before it is counted: longer
	// than a write takes from its charge to the store.
	quiet = time.Second
	// unknownRetry is when a resource is looked for again that the API does not serve.
	unknownRetry = 30 * time.Second
	// defaultResync is how often all is counted though nothing happens.
	defaultResync = 5 * time.Minute
)

// Definition is the controller's entry in the list.
func Definition() controller.Definition {
	return controller.Definition{Name: name, Aliases: []string{"resourcequota"}, Account: "resourcequota-controller", New: New}
}

// Controller works on quotas by namespace and name.
type Controller struct {
	client   kubernetes.Interface
	metadata metadata.Interface
	mapper   meta.ResettableRESTMapper
	quotas   corelisters.ResourceQuotaLister
	pods     corelisters.PodLister
	services corelisters.ServiceLister
	claims   corelisters.PersistentVolumeClaimLister
	monitors *monitors
	resync   time.Duration
	queue    *controller.Queue
	synced   []cache.InformerSynced
	clock    clock.PassiveClock
	log      *slog.Logger

	mu      sync.Mutex
	changed map[string]time.Time // when a quota was last seen to change, by key
}

// New makes the controller from env.
func New(env controller.Env) (controller.Runner, error) {
	core := env.Informers.Core().V1()
	c := &Controller{
		client: env.Client, metadata: env.Metadata, mapper: env.Mapper, quotas: core.ResourceQuotas().Lister(),
		pods: core.Pods().Lister(), services: core.Services().Lister(), claims: core.PersistentVolumeClaims().Lister(),
		resync: env.Config.QuotaSyncPeriod, clock: clock.RealClock{}, log: env.Log, changed: map[string]time.Time{},
	}
	if c.resync <= 0 {
		c.resync = defaultResync
	}
	c.monitors = newMonitors(env.Metadata, func(resource schema.GroupResource, object metav1.Object) { c.look(resource, object.GetNamespace()) })
	c.queue = controller.NewQueue("resource_quota", env.Config.Workers(name), env.Log, c.reconcile)
	quotasSynced, err := controller.Watch(core.ResourceQuotas().Informer(), c.note,
		func(_, q *corev1.ResourceQuota) { c.note(q) }, func(q *corev1.ResourceQuota) { c.forget(q) })
	if err != nil {
		return nil, err
	}
	c.synced = []cache.InformerSynced{quotasSynced}
	if err := watch[*corev1.Pod](c, core.Pods().Informer(), corev1.Resource("pods")); err != nil {
		return nil, err
	}
	if err := watch[*corev1.Service](c, core.Services().Informer(), corev1.Resource("services")); err != nil {
		return nil, err
	}
	return c, watch[*corev1.PersistentVolumeClaim](c, core.PersistentVolumeClaims().Informer(), corev1.Resource("persistentvolumeclaims"))
}

// object is a kind that is watched whole.
type object interface {
	runtime.Object
	metav1.Object
}

// watch looks at a namespace's quotas when an object comes, goes, or counts for
// something else.
func watch[T object](c *Controller, informer cache.SharedIndexInformer, resource schema.GroupResource) error {
	evaluator := quota.For(resource)
	look := func(obj T) { c.look(resource, obj.GetNamespace()) }
	synced, err := controller.Watch(informer, look, func(old, obj T) {
		if evaluator.Freed(obj, old) {
			look(obj)
		}
	}, look)
	c.synced = append(c.synced, synced)
	return err
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	defer c.monitors.wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	c.monitors.begin(ctx)
	return c.queue.Run(ctx, c.synced...)
}

// note remembers that a quota has changed, and has it counted when it is quiet;
// one whose limits are new at once.
func (c *Controller) note(q *corev1.ResourceQuota) {
	key := controller.Key(q)
	c.mu.Lock()
	c.changed[key] = c.clock.Now()
	c.mu.Unlock()
	if declared(q) {
		c.queue.Add(key)
		return
	}
	c.queue.AddAfter(key, quiet)
}

func (c *Controller) forget(q *corev1.ResourceQuota) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.changed, controller.Key(q))
}

// declared says whether a quota's limits are not in its status yet.
func declared(q *corev1.ResourceQuota) bool {
	return q.Status.Hard == nil || q.Status.Used == nil || !quota.Equal(q.Spec.Hard, q.Status.Hard)
}

// look has the quotas of a namespace counted that are about a resource.
func (c *Controller) look(resource schema.GroupResource, namespace string) {
	quotas, err := c.quotas.ResourceQuotas(namespace).List(labels.Everything())
	if err != nil {
		return
	}
	evaluator := quota.For(resource)
	for _, q := range quotas {
		if len(quota.Tracked(evaluator, q.Spec.Hard)) > 0 {
			c.queue.AddObject(q)
		}
	}
}

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, quotaName, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil //nolint:nilerr // no key of ours
	}
	q, err := c.quotas.ResourceQuotas(namespace).Get(quotaName)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading quota %s: %w", key, err)
	}
	next := c.resync
	for _, resource := range quota.Resources(&q.Spec) {
		if err := c.monitor(resource); err != nil {
			c.log.Debug("Quota on a resource that is not served", "quota", key, "resource", resource.String(), "err", err)
			next = unknownRetry
		}
	}
	if declared(q) {
		return next, c.count(ctx, q)
	}
	if wait := c.untilQuiet(key); wait > 0 {
		return wait, nil
	}
	if used, err := quota.Used(&q.Spec, c.cached(namespace)); err == nil && quota.Equal(merged(q, used), q.Status.Used) {
		return next, nil
	}
	return next, c.count(ctx, q)
}

func (c *Controller) untilQuiet(key string) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return quiet - c.clock.Since(c.changed[key])
}

// merged is what a status should say is used: what was counted, and what it said
// before of what could not be.
func merged(q *corev1.ResourceQuota, counted corev1.ResourceList) corev1.ResourceList {
	used := quota.Only(q.Status.Used, q.Spec.Hard)
	for name, value := range counted {
		used[name] = value
	}
	return used
}

// count asks the API server for all that a quota is about, and stores the sum if
// the quota is still the one that it was.
func (c *Controller) count(ctx context.Context, q *corev1.ResourceQuota) error {
	used, listErr := quota.Used(&q.Spec, c.live(ctx, q.Namespace))
	updated := q.DeepCopy()
	updated.Status = corev1.ResourceQuotaStatus{Hard: q.Spec.DeepCopy().Hard, Used: merged(q, used)}
	if !declared(q) && quota.Equal(updated.Status.Used, q.Status.Used) {
		return listErr
	}
	_, err := c.client.CoreV1().ResourceQuotas(q.Namespace).UpdateStatus(ctx, updated, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("updating quota %s/%s: %w", q.Namespace, q.Name, err)
	}
	return listErr
}
