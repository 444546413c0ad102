// Package nodeipam gives each node its own subnet of the cluster's pod range.
package nodeipam

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/sampan-io/sampan/services/controller-manager/internal/controller"
)

const name = "node-ipam-controller"

// Definition is the controller's entry in the list.
func Definition() controller.Definition {
	return controller.Definition{Name: name, Aliases: []string{"nodeipam"}, Account: "node-controller", New: New}
}

// Controller assigns spec.podCIDRs, one per IP family, the moment a node shows.
type Controller struct {
	client   kubernetes.Interface
	nodes    corelisters.NodeLister
	recorder record.EventRecorder
	log      *slog.Logger
	queue    *controller.Queue
	synced   []cache.InformerSynced

	mu   sync.Mutex
	sets []*cidrSet
	held map[string][]netip.Prefix // by node: what is taken in sets
}

// New makes the controller from env; nil when nodes get no subnets from here.
func New(env controller.Env) (controller.Runner, error) {
	if !env.Config.AllocateNodeCIDRs {
		return nil, nil
	}
	if len(env.Config.ClusterCIDRs) == 0 {
		return nil, errors.New("--allocate-node-cidrs wants --cluster-cidr")
	}
	nodes := env.Informers.Core().V1().Nodes()
	c := &Controller{
		client: env.Client, nodes: nodes.Lister(), recorder: env.Events.Recorder("cidrAllocator"),
		log: env.Log, held: map[string][]netip.Prefix{},
	}
	for _, cluster := range env.Config.ClusterCIDRs {
		mask := env.Config.NodeCIDRMaskSizeIPv4
		if cluster.Addr().Is6() {
			mask = env.Config.NodeCIDRMaskSizeIPv6
		}
		set, err := newCIDRSet(cluster, mask)
		if err != nil {
			return nil, err
		}
		for _, services := range env.Config.ServiceCIDRs {
			set.occupy(services)
		}
		c.sets = append(c.sets, set)
	}
	c.queue = controller.NewQueue("cidrallocator_node", env.Config.Workers(name), env.Log, c.reconcile)
	add := func(node *corev1.Node) { c.queue.Add(node.Name) }
	synced, err := controller.Watch(nodes.Informer(), add, func(_, node *corev1.Node) {
		if len(node.Spec.PodCIDRs) == 0 {
			add(node)
		}
	}, add)
	if err != nil {
		return nil, err
	}
	c.synced = []cache.InformerSynced{synced}
	return c, nil
}

// Run first takes what nodes have already, then works until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), c.synced...) {
		return nil
	}
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("listing nodes: %w", err)
	}
	for _, node := range nodes {
		c.hold(node)
	}
	return c.queue.Run(ctx)
}

// hold takes the subnets that node has in its spec.
func (c *Controller) hold(node *corev1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(node.Spec.PodCIDRs) == 0 || len(c.held[node.Name]) > 0 {
		return
	}
	for _, text := range node.Spec.PodCIDRs {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			c.log.Warn("Node has a pod subnet that does not parse", "node", node.Name, "podCIDR", text, "err", err)
			continue
		}
		c.held[node.Name] = append(c.held[node.Name], prefix)
		for _, set := range c.sets {
			set.occupy(prefix)
		}
	}
}

func (c *Controller) release(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, prefix := range c.held[node] {
		for _, set := range c.sets {
			set.release(prefix)
		}
	}
	delete(c.held, node)
}

// reserve is the subnets for node: the same at each call until release.
func (c *Controller) reserve(node string) ([]netip.Prefix, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if held := c.held[node]; len(held) > 0 {
		return held, nil
	}
	var taken []netip.Prefix
	for i, set := range c.sets {
		prefix, err := set.allocate()
		if err != nil {
			for j, back := range taken {
				c.sets[j].release(back)
			}
			return nil, fmt.Errorf("%w %s", err, c.sets[i].cluster)
		}
		taken = append(taken, prefix)
	}
	c.held[node] = taken
	return taken, nil
}

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	node, err := c.nodes.Get(key)
	if apierrors.IsNotFound(err) {
		c.release(key)
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading node %s: %w", key, err)
	}
	if len(node.Spec.PodCIDRs) > 0 {
		c.hold(node)
		return 0, nil
	}
	subnets, err := c.reserve(key)
	if err != nil {
		c.recorder.Event(node, corev1.EventTypeNormal, "CIDRNotAvailable", "Node "+key+" status is now: CIDRNotAvailable")
		return 0, fmt.Errorf("assigning a pod subnet to node %s: %w", key, err)
	}
	return 0, c.assign(ctx, node, subnets)
}

// assign writes the subnets. The API lets podCIDRs be set once: when another
// write came first, what stands is read and held instead.
func (c *Controller) assign(ctx context.Context, node *corev1.Node, subnets []netip.Prefix) error {
	texts := make([]string, len(subnets))
	for i, subnet := range subnets {
		texts[i] = subnet.String()
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID},
		"spec":     map[string]any{"podCIDR": texts[0], "podCIDRs": texts},
	})
	if err != nil {
		return fmt.Errorf("encoding subnets of node %s: %w", node.Name, err)
	}
	_, err = c.client.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	switch {
	case err == nil:
		c.log.Info("Assigned pod subnets", "node", node.Name, "podCIDRs", texts)
		return nil
	case apierrors.IsNotFound(err), apierrors.IsConflict(err), apierrors.IsInvalid(err):
		fresh, getErr := c.client.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{})
		if getErr == nil && len(fresh.Spec.PodCIDRs) > 0 {
			c.release(node.Name)
			c.hold(fresh)
			return nil
		}
	}
	return fmt.Errorf("writing pod subnets of node %s: %w", node.Name, err)
}
