package allocator

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

var (
	addressResource = schema.GroupResource{Group: networkingv1.GroupName, Resource: "ipaddresses"}
	rangeResource   = schema.GroupResource{Group: networkingv1.GroupName, Resource: "servicecidrs"}
	serviceResource = schema.GroupResource{Resource: "services"}
	eventResource   = schema.GroupResource{Resource: "events"}
)

// manager marks the IPAddress objects that are made here.
const manager = "ipallocator.k8s.io"

// releaseTimeout bounds giving an address back, which goes on when the request is
// over.
const releaseTimeout = 10 * time.Second

// addresses are the cluster IPs. One is taken while an IPAddress of its name
// exists, and free ranges are those of the ServiceCIDR objects that are ready: so
// several API servers, and whoever else makes such objects, agree.
type addresses struct{ state registry.State }

// internal is a request's context without its user and warnings: the objects are
// the server's own.
type internal struct{ context.Context }

func (internal) Value(any) any { return nil }

// ranges are those that addresses may be taken from.
func (a addresses) ranges(ctx context.Context) ([]Range, error) {
	return a.list(ctx, func(cidr *networkingv1.ServiceCIDR) bool {
		// Without a controller that sets it, there is no condition.
		return cidr.DeletionTimestamp == nil && !meta.IsStatusConditionFalse(cidr.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
	})
}

func (a addresses) list(ctx context.Context, use func(*networkingv1.ServiceCIDR) bool) ([]Range, error) {
	objs, err := a.state.List(ctx, rangeResource, "")
	if err != nil {
		return nil, fmt.Errorf("reading service ranges: %w", err)
	}
	var out []Range
	for _, obj := range objs {
		cidr, ok := obj.(*networkingv1.ServiceCIDR)
		if !ok || !use(cidr) {
			continue
		}
		for _, text := range cidr.Spec.CIDRs {
			if prefix, err := netip.ParsePrefix(text); err == nil {
				if r, err := NewRange(prefix); err == nil {
					out = append(out, r)
				}
			}
		}
	}
	return out, nil
}

// take reserves an address for a Service. It fails with ErrOutOfRange or ErrTaken.
func (a addresses) take(ctx context.Context, addr netip.Addr, owner *corev1.Service, dryRun bool) error {
	ctx = internal{ctx}
	ranges, err := a.ranges(ctx)
	if err != nil {
		return err
	}
	for _, r := range ranges {
		if r.Contains(addr) {
			return a.create(ctx, addr, owner, dryRun)
		}
	}
	return ErrOutOfRange
}

func (a addresses) create(ctx context.Context, addr netip.Addr, owner *corev1.Service, dryRun bool) error {
	if dryRun {
		if a.taken(ctx, addr) {
			return ErrTaken
		}
		return nil
	}
	_, err := a.state.Create(ctx, addressResource, newAddress(addr, owner))
	if apierrors.IsAlreadyExists(err) {
		return ErrTaken
	}
	return err
}

func (a addresses) taken(ctx context.Context, addr netip.Addr) bool {
	_, err := a.state.Get(ctx, addressResource, "", addr.String())
	return !apierrors.IsNotFound(err)
}

func newAddress(addr netip.Addr, owner *corev1.Service) *networkingv1.IPAddress {
	return &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: addr.String(), Labels: addressLabels(addr)},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Resource: serviceResource.Resource, Namespace: owner.Namespace, Name: owner.Name,
		}},
	}
}

func addressLabels(addr netip.Addr) map[string]string {
	return map[string]string{networkingv1.LabelIPAddressFamily: string(FamilyOf(addr)), networkingv1.LabelManagedBy: manager}
}

// next reserves any free address of a family. It fails with ErrFull.
func (a addresses) next(ctx context.Context, family corev1.IPFamily, owner *corev1.Service, dryRun bool) (netip.Addr, error) {
	ctx = internal{ctx}
	ranges, err := a.ranges(ctx)
	if err != nil {
		return netip.Addr{}, err
	}
	for _, r := range ranges {
		if FamilyOf(r.prefix.Addr()) != family {
			continue
		}
		for _, part := range [][2]int64{{r.band, r.size}, {0, r.band}} {
			addr, err := a.search(ctx, r, part[0], part[1], owner, dryRun)
			if err == nil || err != ErrFull { //nolint:errorlint // search returns it as it is
				return addr, err
			}
		}
	}
	return netip.Addr{}, ErrFull
}

// search takes a free address among those from low to high, beginning at a random
// one.
func (a addresses) search(ctx context.Context, r Range, low, high int64, owner *corev1.Service, dryRun bool) (netip.Addr, error) {
	if high <= low {
		return netip.Addr{}, ErrFull
	}
	start := rand.Int64N(high - low)
	for i := range high - low {
		addr := r.address(low + (start+i)%(high-low))
		if a.taken(ctx, addr) {
			continue
		}
		err := a.create(ctx, addr, owner, dryRun)
		if err == ErrTaken { //nolint:errorlint // as above; another server was faster
			continue
		}
		return addr, err
	}
	return netip.Addr{}, ErrFull
}

// release frees an address that was taken for a Service, unless the stored
// Service of that name has it.
func (a addresses) release(ctx context.Context, addr netip.Addr, owner *corev1.Service) {
	ctx, cancel := context.WithTimeout(internal{context.WithoutCancel(ctx)}, releaseTimeout)
	defer cancel()
	obj, err := a.state.Get(ctx, addressResource, "", addr.String())
	address, ok := obj.(*networkingv1.IPAddress)
	if err != nil || !ok || !refersTo(address, owner) {
		return
	}
	if stored, err := a.state.Get(ctx, serviceResource, owner.Namespace, owner.Name); err == nil {
		if service, ok := stored.(*corev1.Service); ok && has(service, addr) {
			return
		}
	}
	uid := address.UID
	// What cannot be given back now, the repair gives back later.
	_ = a.state.Delete(ctx, addressResource, "", address.Name, &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}, false)
}

func refersTo(address *networkingv1.IPAddress, service *corev1.Service) bool {
	p := address.Spec.ParentRef
	return p != nil && p.Group == "" && p.Resource == serviceResource.Resource && p.Namespace == service.Namespace && p.Name == service.Name
}

func has(service *corev1.Service, addr netip.Addr) bool {
	for _, one := range ClusterIPs(service) {
		if one == addr {
			return true
		}
	}
	return false
}
