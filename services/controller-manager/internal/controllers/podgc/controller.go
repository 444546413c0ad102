// Package podgc removes pods that no node agent will remove: those of nodes that
// are gone, those deleted before they had a node, and ended ones beyond a number.
package podgc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/sampan-io/sampan/services/controller-manager/internal/controller"
	"github.com/sampan-io/sampan/services/controller-manager/internal/pods"
)

const (
	name = "pod-garbage-collector-controller"
	// quarantine is how long a node must be gone before its pods are: it may only
	// have been made anew.
	quarantine = 40 * time.Second
	period     = 20 * time.Second
	everything = "all"
)

// Definition is the controller's entry in the list.
func Definition() controller.Definition {
	return controller.Definition{Name: name, Aliases: []string{"podgc"}, Account: "pod-garbage-collector", New: New}
}

// Controller looks at all pods at once: it has one key.
type Controller struct {
	client    kubernetes.Interface
	pods      corelisters.PodLister
	nodes     corelisters.NodeLister
	threshold int
	clock     clock.PassiveClock
	missing   map[string]time.Time // nodes that pods name and that are not there
	queue     *controller.Queue
	synced    []cache.InformerSynced
}

// New makes the controller from env.
func New(env controller.Env) (controller.Runner, error) {
	core := env.Informers.Core().V1()
	c := &Controller{
		client: env.Client, pods: core.Pods().Lister(), nodes: core.Nodes().Lister(), threshold: env.Config.TerminatedPodThreshold,
		clock: clock.RealClock{}, missing: map[string]time.Time{},
	}
	c.queue = controller.NewQueue("orphaned_pods_nodes", 1, env.Log, c.reconcile)
	podsSynced, err := controller.Watch(core.Pods().Informer(), nil, func(_, pod *corev1.Pod) {
		if pod.DeletionTimestamp != nil && pod.Spec.NodeName == "" {
			c.queue.Add(everything)
		}
	}, nil)
	if err != nil {
		return nil, err
	}
	nodesSynced, err := controller.Watch(core.Nodes().Informer(), nil, nil, func(*corev1.Node) { c.queue.Add(everything) })
	if err != nil {
		return nil, err
	}
	c.synced = []cache.InformerSynced{podsSynced, nodesSynced}
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	c.queue.Add(everything)
	return c.queue.Run(ctx, c.synced...)
}

// removal is a pod to delete at once. Fail marks it as failed first, for those who
// wait for its end.
type removal struct {
	pod    *corev1.Pod
	fail   bool
	reason string
}

func (c *Controller) reconcile(ctx context.Context, _ string) (time.Duration, error) {
	all, err := c.pods.List(labels.Everything())
	if err != nil {
		return 0, fmt.Errorf("listing pods: %w", err)
	}
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return 0, fmt.Errorf("listing nodes: %w", err)
	}
	removals := decide(all, nodes, c.missing, c.threshold, c.clock.Now())
	var errs []error
	checked := map[string]bool{}
	for _, r := range removals {
		if r.reason == nodeGone {
			gone, known := checked[r.pod.Spec.NodeName]
			if !known {
				gone = c.reallyGone(ctx, r.pod.Spec.NodeName)
				checked[r.pod.Spec.NodeName] = gone
			}
			if !gone {
				continue
			}
		}
		if err := c.remove(ctx, r); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return 0, err
	}
	return period, nil
}

// Reasons of removals.
const (
	nodeGone    = "node is gone"
	unscheduled = "deleted before it had a node"
	surplus     = "too many ended pods"
	outOfReach  = "terminating on a node that is out of service"
)

// decide chooses pods to remove. It keeps in missing since when nodes are gone.
func decide(all []*corev1.Pod, nodes []*corev1.Node, missing map[string]time.Time, threshold int, now time.Time) []removal {
	there := map[string]*corev1.Node{}
	for _, node := range nodes {
		there[node.Name] = node
		delete(missing, node.Name)
	}
	var removals []removal
	var ended []*corev1.Pod
	named := map[string]bool{}
	for _, pod := range all {
		node := there[pod.Spec.NodeName]
		switch {
		case pod.Spec.NodeName == "" && pod.DeletionTimestamp != nil:
			removals = append(removals, removal{pod: pod, fail: true, reason: unscheduled})
		case pod.Spec.NodeName != "" && node == nil:
			named[pod.Spec.NodeName] = true
			if goneFor(missing, pod.Spec.NodeName, now) >= quarantine {
				removals = append(removals, removal{pod: pod, fail: true, reason: nodeGone})
			}
		case node != nil && pod.DeletionTimestamp != nil && outOfService(node):
			removals = append(removals, removal{pod: pod, fail: true, reason: outOfReach})
		case pods.Terminal(pod) && pod.DeletionTimestamp == nil:
			ended = append(ended, pod)
		}
	}
	maps.DeleteFunc(missing, func(name string, _ time.Time) bool { return !named[name] })
	return append(removals, oldest(ended, threshold)...)
}

// goneFor is how long a node has been missing, from when that was first seen.
func goneFor(missing map[string]time.Time, node string, now time.Time) time.Duration {
	if _, known := missing[node]; !known {
		missing[node] = now
	}
	return now.Sub(missing[node])
}

func outOfService(node *corev1.Node) bool {
	notReady := true
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			notReady = false
		}
	}
	return notReady && slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}

// oldest is the ended pods beyond threshold; evicted ones go first.
func oldest(ended []*corev1.Pod, threshold int) []removal {
	if threshold <= 0 || len(ended) <= threshold {
		return nil
	}
	evicted := func(pod *corev1.Pod) int {
		if pod.Status.Reason == "Evicted" {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(ended, func(a, b *corev1.Pod) int {
		if c := evicted(a) - evicted(b); c != 0 {
			return c
		}
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	var removals []removal
	for _, pod := range ended[:len(ended)-threshold] {
		removals = append(removals, removal{pod: pod, reason: surplus})
	}
	return removals
}

func (c *Controller) reallyGone(ctx context.Context, node string) bool {
	_, err := c.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	return apierrors.IsNotFound(err)
}

func (c *Controller) remove(ctx context.Context, r removal) error {
	if r.fail && !pods.Terminal(r.pod) {
		if err := c.fail(ctx, r); err != nil {
			return err
		}
	}
	now := int64(0)
	err := c.client.CoreV1().Pods(r.pod.Namespace).Delete(ctx, r.pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &now, Preconditions: metav1.NewUIDPreconditions(string(r.pod.UID)),
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("removing pod %s/%s (%s): %w", r.pod.Namespace, r.pod.Name, r.reason, err)
	}
	return nil
}

// fail marks a pod as failed, with the condition that says that it was disrupted.
func (c *Controller) fail(ctx context.Context, r removal) error {
	status := map[string]any{"phase": corev1.PodFailed}
	if r.reason != unscheduled {
		status["conditions"] = []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByPodGC",
			Message: "PodGC: " + r.reason, LastTransitionTime: metav1.NewTime(c.clock.Now()), ObservedGeneration: r.pod.Generation,
		}}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": r.pod.UID}, "status": status})
	if err != nil {
		return fmt.Errorf("encoding status: %w", err)
	}
	_, err = c.client.CoreV1().Pods(r.pod.Namespace).Patch(ctx, r.pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("marking pod %s/%s as failed: %w", r.pod.Namespace, r.pod.Name, err)
	}
	return nil
}
