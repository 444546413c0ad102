// Package servicecidrs keeps ServiceCIDRs that are deleted until no address of a
// service would be left without a range, and says of the others that they are ready.
package servicecidrs

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/sampan-io/sampan/services/controller-manager/internal/controller"
	"github.com/sampan-io/sampan/services/controller-manager/internal/finalizer"
)

const (
	name       = "service-cidr-controller"
	account    = "service-cidrs-controller"
	protection = "networking.k8s.io/service-cidr-finalizer"
	allocator  = "ipallocator.k8s.io"
	// grace is how long API servers may go on allocating from a range that is
	// deleted, before they have seen that it is.
	grace = 10 * time.Second

	readyMessage       = "Kubernetes Service CIDR is ready"
	terminatingMessage = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR"
)

// Definition is the controller's entry in the list.
func Definition() controller.Definition {
	return controller.Definition{Name: name, Account: account, New: New}
}

// Controller works on ServiceCIDRs by their names.
type Controller struct {
	client    kubernetes.Interface
	ranges    networkinglisters.ServiceCIDRLister
	addresses networkinglisters.IPAddressLister
	queue     *controller.Queue
	synced    []cache.InformerSynced
	now       func() time.Time
}

// New makes the controller from env.
func New(env controller.Env) (controller.Runner, error) {
	ranges, addresses := env.Informers.Networking().V1().ServiceCIDRs(), env.Informers.Networking().V1().IPAddresses()
	c := &Controller{client: env.Client, ranges: ranges.Lister(), addresses: addresses.Lister(), now: time.Now}
	c.queue = controller.NewQueue("service_cidrs", env.Config.Workers(name), env.Log, c.reconcile)
	changed := func(r *networkingv1.ServiceCIDR) {
		c.queue.Add(r.Name)
		c.reconsider()
	}
	rangesSynced, err := controller.Watch(ranges.Informer(), changed, func(_, r *networkingv1.ServiceCIDR) { changed(r) }, changed)
	if err != nil {
		return nil, err
	}
	gone := func(*networkingv1.IPAddress) { c.reconsider() }
	addressesSynced, err := controller.Watch(addresses.Informer(), gone, nil, gone)
	if err != nil {
		return nil, err
	}
	c.synced = []cache.InformerSynced{rangesSynced, addressesSynced}
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.queue.Run(ctx, c.synced...) }

// reconsider looks at the ranges that wait for their end: few, if any.
func (c *Controller) reconsider() {
	all, err := c.ranges.List(labels.Everything())
	if err != nil {
		return // a cache that cannot be read is read again by the next event
	}
	for _, r := range all {
		if r.DeletionTimestamp != nil {
			c.queue.Add(r.Name)
		}
	}
}

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	r, err := c.ranges.Get(key)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading ServiceCIDR %s: %w", key, err)
	}
	if r.DeletionTimestamp == nil {
		if r, err = c.hold(ctx, r, nil); err != nil {
			return 0, err
		}
		return 0, c.say(ctx, r, metav1.Condition{Status: metav1.ConditionTrue, Message: readyMessage})
	}
	orphans, err := c.needed(r)
	if err != nil {
		return 0, err
	}
	if orphans {
		return 0, c.say(ctx, r, metav1.Condition{
			Status: metav1.ConditionFalse, Reason: networkingv1.ServiceCIDRReasonTerminating, Message: terminatingMessage,
		})
	}
	if wait := grace - c.now().Sub(r.DeletionTimestamp.Time); wait > 0 {
		return wait, nil
	}
	_, err = c.hold(ctx, r, func() (bool, error) { return false, nil })
	return 0, err
}

// hold gives r the finalizer, or takes it away from one that is deleted.
func (c *Controller) hold(ctx context.Context, r *networkingv1.ServiceCIDR, used func() (bool, error)) (*networkingv1.ServiceCIDR, error) {
	wanted, change, err := finalizer.Wanted(r, protection, used)
	if err != nil || !change {
		return r, err
	}
	updated := r.DeepCopy()
	updated.Finalizers = wanted
	updated, err = c.client.NetworkingV1().ServiceCIDRs().Update(ctx, updated, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return r, nil
	}
	if err != nil {
		return r, fmt.Errorf("updating ServiceCIDR %s: %w", r.Name, err)
	}
	return updated, nil
}

// say sets whether r is ready. What says so already in other words stays, for the
// API server speaks of its own range.
func (c *Controller) say(ctx context.Context, r *networkingv1.ServiceCIDR, condition metav1.Condition) error {
	condition.Type = networkingv1.ServiceCIDRConditionReady
	if have := meta.FindStatusCondition(r.Status.Conditions, condition.Type); have != nil && have.Status == condition.Status && have.Reason == condition.Reason {
		return nil
	}
	updated := r.DeepCopy()
	meta.SetStatusCondition(&updated.Status.Conditions, condition)
	_, err := c.client.NetworkingV1().ServiceCIDRs().UpdateStatus(ctx, updated, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("updating the status of ServiceCIDR %s: %w", r.Name, err)
	}
	return nil
}

// needed says that an address lies in r and in no range that stays.
func (c *Controller) needed(r *networkingv1.ServiceCIDR) (bool, error) {
	all, err := c.ranges.List(labels.Everything())
	if err != nil {
		return false, fmt.Errorf("listing ServiceCIDRs: %w", err)
	}
	addresses, err := c.addresses.List(labels.SelectorFromSet(labels.Set{networkingv1.LabelManagedBy: allocator}))
	if err != nil {
		return false, fmt.Errorf("listing addresses: %w", err)
	}
	own, staying := prefixes(r), []netip.Prefix{}
	for _, other := range all {
		if other.DeletionTimestamp == nil && other.Name != r.Name {
			staying = append(staying, prefixes(other)...)
		}
	}
	return slices.ContainsFunc(addresses, func(a *networkingv1.IPAddress) bool {
		address, err := netip.ParseAddr(a.Name)
		return err == nil && contains(own, address) && !contains(staying, address)
	}), nil
}

func prefixes(r *networkingv1.ServiceCIDR) []netip.Prefix {
	var out []netip.Prefix
	for _, cidr := range r.Spec.CIDRs {
		if prefix, err := netip.ParsePrefix(cidr); err == nil {
			out = append(out, prefix)
		}
	}
	return out
}

func contains(ranges []netip.Prefix, address netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(address) })
}
