// Package nodelifecycle says which nodes are alive, by their Leases, and taints
// those that are not or that are under pressure.
package nodelifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	coordinationlisters "k8s.io/client-go/listers/coordination/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/sampan-io/sampan/services/controller-manager/internal/controller"
	"github.com/sampan-io/sampan/services/controller-manager/internal/pods"
)

const name = "node-lifecycle-controller"

// Definition is the controller's entry in the list.
func Definition() controller.Definition {
	return controller.Definition{Name: name, Aliases: []string{"nodelifecycle"}, Account: "node-controller", New: New}
}

// Controller watches over nodes. Its keys are their names.
type Controller struct {
	client   kubernetes.Interface
	recorder record.EventRecorder
	nodes    corelisters.NodeLister
	leases   coordinationlisters.LeaseLister
	pods     cache.Indexer
	config   controller.Config
	clock    clock.PassiveClock
	queue    *controller.Queue
	synced   []cache.InformerSynced

	mu   sync.Mutex
	seen map[string]sign
}

// New makes the controller from env.
func New(env controller.Env) (controller.Runner, error) {
	nodes, leases := env.Informers.Core().V1().Nodes(), env.Informers.Coordination().V1().Leases()
	podInformer := env.Informers.Core().V1().Pods().Informer()
	c := &Controller{
		client: env.Client, recorder: env.Events.Recorder("node-controller"), nodes: nodes.Lister(), leases: leases.Lister(),
		pods: podInformer.GetIndexer(), config: env.Config, clock: clock.RealClock{}, seen: map[string]sign{},
	}
	c.queue = controller.NewQueue("node_lifecycle_controller", env.Config.Workers(name), env.Log, c.reconcile)
	if err := pods.AddNodeIndex(podInformer); err != nil {
		return nil, err
	}
	add := func(node *corev1.Node) { c.queue.Add(node.Name) }
	nodesSynced, err := controller.Watch(nodes.Informer(), add, func(_, node *corev1.Node) { add(node) }, add)
	if err != nil {
		return nil, err
	}
	renewed := func(lease *coordinationv1.Lease) {
		if lease.Namespace == corev1.NamespaceNodeLease {
			c.queue.Add(lease.Name)
		}
	}
	leasesSynced, err := controller.Watch(leases.Informer(), renewed, func(_, lease *coordinationv1.Lease) { renewed(lease) }, nil)
	if err != nil {
		return nil, err
	}
	c.synced = []cache.InformerSynced{nodesSynced, leasesSynced, podInformer.HasSynced}
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.queue.Run(ctx, c.synced...) }

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	node, err := c.nodes.Get(key)
	if apierrors.IsNotFound(err) {
		c.mu.Lock()
		delete(c.seen, key)
		c.mu.Unlock()
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading node %s: %w", key, err)
	}
	lease, err := c.leases.Leases(corev1.NamespaceNodeLease).Get(key)
	if err != nil {
		lease = nil // none yet
	}
	now := c.clock.Now()
	c.mu.Lock()
	last := look(c.seen[key], node, lease, now)
	c.seen[key] = last
	c.mu.Unlock()

	grace := c.config.NodeMonitorGracePeriod
	if condition(node, corev1.NodeReady) == nil { // it has just been made
		grace = c.config.NodeStartupGracePeriod
	}
	silent := now.Sub(last.at) >= grace
	if silent {
		if node, err = c.markUnknown(ctx, node, now); err != nil {
			return 0, err
		}
	}
	if err := c.writeTaints(ctx, node, now); err != nil {
		return 0, err
	}
	if !isTrue(condition(node, corev1.NodeReady)) {
		if err := c.markPodsNotReady(ctx, node, now); err != nil {
			return 0, err
		}
	}
	if silent {
		return c.config.NodeMonitorPeriod, nil
	}
	return grace - now.Sub(last.at), nil
}

// markUnknown sets the conditions that the node agent keeps to Unknown.
func (c *Controller) markUnknown(ctx context.Context, node *corev1.Node, now time.Time) (*corev1.Node, error) {
	next, changed := unknown(node, now)
	if !changed {
		return node, nil
	}
	updated, err := c.client.CoreV1().Nodes().UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("marking node %s as unknown: %w", node.Name, err)
	}
	c.recorder.Eventf(nodeReference(node), corev1.EventTypeNormal, "NodeNotReady", "Node %s status is now: NodeNotReady", node.Name)
	return updated, nil
}

// nodeReference is how events name a node: upstream's use the name as the UID.
func nodeReference(node *corev1.Node) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
}

// writeTaints brings the node's taints in line with its conditions.
func (c *Controller) writeTaints(ctx context.Context, node *corev1.Node, now time.Time) error {
	taints, changed := wantedTaints(node, now)
	if !changed {
		return nil
	}
	if taints == nil {
		taints = []corev1.Taint{}
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion},
		"spec":     map[string]any{"taints": taints},
	})
	if err != nil {
		return fmt.Errorf("encoding taints of node %s: %w", node.Name, err)
	}
	if _, err := c.client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("writing taints of node %s: %w", node.Name, err)
	}
	return nil
}

// markPodsNotReady takes the pods of a node that is not ready out of their
// Services.
func (c *Controller) markPodsNotReady(ctx context.Context, node *corev1.Node, now time.Time) error {
	var errs []error
	for _, pod := range pods.OnNode(c.pods, node.Name) {
		if !pods.Ready(pod) {
			continue
		}
		next := pod.DeepCopy()
		ready := pods.Condition(next, corev1.PodReady)
		ready.Status, ready.Reason, ready.Message = corev1.ConditionFalse, "NodeNotReady", "Node is not ready"
		ready.LastTransitionTime = metav1.NewTime(now)
		ready.ObservedGeneration = pod.Generation
		c.recorder.Event(pod, corev1.EventTypeWarning, "NodeNotReady", "Node is not ready")
		_, err := c.client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("marking pod %s/%s as not ready: %w", pod.Namespace, pod.Name, err))
		}
	}
	return errors.Join(errs...)
}
