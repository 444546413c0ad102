package allocator

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	netutils "k8s.io/utils/net"
)

// Services holds what all Services together have allocated.
type Services struct {
	list func(ctx context.Context) ([]*corev1.Service, error)

	mu     sync.Mutex
	loaded bool
	busy   map[string]chan struct{} // the owners with a transaction, closed at its end
	ips    map[corev1.IPFamily]*IPs // one per family that the cluster has
	ports  *Ports
	order  []corev1.IPFamily // the cluster's families, the primary one first
}

// NewServices allocates cluster IPs from cidrs, one per family with the primary
// family's first, and node ports from first to last. list reads all stored
// Services.
func NewServices(cidrs []netip.Prefix, first, last int, list func(ctx context.Context) ([]*corev1.Service, error)) (*Services, error) {
	ports, err := NewPorts(first, last)
	if err != nil {
		return nil, err
	}
	s := &Services{list: list, busy: map[string]chan struct{}{}, ips: map[corev1.IPFamily]*IPs{}, ports: ports}
	for _, cidr := range cidrs {
		ips, err := NewIPs(cidr)
		if err != nil {
			return nil, err
		}
		family := FamilyOf(cidr.Addr())
		if s.ips[family] != nil {
			return nil, fmt.Errorf("service ranges %v: more than one of the family %s", cidrs, family)
		}
		s.ips[family] = ips
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
	undo     []func()
}

// Begin waits for the owner's transaction to end, reads the stored Services if
// that has not been done, and starts another.
func (s *Services) Begin(ctx context.Context, owner string) (*Transaction, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.busy[owner] != nil {
		if err := s.await(ctx, s.busy[owner]); err != nil {
			return nil, fmt.Errorf("waiting for another change of the service: %w", err)
		}
	}
	if err := s.load(ctx); err != nil {
		return nil, err
	}
	s.busy[owner] = make(chan struct{})
	return &Transaction{services: s, owner: owner}, nil
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

// load takes what stored Services have. Two that have the same, which no
// allocation here makes, leave it with the first. Caller must hold mu.
func (s *Services) load(ctx context.Context) error {
	if s.loaded {
		return nil
	}
	stored, err := s.list(ctx)
	if err != nil {
		return fmt.Errorf("reading the allocations of stored services: %w", err)
	}
	for _, service := range stored {
		owner := Owner(service)
		for _, addr := range ClusterIPs(service) {
			if ips := s.ips[FamilyOf(addr)]; ips != nil {
				_ = ips.Take(addr, owner) // out of a range that changed, or taken twice
			}
		}
		for _, port := range NodePorts(service) {
			_ = s.ports.Take(port, owner)
		}
	}
	s.loaded = true
	return nil
}

// TakeIP reserves an address; see IPs.Take for errors.
func (t *Transaction) TakeIP(addr netip.Addr) error {
	t.services.mu.Lock()
	defer t.services.mu.Unlock()
	ips := t.services.ips[FamilyOf(addr)]
	if ips == nil {
		return ErrOutOfRange
	}
	if n, ok := ips.index(addr); ok && ips.span.owner[n] == t.owner {
		return nil
	}
	if err := ips.Take(addr, t.owner); err != nil {
		return err
	}
	t.undo = append(t.undo, func() { ips.Release(addr, t.owner) })
	return nil
}

// NextIP reserves any free address of a family.
func (t *Transaction) NextIP(family corev1.IPFamily) (netip.Addr, error) {
	t.services.mu.Lock()
	defer t.services.mu.Unlock()
	ips := t.services.ips[family]
	if ips == nil {
		return netip.Addr{}, fmt.Errorf("the cluster has no service range of family %s", family)
	}
	addr, err := ips.Next(t.owner)
	if err != nil {
		return netip.Addr{}, err
	}
	t.undo = append(t.undo, func() { ips.Release(addr, t.owner) })
	return addr, nil
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
	t.undo = append(t.undo, func() { ports.Release(port, t.owner) })
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
	t.undo = append(t.undo, func() { ports.Release(port, t.owner) })
	return port, nil
}

// PortRange is the range of node ports as flags spell it.
func (t *Transaction) PortRange() string { return t.services.ports.String() }

// Range is the service range of an address's family, "" when there is none.
func (t *Transaction) Range(addr netip.Addr) string {
	if ips := t.services.ips[FamilyOf(addr)]; ips != nil {
		return ips.Prefix().String()
	}
	return ""
}

// Undo gives back what the transaction took, and ends it.
func (t *Transaction) Undo() {
	t.services.mu.Lock()
	defer t.services.mu.Unlock()
	for _, undo := range t.undo {
		undo()
	}
	t.undo = nil
	t.end()
}

// Keep gives back what was had and now has not, and ends the transaction. was is
// nil for a new Service.
func (t *Transaction) Keep(was, now *corev1.Service) {
	t.services.mu.Lock()
	defer t.services.mu.Unlock()
	if was != nil {
		t.services.release(was, now)
	}
	t.end()
}

// Release gives back what a deleted Service had. Only what is its own is given
// back.
func (s *Services) Release(service *corev1.Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loaded { // else the first transaction reads what is stored by then
		s.release(service, nil)
	}
}

// release gives back what was has and now has not; a nil now has nothing.
// Caller must hold mu.
func (s *Services) release(was, now *corev1.Service) {
	owner := Owner(was)
	ips, ports := map[netip.Addr]bool{}, map[int]bool{}
	if now != nil {
		for _, addr := range ClusterIPs(now) {
			ips[addr] = true
		}
		for _, port := range NodePorts(now) {
			ports[port] = true
		}
	}
	for _, addr := range ClusterIPs(was) {
		if family := s.ips[FamilyOf(addr)]; family != nil && !ips[addr] {
			family.Release(addr, owner)
		}
	}
	for _, port := range NodePorts(was) {
		if !ports[port] {
			s.ports.Release(port, owner)
		}
	}
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
