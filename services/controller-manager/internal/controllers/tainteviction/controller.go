// Package tainteviction deletes pods from nodes whose NoExecute taints they do not
// tolerate, at once or when their tolerationSeconds are over.
package tainteviction

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/sampan-io/sampan/services/controller-manager/internal/controller"
	"github.com/sampan-io/sampan/services/controller-manager/internal/pods"
)

const name = "taint-eviction-controller"

// Definition is the controller's entry in the list.
func Definition() controller.Definition {
	return controller.Definition{Name: name, Account: "node-controller", New: New}
}

// Controller evicts. Its keys are those of pods.
type Controller struct {
	client   kubernetes.Interface
	recorder record.EventRecorder
	pods     corelisters.PodLister
	byNode   cache.Indexer
	nodes    corelisters.NodeLister
	clock    clock.PassiveClock
	seen     sightings
	queue    *controller.Queue
	synced   []cache.InformerSynced
}

// New makes the controller from env.
func New(env controller.Env) (controller.Runner, error) {
	core := env.Informers.Core().V1()
	informer := core.Pods().Informer()
	c := &Controller{
		client: env.Client, recorder: env.Events.Recorder(name), pods: core.Pods().Lister(), byNode: informer.GetIndexer(),
		nodes: core.Nodes().Lister(), clock: clock.RealClock{},
	}
	c.queue = controller.NewQueue("noexec_taint_pod", 8, env.Log, c.reconcile)
	if err := pods.AddNodeIndex(informer); err != nil {
		return nil, err
	}
	podsSynced, err := controller.Watch(informer, c.podChanged, func(old, pod *corev1.Pod) {
		if old.Spec.NodeName != pod.Spec.NodeName || !equality.Semantic.DeepEqual(old.Spec.Tolerations, pod.Spec.Tolerations) {
			c.podChanged(pod)
		}
	}, func(pod *corev1.Pod) { c.seen.forget(pod.UID) })
	if err != nil {
		return nil, err
	}
	nodesSynced, err := controller.Watch(core.Nodes().Informer(), c.nodeChanged, func(old, node *corev1.Node) {
		if !equality.Semantic.DeepEqual(noExecute(old), noExecute(node)) {
			c.nodeChanged(node)
		}
	}, nil)
	if err != nil {
		return nil, err
	}
	c.synced = []cache.InformerSynced{podsSynced, nodesSynced}
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.queue.Run(ctx, c.synced...) }

func (c *Controller) podChanged(pod *corev1.Pod) {
	if pod.Spec.NodeName != "" && pod.DeletionTimestamp == nil {
		c.queue.AddObject(pod)
	}
}

func (c *Controller) nodeChanged(node *corev1.Node) {
	for _, pod := range pods.OnNode(c.byNode, node.Name) {
		c.podChanged(pod)
	}
}

func noExecute(node *corev1.Node) []corev1.Taint {
	var found []corev1.Taint
	for _, taint := range node.Spec.Taints {
		if taint.Effect == corev1.TaintEffectNoExecute {
			found = append(found, taint)
		}
	}
	return found
}

// verdict is what NoExecute taints mean for a pod: stay for good, or go at a time.
type verdict struct {
	stay bool
	at   time.Time
}

// judge decides for a pod under taints. A pod goes when the first of its
// tolerations runs out, counted from when the taint came, or from seen if the
// taint does not tell; one that it does not tolerate is over at once.
func judge(tolerations []corev1.Toleration, taints []corev1.Taint, seen, now time.Time) verdict {
	decided := verdict{stay: true}
	end := func(at time.Time) {
		if decided.stay || at.Before(decided.at) {
			decided = verdict{at: at}
		}
	}
	for i := range taints {
		tolerated := false
		var shortest *int64
		for j := range tolerations {
			if !tolerations[j].ToleratesTaint(klog.Background(), &taints[i], true) {
				continue
			}
			tolerated = true
			if seconds := tolerations[j].TolerationSeconds; seconds != nil && (shortest == nil || *seconds < *shortest) {
				shortest = seconds
			}
		}
		switch {
		case !tolerated:
			end(now)
		case shortest == nil:
		default:
			since := seen
			if taints[i].TimeAdded != nil {
				since = taints[i].TimeAdded.Time
			}
			end(since.Add(time.Duration(max(*shortest, 0)) * time.Second))
		}
	}
	return decided
}

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, podName, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil // not a key of ours: trying again cannot mend it
	}
	pod, err := c.pods.Pods(namespace).Get(podName)
	if apierrors.IsNotFound(err) || err == nil && (pod.DeletionTimestamp != nil || pod.Spec.NodeName == "") {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading pod %s: %w", key, err)
	}
	node, err := c.nodes.Get(pod.Spec.NodeName)
	if err != nil {
		return 0, nil // its node is not known; its coming brings another look
	}
	now := c.clock.Now()
	decided := judge(pod.Spec.Tolerations, noExecute(node), c.seen.since(pod.UID, now), now)
	switch {
	case decided.stay:
		c.seen.forget(pod.UID)
		return 0, nil
	case decided.at.After(now):
		return decided.at.Sub(now), nil
	}
	return 0, c.evict(ctx, pod)
}

func (c *Controller) evict(ctx context.Context, pod *corev1.Pod) error {
	c.recorder.Eventf(pod, corev1.EventTypeNormal, "TaintManagerEviction", "Marking for deletion Pod %s/%s", pod.Namespace, pod.Name)
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status": map[string]any{"conditions": []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByTaintManager",
			Message: "Taint manager: deleting due to NoExecute taint", LastTransitionTime: metav1.NewTime(c.clock.Now()), ObservedGeneration: pod.Generation,
		}}},
	})
	if err != nil {
		return fmt.Errorf("encoding condition: %w", err)
	}
	client := c.client.CoreV1().Pods(pod.Namespace)
	_, err = client.Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err == nil {
		err = client.Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	}
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("evicting pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
