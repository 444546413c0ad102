package allocator

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func newServices(t *testing.T, cidr string, stored ...*corev1.Service) *Services {
	t.Helper()
	s, err := NewServices([]netip.Prefix{netip.MustParsePrefix(cidr)}, 30000, 32767, func(context.Context) ([]*corev1.Service, error) { return stored, nil })
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func service(uid, ip string, port int32) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s", UID: types.UID(uid)},
		Spec:       corev1.ServiceSpec{ClusterIP: ip, Ports: []corev1.ServicePort{{NodePort: port}}},
	}
}

func begin(t *testing.T, s *Services, owner string) *Transaction {
	t.Helper()
	txn, err := s.Begin(context.Background(), owner)
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
	ips, err := NewIPs(netip.MustParsePrefix("10.0.0.0/24"))
	if err != nil {
		t.Fatal(err)
	}
	above := netip.MustParseAddr("10.0.0.17")
	for i := range 254 {
		addr, err := ips.Next(fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		if i < 254-16 && addr.Less(above) {
			t.Fatalf("allocation %d is %s", i, addr)
		}
	}
	if _, err := ips.Next("more"); !errors.Is(err, ErrFull) {
		t.Errorf("got %v", err)
	}
	for _, outside := range []string{"10.0.0.0", "10.0.0.255", "10.0.1.1"} {
		if err := ips.Take(netip.MustParseAddr(outside), "o"); !errors.Is(err, ErrOutOfRange) {
			t.Errorf("%s: %v", outside, err)
		}
	}
}

func TestRangesWithoutUsableAddresses(t *testing.T) {
	for _, cidr := range []string{"10.0.0.0/31", "10.0.0.0/32", "fd00::/128"} {
		if _, err := NewIPs(netip.MustParsePrefix(cidr)); err == nil {
			t.Errorf("%s was accepted", cidr)
		}
	}
}

func TestStoredServicesAreTaken(t *testing.T) {
	s := newServices(t, "10.0.0.0/24", service("1", "10.0.0.9", 30007))
	txn := begin(t, s, "other")
	if err := txn.TakeIP(netip.MustParseAddr("10.0.0.9")); !errors.Is(err, ErrTaken) {
		t.Errorf("address: %v", err)
	}
	if err := txn.TakePort(30007); !errors.Is(err, ErrTaken) {
		t.Errorf("port: %v", err)
	}
	txn.Undo()
	s.Release(service("2", "10.0.0.9", 30007)) // of the same name, but another
	txn = begin(t, s, "other")
	if err := txn.TakePort(30007); !errors.Is(err, ErrTaken) {
		t.Errorf("a namesake released the port: %v", err)
	}
	txn.Undo()
	s.Release(service("1", "10.0.0.9", 30007))
	if err := begin(t, s, "other").TakePort(30007); err != nil {
		t.Error(err)
	}
}

func TestTransactionsOfOneOwnerFollowEachOther(t *testing.T) {
	s := newServices(t, "10.0.0.0/24")
	loser := begin(t, s, "ns/s/1")
	if err := loser.TakePort(30001); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.Begin(ctx, "ns/s/1"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		winner, err := s.Begin(context.Background(), "ns/s/1")
		if err != nil {
			t.Error(err)
			return
		}
		if err := winner.TakePort(30001); err != nil {
			t.Error(err)
		}
		winner.Keep(nil, service("1", "", 30001))
	}()
	loser.Undo()
	<-kept
	if err := begin(t, s, "other").TakePort(30001); !errors.Is(err, ErrTaken) {
		t.Errorf("the loser gave back what the winner kept: %v", err)
	}
}

func TestConcurrentChangesLoseNothing(t *testing.T) {
	s := newServices(t, "10.0.0.0/28")
	var wait sync.WaitGroup
	for i := range 64 {
		wait.Go(func() {
			owner := fmt.Sprintf("ns/s/%d", i%8)
			txn, err := s.Begin(context.Background(), owner)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := txn.NextIP(corev1.IPv4Protocol); err != nil && !errors.Is(err, ErrFull) {
				t.Error(err)
			}
			txn.Undo()
		})
	}
	wait.Wait()
	txn := begin(t, s, "all")
	for range 14 {
		if _, err := txn.NextIP(corev1.IPv4Protocol); err != nil {
			t.Fatal(err)
		}
	}
}
