// Package deployment rolls out the pod template of each Deployment through
// ReplicaSets.
package deployment

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/sampan-io/sampan/services/controller-manager/internal/controller"
	"github.com/sampan-io/sampan/services/controller-manager/internal/ownership"
	"github.com/sampan-io/sampan/services/controller-manager/internal/podcontrol"
	"github.com/sampan-io/sampan/services/controller-manager/internal/pods"
)

const name = "deployment-controller"

// Definition is the controller's entry in the list.
func Definition() controller.Definition {
	return controller.Definition{Name: name, Aliases: []string{"deployment"}, Account: name, New: New}
}

// Controller is the Deployment controller.
type Controller struct {
	client      kubernetes.Interface
	recorder    record.EventRecorder
	deployments appslisters.DeploymentLister
	sets        appslisters.ReplicaSetLister
	pods        cache.Indexer
	clock       clock.PassiveClock
	queue       *controller.Queue
	synced      []cache.InformerSynced
}

// New makes the controller from env.
func New(env controller.Env) (controller.Runner, error) {
	apps, podInformer := env.Informers.Apps().V1(), env.Informers.Core().V1().Pods().Informer()
	c := &Controller{
		client: env.Client, recorder: env.Events.Recorder(name),
		deployments: apps.Deployments().Lister(), sets: apps.ReplicaSets().Lister(), pods: podInformer.GetIndexer(),
		clock: clock.RealClock{},
	}
	c.queue = controller.NewQueue("deployment", env.Config.Workers(name), env.Log, c.reconcile)
	if err := pods.AddOwnerIndex(podInformer); err != nil {
		return nil, err
	}
	add := func(d *appsv1.Deployment) { c.queue.AddObject(d) }
	deploymentsSynced, err := controller.Watch(apps.Deployments().Informer(), add, func(_, d *appsv1.Deployment) { add(d) }, add)
	if err != nil {
		return nil, err
	}
	setsSynced, err := controller.Watch(apps.ReplicaSets().Informer(), c.setChanged, func(old, rs *appsv1.ReplicaSet) {
		c.setChanged(old)
		c.setChanged(rs)
	}, c.setChanged)
	if err != nil {
		return nil, err
	}
	podsSynced, err := controller.Watch(podInformer, nil, c.podUpdated, c.podEnded)
	if err != nil {
		return nil, err
	}
	c.synced = []cache.InformerSynced{deploymentsSynced, setsSynced, podsSynced}
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.queue.Run(ctx, c.synced...) }

func (c *Controller) setChanged(rs *appsv1.ReplicaSet) {
	if ref := metav1.GetControllerOfNoCopy(rs); ref != nil {
		if ref.Kind == "Deployment" {
			c.queue.Add(rs.Namespace + "/" + ref.Name)
		}
		return
	}
	all, err := c.deployments.Deployments(rs.Namespace).List(labels.Everything())
	if err != nil {
		return // a lister over memory does not fail
	}
	for _, d := range all {
		selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
		if err == nil && !selector.Empty() && selector.Matches(labels.Set(rs.Labels)) {
			c.queue.AddObject(d)
		}
	}
}

// podUpdated looks again when a pod has ended without having been deleted.
func (c *Controller) podUpdated(old, pod *corev1.Pod) {
	if !pods.Terminal(old) && pods.Terminal(pod) {
		c.podEnded(pod)
	}
}

// podEnded lets a Recreate go on, which waits for the last old pod.
func (c *Controller) podEnded(pod *corev1.Pod) {
	ref := metav1.GetControllerOfNoCopy(pod)
	if ref == nil || ref.Kind != "ReplicaSet" {
		return
	}
	rs, err := c.sets.ReplicaSets(pod.Namespace).Get(ref.Name)
	if err != nil || rs.UID != ref.UID {
		return
	}
	owner := metav1.GetControllerOfNoCopy(rs)
	if owner == nil || owner.Kind != "Deployment" {
		return
	}
	d, err := c.deployments.Deployments(pod.Namespace).Get(owner.Name)
	if err == nil && !rolling(d) {
		c.queue.AddObject(d)
	}
}

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil // not a key of ours: trying again cannot mend it
	}
	d, err := c.deployments.Deployments(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading deployment %s: %w", key, err)
	}
	if equality.Semantic.DeepEqual(d.Spec.Selector, &metav1.LabelSelector{}) {
		return 0, c.refuseEmptySelector(ctx, d)
	}
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		return 0, nil // the API refuses such selectors; nothing to do until it changes
	}
	sets, err := c.claim(ctx, d, selector)
	if err != nil {
		return 0, err
	}
	plan := Decide(State{Deployment: d, Sets: sets, Now: c.clock.Now(), OldPodsRunning: func(newest *appsv1.ReplicaSet) bool {
		return c.oldPodsRunning(sets, newest)
	}})
	return plan.RequeueAfter, c.carryOut(ctx, d, plan)
}

func (c *Controller) refuseEmptySelector(ctx context.Context, d *appsv1.Deployment) error {
	c.recorder.Eventf(d, corev1.EventTypeWarning, "SelectingAll", "This deployment is selecting all pods. A non-empty selector is required.")
	if d.Status.ObservedGeneration >= d.Generation {
		return nil
	}
	update := d.DeepCopy()
	update.Status.ObservedGeneration = d.Generation
	return c.write(ctx, update)
}

func (c *Controller) claim(ctx context.Context, d *appsv1.Deployment, selector labels.Selector) ([]*appsv1.ReplicaSet, error) {
	all, err := c.sets.ReplicaSets(d.Namespace).List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("listing replica sets of %s/%s: %w", d.Namespace, d.Name, err)
	}
	recheck := ownership.Recheck(d.UID, func(ctx context.Context) (metav1.Object, error) {
		return c.client.AppsV1().Deployments(d.Namespace).Get(ctx, d.Name, metav1.GetOptions{})
	})
	return ownership.Settle(ctx, ownership.Sort[*appsv1.ReplicaSet](d, selector, all), reference(d), recheck, func(ctx context.Context, name string, patch []byte) error {
		_, err := c.client.AppsV1().ReplicaSets(d.Namespace).Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}

func (c *Controller) oldPodsRunning(sets []*appsv1.ReplicaSet, newest *appsv1.ReplicaSet) bool {
	for _, rs := range sets {
		if newest != nil && rs.UID == newest.UID {
			continue
		}
		for _, pod := range pods.OwnedBy(c.pods, rs.UID) {
			if !pods.Terminal(pod) {
				return true
			}
		}
	}
	return false
}

func (c *Controller) carryOut(ctx context.Context, d *appsv1.Deployment, plan Plan) error {
	if plan.Create != nil {
		if err := c.create(ctx, d, plan); err != nil {
			return err
		}
	}
	for _, resize := range plan.Update {
		if err := c.resize(ctx, d, resize); err != nil {
			return err
		}
	}
	for _, rs := range plan.Delete {
		err := c.client.AppsV1().ReplicaSets(rs.Namespace).Delete(ctx, rs.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(rs.UID))})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting old replica set %s: %w", rs.Name, err)
		}
	}
	if plan.Deployment == nil {
		return nil
	}
	return c.write(ctx, plan.Deployment)
}

// create makes the ReplicaSet of the plan. One of that name with the same
// template and owner is that ReplicaSet, which the cache does not show yet; with
// another it is a collision of hashes, and the next look counts it in.
func (c *Controller) create(ctx context.Context, d *appsv1.Deployment, plan Plan) error {
	wanted := plan.Create
	_, err := c.client.AppsV1().ReplicaSets(d.Namespace).Create(ctx, wanted, metav1.CreateOptions{})
	switch {
	case err == nil:
		if size(wanted) > 0 {
			c.recorder.Eventf(d, corev1.EventTypeNormal, "ScalingReplicaSet", "Scaled up replica set %s from 0 to %d", wanted.Name, size(wanted))
		}
		return nil
	case apierrors.IsAlreadyExists(err):
		return c.resolveExisting(ctx, d, wanted)
	case podcontrol.NamespaceEnding(err):
		return nil
	}
	message := fmt.Sprintf("Failed to create new replica set %q: %v", wanted.Name, err)
	c.recorder.Event(d, corev1.EventTypeWarning, reasonCreateFailed, message)
	failed := fmt.Errorf("creating replica set %s/%s: %w", d.Namespace, wanted.Name, err)
	if !hasDeadline(d) {
		return failed
	}
	update := d.DeepCopy()
	setCondition(&update.Status, newCondition(appsv1.DeploymentProgressing, corev1.ConditionFalse, reasonCreateFailed, message, c.clock.Now()))
	return errors.Join(failed, c.write(ctx, update))
}

func (c *Controller) resolveExisting(ctx context.Context, d *appsv1.Deployment, wanted *appsv1.ReplicaSet) error {
	existing, err := c.client.AppsV1().ReplicaSets(d.Namespace).Get(ctx, wanted.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading replica set %s/%s that exists already: %w", d.Namespace, wanted.Name, err)
	}
	if metav1.IsControlledBy(existing, d) && sameTemplate(&existing.Spec.Template, &d.Spec.Template) {
		return nil
	}
	update := d.DeepCopy()
	if update.Status.CollisionCount == nil {
		update.Status.CollisionCount = new(int32)
	}
	*update.Status.CollisionCount++
	if err := c.write(ctx, update); err != nil {
		return err
	}
	return fmt.Errorf("replica set name %s collides with another template's, trying a new hash", wanted.Name)
}

func (c *Controller) resize(ctx context.Context, d *appsv1.Deployment, change Resize) error {
	rs := change.Set
	if _, err := c.client.AppsV1().ReplicaSets(rs.Namespace).Update(ctx, rs, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("updating replica set %s/%s: %w", rs.Namespace, rs.Name, err)
	}
	if after := size(rs); after != change.Before {
		direction := "down"
		if after > change.Before {
			direction = "up"
		}
		c.recorder.Eventf(d, corev1.EventTypeNormal, "ScalingReplicaSet", "Scaled %s replica set %s from %d to %d", direction, rs.Name, change.Before, after)
	}
	return nil
}

// write stores status and revision annotation. Both go through the status
// subresource: an annotation written through the main one would count as a new
// generation.
func (c *Controller) write(ctx context.Context, d *appsv1.Deployment) error {
	_, err := c.client.AppsV1().Deployments(d.Namespace).UpdateStatus(ctx, d, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("writing status of deployment %s/%s: %w", d.Namespace, d.Name, err)
	}
	return nil
}
