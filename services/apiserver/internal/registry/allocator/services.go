package allocator

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	netutils "k8s.io/utils/net"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// Services holds what all Services together have allocated.
type Services struct {
	state     func() registry.State
	addresses func() addresses

	mu     sync.Mutex
	loaded bool
	busy   map[string]chan struct{} // the owners with a transaction, closed at its end
	ports  *Ports
	order  []corev1.IPFamily // the cluster's families, the primary one first
}

// NewServices allocates cluster IPs of the families of cidrs, the primary one's
// first, from the ranges of the ServiceCIDR objects, and node ports from first to
// last. State is called when it is needed.
func NewServices(cidrs []netip.Prefix, first, last int, state func() registry.State) (*Services, error) {
	ports, err := NewPorts(first, last)
	if err != nil {
		return nil, err
	}
	s := &Services{state: state, busy: map[string]chan struct{}{}, ports: ports}
	s.addresses = func() addresses { return addresses{state()} }
	for _, cidr := range cidrs {
		if _, err := NewRange(cidr); err != nil {
			return nil, err
		}
		family := FamilyOf(cidr.Addr())
		if slices.Contains(s.order, family) {
			return nil, fmt.Errorf("service ranges %v: more than one of the family %s", cidrs, family)
		}
		s.order = append(s.order, family)
	}
	if len(s.order) == 0 {
		return nil, fmt.Errorf("no service range given")
	}
	return s, nil
}

// FamilyOf is an address's IP family.
func FamilyOf(addr netip.Addr) corev1.IPFamily {
	if addr.Is4() || addr.Is4In6() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

// Families are the families that the cluster has, the primary one first.
func (s *Services) Families() []corev1.IPFamily { return s.order }

// Owner is whom a Service's addresses and ports belong to. A Service made again
// under the same name is another owner.
func Owner(service *corev1.Service) string {
	return service.Namespace + "/" + service.Name + "/" + string(service.UID)
}

// Transaction is a set of allocations that is kept or undone as a whole. An
// owner has one at a time, since what one transaction finds its own another
// might give back; it must be ended by Keep or Undo.
type Transaction struct {
	services *Services
	owner    string
	service  *corev1.Service
	dryRun   bool
	has      []netip.Addr // the owner's before, and what this transaction took
	undo     []func(ctx context.Context)
}

// Begin waits for the transaction of the Service to end, reads the stored
// Services if that has not been done, and starts another. old is nil for a new
// Service. On a dry run no address is taken for good.
func (s *Services) Begin(ctx context.Context, service, old *corev1.Service, dryRun bool) (*Transaction, error) {
	t := &Transaction{services: s, owner: Owner(service), service: service, dryRun: dryRun}
	if old != nil {
		t.owner, t.has = Owner(old), ClusterIPs(old) // an update's object may lack the UID
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.busy[t.owner] != nil {
		if err := s.await(ctx, s.busy[t.owner]); err != nil {
			return nil, fmt.Errorf("waiting for another change of the service: %w", err)
		}
	}
	if err := s.load(ctx); err != nil {
		return nil, err
	}
	s.busy[t.owner] = make(chan struct{})
	return t, nil
}

// await waits for ended without mu. Caller must hold mu.
func (s *Services) await(ctx context.Context, ended <-chan struct{}) error {
	s.mu.Unlock()
	defer s.mu.Lock()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// end lets the owner's next transaction begin. Caller must hold mu.
func (t *Transaction) end() {
	if ended := t.services.busy[t.owner]; ended != nil {
		delete(t.services.busy, t.owner)
		close(ended)
	}
}

// load takes the ports that stored Services have. Two that have the same, which no
// allocation here makes, leave it with the first. Caller must hold mu.
func (s *Services) load(ctx context.Context) error {
	if s.loaded {
		return nil
	}
	stored, err := s.stored(ctx)
	if err != nil {
		return err
	}
	for _, service := range stored {
		for _, port := range NodePorts(service) {
			_ = s.ports.Take(port, Owner(service)) // out of a range that changed, or taken twice
		}
	}
	s.loaded = true
	return nil
}

// stored are all Services.
func (s *Services) stored(ctx context.Context) ([]*corev1.Service, error) {
	objs, err := s.state().List(ctx, serviceResource, "")
	if err != nil {
		return nil, fmt.Errorf("reading the allocations of stored services: %w", err)
	}
	list := make([]*corev1.Service, 0, len(objs))
	for _, obj := range objs {
		if service, ok := obj.(*corev1.Service); ok {
			list = append(list, service)
		}
	}
	return list, nil
}

// TakeIP reserves an address. It fails with ErrOutOfRange or ErrTaken.
func (t *Transaction) TakeIP(ctx context.Context, addr netip.Addr) error {
	if slices.Contains(t.has, addr) {
		return nil
	}
	if !slices.Contains(t.services.order, FamilyOf(addr)) {
		return ErrOutOfRange
	}
	if err := t.services.addresses().take(ctx, addr, t.service, t.dryRun); err != nil {
		return err
	}
	t.took(addr)
	return nil
}

// NextIP reserves any free address of a family.
func (t *Transaction) NextIP(ctx context.Context, family corev1.IPFamily) (netip.Addr, error) {
	if !slices.Contains(t.services.order, family) {
		return netip.Addr{}, fmt.Errorf("the cluster has no service range of family %s", family)
	}
	addr, err := t.services.addresses().next(ctx, family, t.service, t.dryRun)
	if err != nil {
		return netip.Addr{}, err
	}
	t.took(addr)
	return addr, nil
}

func (t *Transaction) took(addr netip.Addr) {
	t.has = append(t.has, addr)
	if !t.dryRun {
		t.undo = append(t.undo, func(ctx context.Context) { t.services.addresses().release(ctx, addr, t.service) })
	}
}

// TakePort reserves a node port; see Ports.Take for errors.
func (t *Transaction) TakePort(port int) error {
	t.services.mu.Lock()
	defer t.services.mu.Unlock()
	ports := t.services.ports
	if ports.has(port, t.owner) {
		return nil
	}
	if err := ports.Take(port, t.owner); err != nil {
		return err
	}
	t.undo = append(t.undo, func(context.Context) { t.services.releasePort(port, t.owner) })
	return nil
}

// NextPort reserves a node port that nobody has.
func (t *Transaction) NextPort() (int, error) {
	t.services.mu.Lock()
	defer t.services.mu.Unlock()
	ports := t.services.ports
	port, err := ports.Next(t.owner)
	if err != nil {
		return 0, err
	}
	t.undo = append(t.undo, func(context.Context) { t.services.releasePort(port, t.owner) })
	return port, nil
}

// PortRange is the range of node ports as flags spell it.
func (t *Transaction) PortRange() string { return t.services.ports.String() }

// Undo gives back what the transaction took, and ends it.
func (t *Transaction) Undo(ctx context.Context) {
	for _, undo := range t.undo {
		undo(ctx)
	}
	t.undo = nil
	t.services.mu.Lock()
	defer t.services.mu.Unlock()
	t.end()
}

// Keep gives back what was had and now has not, and ends the transaction. was is
// nil for a new Service.
func (t *Transaction) Keep(ctx context.Context, was, now *corev1.Service) {
	if was != nil {
		t.services.release(ctx, was, now)
	}
	t.services.mu.Lock()
	defer t.services.mu.Unlock()
	t.end()
}

// Release gives back what a deleted Service had. Only what is its own is given
// back.
func (s *Services) Release(ctx context.Context, service *corev1.Service) {
	s.release(ctx, service, nil)
}

// release gives back what was has and now has not; a nil now has nothing.
func (s *Services) release(ctx context.Context, was, now *corev1.Service) {
	var keptIPs []netip.Addr
	var keptPorts []int
	if now != nil {
		keptIPs, keptPorts = ClusterIPs(now), NodePorts(now)
	}
	for _, addr := range ClusterIPs(was) {
		if !slices.Contains(keptIPs, addr) {
			s.addresses().release(ctx, addr, was)
		}
	}
	for _, port := range NodePorts(was) {
		if !slices.Contains(keptPorts, port) {
			s.releasePort(port, Owner(was))
		}
	}
}

func (s *Services) releasePort(port int, owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ports.Release(port, owner) // which is nobody's before the stored Services are read
}

// ClusterIPs are the addresses that a Service has from the ranges.
func ClusterIPs(service *corev1.Service) []netip.Addr {
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	list := service.Spec.ClusterIPs
	if len(list) == 0 && service.Spec.ClusterIP != "" {
		list = []string{service.Spec.ClusterIP}
	}
	var out []netip.Addr
	for _, text := range list {
		if addr, err := netip.ParseAddr(canonical(text)); err == nil {
			out = append(out, addr.Unmap())
		}
	}
	return out
}

// canonical also reads the leading zeros that old clients were allowed.
func canonical(text string) string {
	if ip := netutils.ParseIPSloppy(text); ip != nil {
		return ip.String()
	}
	return text
}

// NodePorts are the node ports that a Service has.
func NodePorts(service *corev1.Service) []int {
	var out []int
	for _, port := range service.Spec.Ports {
		if port.NodePort != 0 {
			out = append(out, int(port.NodePort))
		}
	}
	if n := service.Spec.HealthCheckNodePort; n != 0 {
		out = append(out, int(n))
	}
	return out
}
