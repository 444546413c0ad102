// Package replicaset keeps as many pods running as each ReplicaSet asks for.
package replicaset

import (
	"context"
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
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/sampan-io/sampan/services/controller-manager/internal/controller"
	"github.com/sampan-io/sampan/services/controller-manager/internal/expectations"
	"github.com/sampan-io/sampan/services/controller-manager/internal/ownership"
	"github.com/sampan-io/sampan/services/controller-manager/internal/podcontrol"
	"github.com/sampan-io/sampan/services/controller-manager/internal/pods"
)

const name = "replicaset-controller"

// Definition is the controller's entry in the list.
func Definition() controller.Definition {
	return controller.Definition{Name: name, Aliases: []string{"replicaset"}, Account: name, New: New}
}

// Controller is the ReplicaSet controller.
type Controller struct {
	client   kubernetes.Interface
	pods     podcontrol.Control
	sets     appslisters.ReplicaSetLister
	podList  corelisters.PodLister
	byOwner  cache.Indexer
	expected *expectations.Store
	clock    clock.PassiveClock
	queue    *controller.Queue
	synced   []cache.InformerSynced
}

// New makes the controller from env.
func New(env controller.Env) (controller.Runner, error) {
	sets, podInformer := env.Informers.Apps().V1().ReplicaSets(), env.Informers.Core().V1().Pods()
	c := &Controller{
		client:   env.Client,
		pods:     podcontrol.Control{Client: env.Client, Recorder: env.Events.Recorder(name)},
		sets:     sets.Lister(),
		podList:  podInformer.Lister(),
		byOwner:  podInformer.Informer().GetIndexer(),
		expected: expectations.New(clock.RealClock{}),
		clock:    clock.RealClock{},
	}
	c.queue = controller.NewQueue("replicaset", env.Config.Workers(name), env.Log, c.reconcile)
	if err := pods.AddOwnerIndex(podInformer.Informer()); err != nil {
		return nil, err
	}
	setsSynced, err := controller.Watch(sets.Informer(),
		func(rs *appsv1.ReplicaSet) { c.queue.AddObject(rs) },
		func(_, rs *appsv1.ReplicaSet) { c.queue.AddObject(rs) },
		func(rs *appsv1.ReplicaSet) {
			c.expected.Forget(controller.Key(rs))
			c.queue.AddObject(rs)
		})
	if err != nil {
		return nil, err
	}
	podsSynced, err := controller.Watch(podInformer.Informer(), c.podAdded, c.podUpdated, c.podDeleted)
	if err != nil {
		return nil, err
	}
	c.synced = []cache.InformerSynced{setsSynced, podsSynced}
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.queue.Run(ctx, c.synced...) }

func (c *Controller) podAdded(pod *corev1.Pod) {
	if owner := ownerKey(pod); owner != "" {
		c.queue.Add(owner)
		return
	}
	if metav1.GetControllerOfNoCopy(pod) == nil && pod.DeletionTimestamp == nil {
		c.addSelecting(pod) // an orphan: whoever selects it may adopt it
	}
}

func (c *Controller) podUpdated(old, pod *corev1.Pod) {
	if old.ResourceVersion == pod.ResourceVersion && pod.ResourceVersion != "" {
		return
	}
	if before := ownerKey(old); before != "" && before != ownerKey(pod) {
		c.queue.Add(before)
	}
	c.podAdded(pod)
}

func (c *Controller) podDeleted(pod *corev1.Pod) {
	if owner := ownerKey(pod); owner != "" {
		c.expected.Gone(owner, pod.Name)
		c.queue.Add(owner)
	}
}

func (c *Controller) addSelecting(pod *corev1.Pod) {
	sets, err := c.sets.GetPodReplicaSets(pod)
	if err != nil {
		return // none selects it
	}
	for _, rs := range sets {
		c.queue.AddObject(rs)
	}
}

// ownerKey is the key of the ReplicaSet that controls pod, or empty.
func ownerKey(pod *corev1.Pod) string {
	ref := metav1.GetControllerOfNoCopy(pod)
	if ref == nil || ref.Kind != "ReplicaSet" {
		return ""
	}
	return pod.Namespace + "/" + ref.Name
}

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil // not a key of ours: trying again cannot mend it
	}
	rs, err := c.sets.ReplicaSets(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		c.expected.Forget(key)
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading replica set %s: %w", key, err)
	}
	selector, err := metav1.LabelSelectorAsSelector(rs.Spec.Selector)
	if err != nil {
		return 0, nil // the API refuses such selectors; nothing to do until it changes
	}
	satisfied := c.expected.Satisfied(key, c.look(namespace))
	owned, err := c.claim(ctx, rs, selector)
	if err != nil {
		return 0, err
	}
	if !satisfied {
		// The cache is behind what was done: neither may more be done, nor do the
		// pods that it shows count. Their events bring the next look, and none may
		// come for a pod that came and went.
		return expectations.Timeout, nil
	}
	manageErr := c.manage(ctx, key, rs, owned)
	next, recheck := status(rs, owned, manageErr, c.clock.Now())
	if err := c.writeStatus(ctx, rs, next); err != nil {
		return 0, err
	}
	return recheck, manageErr
}

func (c *Controller) look(namespace string) expectations.Look {
	lister := c.podList.Pods(namespace)
	return expectations.Look{
		Exists: func(name string) bool { _, err := lister.Get(name); return err == nil },
		Live: func(uid types.UID) bool {
			pod := pods.ByUID(c.byOwner, uid)
			return pod != nil && pod.DeletionTimestamp == nil
		},
	}
}

// claim is the pods of rs, after adopting and releasing.
func (c *Controller) claim(ctx context.Context, rs *appsv1.ReplicaSet, selector labels.Selector) ([]*corev1.Pod, error) {
	candidates, err := pods.Candidates(c.byOwner, rs)
	if err != nil {
		return nil, fmt.Errorf("listing pods of %s/%s: %w", rs.Namespace, rs.Name, err)
	}
	claims := ownership.Sort[*corev1.Pod](rs, selector, candidates)
	recheck := ownership.Recheck(rs.UID, func(ctx context.Context) (metav1.Object, error) {
		return c.client.AppsV1().ReplicaSets(rs.Namespace).Get(ctx, rs.Name, metav1.GetOptions{})
	})
	return ownership.Settle(ctx, claims, reference(rs), recheck, func(ctx context.Context, name string, patch []byte) error {
		_, err := c.client.CoreV1().Pods(rs.Namespace).Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}

func reference(rs *appsv1.ReplicaSet) metav1.OwnerReference {
	return *metav1.NewControllerRef(rs, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))
}

// manage creates or deletes pods until their number is right.
func (c *Controller) manage(ctx context.Context, key string, rs *appsv1.ReplicaSet, owned []*corev1.Pod) error {
	var active []*corev1.Pod
	for _, pod := range owned {
		if pods.Active(pod) {
			active = append(active, pod)
		}
	}
	todo := planPods(rs, active, c.related(rs, active), c.clock.Now())
	if todo.create > 0 {
		return c.create(ctx, key, rs, todo.create)
	}
	return c.remove(ctx, key, rs, todo.remove)
}

func (c *Controller) create(ctx context.Context, key string, rs *appsv1.ReplicaSet, count int) error {
	_, err := podcontrol.SlowStart(count, func(int) error {
		made, err := c.pods.Create(ctx, rs, podcontrol.Render(rs, &rs.Spec.Template, reference(rs)))
		if podcontrol.NamespaceEnding(err) {
			return nil
		}
		if err != nil {
			return err
		}
		c.expected.Created(key, made.Name)
		return nil
	})
	return err
}

func (c *Controller) remove(ctx context.Context, key string, rs *appsv1.ReplicaSet, victims []*corev1.Pod) error {
	_, err := podcontrol.SlowStart(len(victims), func(i int) error {
		c.expected.Deleted(key, victims[i].UID)
		err := c.pods.Delete(ctx, rs, victims[i])
		if apierrors.IsNotFound(err) {
			return nil // gone already; the cache will show it
		}
		if err != nil {
			c.expected.Undeleted(key, victims[i].UID)
		}
		return err
	})
	return err
}

// related is the pods of all ReplicaSets that have the controller of rs.
func (c *Controller) related(rs *appsv1.ReplicaSet, own []*corev1.Pod) []*corev1.Pod {
	ref := metav1.GetControllerOfNoCopy(rs)
	if ref == nil || len(own) <= int(replicas(rs)) {
		return own
	}
	siblings, err := c.sets.ReplicaSets(rs.Namespace).List(labels.Everything())
	if err != nil {
		return own
	}
	related := own
	for _, other := range siblings {
		if other.UID == rs.UID || !metav1.IsControlledBy(other, &metav1.ObjectMeta{UID: ref.UID}) {
			continue
		}
		related = append(related[:len(related):len(related)], pods.OwnedBy(c.byOwner, other.UID)...)
	}
	return related
}

// writeStatus writes next where it differs. A conflict or a vanished object
// needs no error of its own: the change that caused it brings another look.
func (c *Controller) writeStatus(ctx context.Context, rs *appsv1.ReplicaSet, next appsv1.ReplicaSetStatus) error {
	if equality.Semantic.DeepEqual(rs.Status, next) {
		return nil
	}
	update := rs.DeepCopy()
	update.Status = next
	_, err := c.client.AppsV1().ReplicaSets(rs.Namespace).UpdateStatus(ctx, update, metav1.UpdateOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("writing status of replica set %s/%s: %w", rs.Namespace, rs.Name, err)
	}
	return nil
}
