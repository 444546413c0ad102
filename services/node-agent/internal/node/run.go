package node

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// Run registers the node and keeps it until ctx ends.
func (n *Node) Run(ctx context.Context) error {
	if err := n.register(ctx); err != nil {
		return nil // only when ctx has ended
	}
	close(n.ready)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return n.watch(ctx) })
	group.Go(func() error { return n.keepStatus(ctx) })
	group.Go(func() error { return n.keepLease(ctx) })
	return group.Wait()
}

// register tries until it has, or ctx ends.
func (n *Node) register(ctx context.Context) error {
	const first, most = 50 * time.Millisecond, 5 * time.Second
	for pause := first; ; pause = min(2*pause, most) {
		err := n.tryRegister(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		n.cfg.Log.WarnContext(ctx, "Registering the node", "node", n.cfg.Name, "err", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (n *Node) tryRegister(ctx context.Context) error {
	nodes := n.cfg.Client.CoreV1().Nodes()
	existing, err := nodes.Get(ctx, n.cfg.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && n.cfg.Register {
		object := n.desired()
		object.Status = n.makeStatus(ctx, object)
		existing, err = nodes.Create(ctx, object, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			existing, err = nodes.Get(ctx, n.cfg.Name, metav1.GetOptions{})
		}
	}
	if err != nil {
		return err
	}
	n.setObject(existing)
	return n.relabel(ctx, existing)
}

// relabel brings the labels that this node owns up to date.
func (n *Node) relabel(ctx context.Context, existing *corev1.Node) error {
	labels := map[string]string{}
	for key, value := range n.desired().Labels {
		if existing.Labels[key] != value {
			labels[key] = value
		}
	}
	if len(labels) == 0 {
		return nil
	}
	data, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	if err != nil {
		return err
	}
	updated, err := n.cfg.Client.CoreV1().Nodes().Patch(ctx, n.cfg.Name, types.StrategicMergePatchType, data, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("updating the node's labels: %w", err)
	}
	n.setObject(updated)
	return nil
}

func (n *Node) setObject(object *corev1.Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.object = object
}

// watch follows the node's own object.
func (n *Node) watch(ctx context.Context) error {
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, n.cfg.Name).String()
	nodes := n.cfg.Client.CoreV1().Nodes()
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			return nodes.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return nodes.Watch(ctx, o)
		},
	}
	changed := func(object any) {
		if node, ok := object.(*corev1.Node); ok {
			n.observe(ctx, node)
		}
	}
	store, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(lw, n.cfg.Client), ObjectType: &corev1.Node{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: changed, UpdateFunc: func(_, object any) { changed(object) },
			DeleteFunc: func(any) {
				if n.cfg.Register { // someone deleted the node that is alive
					go func() {
						if n.register(ctx) == nil {
							n.Changed()
						}
					}()
				}
			},
		},
	})
	_ = store
	informer.RunWithContext(ctx)
	return nil
}

// observe sets up the network once the node has been given its ranges.
func (n *Node) observe(ctx context.Context, object *corev1.Node) {
	n.mu.Lock()
	n.object = object
	done := n.network
	n.mu.Unlock()
	texts := object.Spec.PodCIDRs
	if len(texts) == 0 && object.Spec.PodCIDR != "" {
		texts = []string{object.Spec.PodCIDR}
	}
	if done || len(texts) == 0 {
		return
	}
	cidrs, err := parseCIDRs(texts)
	if err == nil {
		err = n.cfg.PodCIDRs(ctx, cidrs)
	}
	if err != nil {
		n.cfg.Log.ErrorContext(ctx, "Setting up the pod network", "cidrs", texts, "err", err)
		return
	}
	n.mu.Lock()
	n.network = true
	n.mu.Unlock()
	n.Changed()
}

// keepStatus sends the status when it has changed, and now and then.
func (n *Node) keepStatus(ctx context.Context) error {
	ticker := time.NewTicker(n.cfg.UpdateEvery)
	defer ticker.Stop()
	var sent time.Time
	for {
		now := time.Now()
		err := n.sendStatus(ctx, now.Sub(sent) >= n.cfg.ReportEvery)
		switch {
		case err == nil:
			if now.Sub(sent) >= n.cfg.ReportEvery {
				sent = now
			}
		case ctx.Err() != nil:
			return nil
		default:
			n.cfg.Log.WarnContext(ctx, "Sending the node's status", "err", err)
			time.AfterFunc(time.Second, n.Changed)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-n.trigger:
		}
	}
}
