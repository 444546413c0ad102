package allocator

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/statetest"
)

func newServices(t *testing.T, cidr string, stored ...*corev1.Service) (*Services, *statetest.State) {
	t.Helper()
	state := statetest.New()
	state.Put(rangeResource, serviceCIDR("kubernetes", cidr))
	for _, service := range stored {
		state.Put(serviceResource, service)
	}
	s, err := NewServices([]netip.Prefix{netip.MustParsePrefix(cidr)}, 30000, 32767, func() registry.State { return state })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Repair(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s, state
}

func serviceCIDR(name string, cidrs ...string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
}

// service is one of a name of its own for each uid.
func service(uid, ip string, port int32) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s" + uid, UID: types.UID(uid)}}
	s.Spec.ClusterIP = ip
	if port != 0 {
		s.Spec.Ports = []corev1.ServicePort{{NodePort: port}}
	}
	return s
}

func begin(t *testing.T, s *Services, owner string) *Transaction {
	t.Helper()
	txn, err := s.Begin(context.Background(), service(owner, "", 0), nil, false)
	if err != nil {
		t.Fatal(err)
	}
	return txn
}

func TestBandsAreThoseOfUpstream(t *testing.T) {
	for _, c := range []struct{ size, divisor, most, want int }{
		{14, 16, 256, 0}, {62, 16, 256, 16}, {254, 16, 256, 16}, {1022, 16, 256, 63}, {65534, 16, 256, 256}, {2768, 32, 128, 86},
	} {
		if got := band(c.size, c.divisor, c.most); got != c.want {
			t.Errorf("of %d %d are left, want %d", c.size, got, c.want)
		}
	}
}

func TestAddressesComeFromAboveTheBandFirst(t *testing.T) {
	s, state := newServices(t, "10.0.0.0/26")
	above := netip.MustParseAddr("10.0.0.17")
	for i := range 62 {
		addr, err := begin(t, s, fmt.Sprint(i)).NextIP(t.Context(), corev1.IPv4Protocol)
		if err != nil {
			t.Fatal(err)
		}
		if i < 62-16 && addr.Less(above) {
			t.Fatalf("allocation %d is %s", i, addr)
		}
	}
	if _, err := begin(t, s, "more").NextIP(t.Context(), corev1.IPv4Protocol); !errors.Is(err, ErrFull) {
		t.Errorf("got %v", err)
	}
	for _, outside := range []string{"10.0.0.0", "10.0.0.63", "10.0.1.1"} {
		if err := begin(t, s, outside).TakeIP(t.Context(), netip.MustParseAddr(outside)); !errors.Is(err, ErrOutOfRange) {
			t.Errorf("%s: %v", outside, err)
		}
	}
	// Another range makes room, until it is on its way out.
	more := serviceCIDR("more", "10.7.0.0/24")
	state.Put(rangeResource, more)
	txn := begin(t, s, "roomy")
	addr, err := txn.NextIP(t.Context(), corev1.IPv4Protocol)
	if err != nil || !netip.MustParsePrefix("10.7.0.0/24").Contains(addr) {
		t.Fatalf("got %s, %v", addr, err)
	}
	txn.Undo(t.Context())
	more.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	state.Put(rangeResource, more)
	if _, err := begin(t, s, "late").NextIP(t.Context(), corev1.IPv4Protocol); !errors.Is(err, ErrFull) {
		t.Errorf("got %v", err)
	}
}

func TestRangesWithoutUsableAddresses(t *testing.T) {
	for _, cidr := range []string{"10.0.0.0/31", "10.0.0.0/32", "fd00::/128"} {
		if _, err := NewRange(netip.MustParsePrefix(cidr)); err == nil {
			t.Errorf("%s was accepted", cidr)
		}
	}
}

func TestStoredServicesAreTaken(t *testing.T) {
	s, state := newServices(t, "10.0.0.0/24", service("1", "10.0.0.9", 30007))
	txn := begin(t, s, "other")
	if err := txn.TakeIP(t.Context(), netip.MustParseAddr("10.0.0.9")); !errors.Is(err, ErrTaken) {
		t.Errorf("address: %v", err)
	}
	if err := txn.TakePort(30007); !errors.Is(err, ErrTaken) {
		t.Errorf("port: %v", err)
	}
	txn.Undo(t.Context())
	namesake := service("1", "10.0.0.9", 30007)
	namesake.UID = "2"
	s.Release(t.Context(), namesake)
	txn = begin(t, s, "other")
	if err := txn.TakePort(30007); !errors.Is(err, ErrTaken) {
		t.Errorf("a namesake released the port: %v", err)
	}
	if err := txn.TakeIP(t.Context(), netip.MustParseAddr("10.0.0.9")); !errors.Is(err, ErrTaken) {
		t.Errorf("a namesake released the address: %v", err)
	}
	txn.Undo(t.Context())
	if err := state.Delete(t.Context(), serviceResource, "ns", "s1", nil, false); err != nil {
		t.Fatal(err)
	}
	s.Release(t.Context(), service("1", "10.0.0.9", 30007))
	txn = begin(t, s, "other")
	if err := errors.Join(txn.TakePort(30007), txn.TakeIP(t.Context(), netip.MustParseAddr("10.0.0.9"))); err != nil {
		t.Error(err)
	}
}

func TestTransactionsOfOneOwnerFollowEachOther(t *testing.T) {
	s, _ := newServices(t, "10.0.0.0/24")
	loser := begin(t, s, "1")
	if err := loser.TakePort(30001); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.Begin(ctx, service("1", "", 0), nil, false); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		winner, err := s.Begin(context.Background(), service("1", "", 0), nil, false)
		if err != nil {
			t.Error(err)
			return
		}
		if err := winner.TakePort(30001); err != nil {
			t.Error(err)
		}
		winner.Keep(t.Context(), nil, service("1", "", 30001))
	}()
	loser.Undo(t.Context())
	<-kept
	if err := begin(t, s, "other").TakePort(30001); !errors.Is(err, ErrTaken) {
		t.Errorf("the loser gave back what the winner kept: %v", err)
	}
}

func TestConcurrentChangesLoseNothing(t *testing.T) {
	s, _ := newServices(t, "10.0.0.0/28")
	var wait sync.WaitGroup
	for i := range 64 {
		wait.Go(func() {
			txn, err := s.Begin(context.Background(), service(fmt.Sprint(i%8), "", 0), nil, false)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := txn.NextIP(t.Context(), corev1.IPv4Protocol); err != nil && !errors.Is(err, ErrFull) {
				t.Error(err)
			}
			txn.Undo(t.Context())
		})
	}
	wait.Wait()
	txn := begin(t, s, "all")
	for range 14 {
		if _, err := txn.NextIP(t.Context(), corev1.IPv4Protocol); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDryRunsTakeNothing(t *testing.T) {
	s, state := newServices(t, "10.0.0.0/24")
	before := state.Dump()
	txn, err := s.Begin(t.Context(), service("1", "", 0), nil, true)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := txn.NextIP(t.Context(), corev1.IPv4Protocol); err != nil {
		t.Error(err)
	}
	if err := txn.TakeIP(t.Context(), netip.MustParseAddr("10.0.0.200")); err != nil {
		t.Error(err)
	}
	txn.Undo(t.Context())
	if state.Dump() != before {
		t.Errorf("a dry run left\n%s", state.Dump())
	}
}

// address is an IPAddress as the allocator makes it, for a Service of the uid.
func address(ip, uid string, age time.Duration) *networkingv1.IPAddress {
	a := newAddress(netip.MustParseAddr(ip), service(uid, "", 0))
	a.CreationTimestamp = metav1.NewTime(time.Now().Add(-age))
	return a
}

func TestRepairMakesAddressesAgreeWithServices(t *testing.T) {
	s, state := newServices(t, "10.0.0.0/24")
	foreign := address("10.0.0.50", "x", time.Hour)
	foreign.Labels, foreign.Spec.ParentRef.Resource = nil, "gateways"
	unlabelled := address("10.0.0.4", "4", time.Hour)
	unlabelled.Labels = nil
	for _, a := range []*networkingv1.IPAddress{
		foreign, unlabelled,
		address("10.0.0.2", "gone", time.Hour), // of the wrong service
		address("10.0.0.10", "gone", time.Hour),
		address("10.0.0.11", "coming", time.Second),
		address("10.0.0.12", "1", time.Hour), // s1 has another by now
	} {
		state.Put(addressResource, a)
	}
	for _, one := range []*corev1.Service{
		service("1", "10.0.0.1", 0), service("2", "10.0.0.2", 0), service("4", "10.0.0.4", 0),
		service("5", "10.0.0.1", 0), service("6", "192.0.2.1", 0), service("7", "None", 0),
	} {
		state.Put(serviceResource, one)
	}
	problems, err := s.Repair(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := `ipaddresses.networking.k8s.io 10.0.0.1 of s1
ipaddresses.networking.k8s.io 10.0.0.11 of scoming
ipaddresses.networking.k8s.io 10.0.0.2 of s2
ipaddresses.networking.k8s.io 10.0.0.4 of s4
ipaddresses.networking.k8s.io 10.0.0.50 of sx
`
	if got := dump(t, state); got != want {
		t.Errorf("addresses are\n%swant\n%s", got, want)
	}
	reasons := map[string]int{}
	for _, p := range problems {
		reasons[p.Reason]++
	}
	if fmt.Sprint(reasons) != "map[ClusterIPAlreadyAllocated:1 ClusterIPNotAllocated:3 ClusterIPOutOfRange:1 IPAddressNotAllocated:2]" {
		t.Errorf("found %v", reasons)
	}
	writes := state.Writes()
	if _, err := s.Repair(t.Context()); err != nil || state.Writes() != writes {
		t.Errorf("a second repair wrote %d times (%v)", state.Writes()-writes, err)
	}
}

func dump(t *testing.T, state *statetest.State) string {
	t.Helper()
	list, err := state.List(t.Context(), addressResource, "")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, obj := range list {
		a := obj.(*networkingv1.IPAddress)
		fmt.Fprintf(&out, "%s %s of %s\n", addressResource, a.Name, a.Spec.ParentRef.Name)
	}
	return out.String()
}

func TestRepairGivesPortsBack(t *testing.T) {
	s, state := newServices(t, "10.0.0.0/24", service("1", "", 30001))
	begin(t, s, "x").Undo(t.Context()) // reads what is stored
	txn := begin(t, s, "busy")
	if err := txn.TakePort(30002); err != nil {
		t.Fatal(err)
	}
	if err := state.Delete(t.Context(), serviceResource, "ns", "s1", nil, false); err != nil { // by another server
		t.Fatal(err)
	}
	state.Put(serviceResource, service("3", "", 30003)) // as well
	if _, err := s.Repair(t.Context()); err != nil {
		t.Fatal(err)
	}
	other := begin(t, s, "other")
	if err := other.TakePort(30001); err != nil {
		t.Errorf("the port of a deleted service: %v", err)
	}
	for _, port := range []int{30002, 30003} {
		if err := other.TakePort(port); !errors.Is(err, ErrTaken) {
			t.Errorf("port %d: %v", port, err)
		}
	}
}
