package servicecidrs

import (
	"slices"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/cache"
)

// bench is a controller whose caches are what the fake API server holds.
type bench struct {
	*Controller
	t                 *testing.T
	ranges, addresses cache.Indexer
}

func newBench(t *testing.T, objects ...runtime.Object) *bench {
	t.Helper()
	b := &bench{t: t, ranges: cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil), addresses: cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)}
	b.Controller = &Controller{
		client: fake.NewClientset(objects...), now: time.Now,
		ranges: networkinglisters.NewServiceCIDRLister(b.ranges), addresses: networkinglisters.NewIPAddressLister(b.addresses),
	}
	for _, obj := range objects {
		store := b.addresses
		if _, ok := obj.(*networkingv1.ServiceCIDR); ok {
			store = b.ranges
		}
		if err := store.Add(obj); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// work reconciles a range; it is what became of it and when it is looked at again.
func (b *bench) work(name string) (*networkingv1.ServiceCIDR, time.Duration) {
	b.t.Helper()
	after, err := b.reconcile(b.t.Context(), name)
	if err != nil {
		b.t.Fatal(err)
	}
	r, err := b.client.NetworkingV1().ServiceCIDRs().Get(b.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	if err := b.ranges.Update(r); err != nil {
		b.t.Fatal(err)
	}
	return r, after
}

func serviceCIDR(name string, deleted bool, cidrs ...string) *networkingv1.ServiceCIDR {
	r := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
	if deleted {
		now := metav1.Now()
		r.DeletionTimestamp, r.Finalizers = &now, []string{protection}
	}
	return r
}

func address(name, manager string) *networkingv1.IPAddress {
	return &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{networkingv1.LabelManagedBy: manager}}}
}

func TestARangeIsHeldAndReady(t *testing.T) {
	b := newBench(t, serviceCIDR("a", false, "10.0.0.0/24"))
	r, _ := b.work("a")
	if !slices.Equal(r.Finalizers, []string{protection}) || !meta.IsStatusConditionTrue(r.Status.Conditions, networkingv1.ServiceCIDRConditionReady) {
		t.Errorf("%v, %+v", r.Finalizers, r.Status)
	}
	writes := len(b.client.(*fake.Clientset).Actions())
	if b.work("a"); len(b.client.(*fake.Clientset).Actions()) != writes+1 { // the test's own reading
		t.Errorf("a ready range is written again: %v", b.client.(*fake.Clientset).Actions()[writes:])
	}
}

func TestADeletedRangeStaysWhileAddressesNeedIt(t *testing.T) {
	for what, test := range map[string]struct {
		others []runtime.Object
		needed bool
	}{
		"an address in it":                    {[]runtime.Object{address("10.0.0.7", allocator)}, true},
		"an IPv6 address in it":               {[]runtime.Object{address("fd00::7", allocator)}, true},
		"an address beside it":                {[]runtime.Object{address("10.0.1.7", allocator)}, false},
		"an address of another manager":       {[]runtime.Object{address("10.0.0.7", "example.com")}, false},
		"no address":                          {nil, false},
		"a larger range that stays":           {[]runtime.Object{address("10.0.0.7", allocator), serviceCIDR("b", false, "10.0.0.0/16")}, false},
		"a smaller range with the address":    {[]runtime.Object{address("10.0.0.7", allocator), serviceCIDR("b", false, "10.0.0.0/28")}, false},
		"a smaller range without the address": {[]runtime.Object{address("10.0.0.77", allocator), serviceCIDR("b", false, "10.0.0.0/28")}, true},
		"a larger range that goes as well":    {[]runtime.Object{address("10.0.0.7", allocator), serviceCIDR("b", true, "10.0.0.0/16")}, true},
	} {
		t.Run(what, func(t *testing.T) {
			b := newBench(t, append(test.others, serviceCIDR("a", true, "10.0.0.0/24", "fd00::/112"))...)
			r, after := b.work("a")
			ready := meta.FindStatusCondition(r.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
			if test.needed {
				if after != 0 || ready == nil || ready.Status != metav1.ConditionFalse || ready.Reason != networkingv1.ServiceCIDRReasonTerminating || len(r.Finalizers) != 1 {
					t.Errorf("%v, %+v, %v", after, ready, r.Finalizers)
				}
				return
			}
			if after <= 0 || after > grace || ready != nil || len(r.Finalizers) != 1 {
				t.Errorf("within the grace: %v, %+v, %v", after, ready, r.Finalizers)
			}
			b.now = func() time.Time { return time.Now().Add(grace + time.Second) }
			if r, after = b.work("a"); after != 0 || len(r.Finalizers) != 0 {
				t.Errorf("after the grace: %v, %v", after, r.Finalizers)
			}
		})
	}
}
