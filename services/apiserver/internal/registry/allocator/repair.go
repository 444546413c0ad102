package allocator

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	// repairInterval is how often everything is compared, upstream's figure.
	repairInterval = 3 * time.Minute
	// repairPause is the least time between two comparisons.
	repairPause = time.Second
	// leakAge is how long an address may be without its Service: the Service may
	// still be on its way into the store.
	leakAge = time.Minute
)

// Problem is something that a repair found. Nothing else is done about those that
// it cannot mend.
type Problem struct {
	Service         *corev1.Service // nil for an address without one
	Reason, Message string
}

// Repair makes the IPAddress objects those of the stored Services: what is missing
// or refers to another is made again, and what nothing needs is deleted. It heals
// what a crash between two writes left, stores from before there were such
// objects, and what somebody deleted. It also gives back node ports that no
// Service has.
func (s *Services) Repair(ctx context.Context) ([]Problem, error) {
	r := &repair{addresses: s.addresses(), known: map[netip.Addr]*networkingv1.IPAddress{}, owners: map[netip.Addr]*corev1.Service{}, now: time.Now()}
	var err error
	if r.ranges, err = r.addresses.list(ctx, func(*networkingv1.ServiceCIDR) bool { return true }); err != nil {
		return nil, err
	}
	// Addresses first: a Service that is written meanwhile is then seen with the
	// address, or is younger than it.
	objs, err := s.state().List(ctx, addressResource, "")
	if err != nil {
		return nil, fmt.Errorf("reading addresses: %w", err)
	}
	for _, obj := range objs {
		if address, ok := obj.(*networkingv1.IPAddress); ok {
			if addr, err := netip.ParseAddr(address.Name); err == nil {
				r.known[addr] = address
			}
		}
	}
	services, err := s.stored(ctx)
	if err != nil {
		return nil, err
	}
	for _, service := range services {
		for _, addr := range ClusterIPs(service) {
			if err := r.service(ctx, service, addr); err != nil {
				return r.problems, err
			}
		}
	}
	if err := r.leaks(ctx); err != nil {
		return r.problems, err
	}
	problems, err := s.repairPorts(ctx)
	return append(r.problems, problems...), err
}

// repair is one comparison of addresses with Services.
type repair struct {
	addresses addresses
	ranges    []Range
	known     map[netip.Addr]*networkingv1.IPAddress
	owners    map[netip.Addr]*corev1.Service
	now       time.Time
	problems  []Problem
}

func (r *repair) found(service *corev1.Service, reason, format string, args ...any) {
	r.problems = append(r.problems, Problem{Service: service, Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// service checks the address of one Service.
func (r *repair) service(ctx context.Context, service *corev1.Service, addr netip.Addr) error {
	family := FamilyOf(addr)
	if !r.inRange(addr) {
		r.found(service, "ClusterIPOutOfRange", "Cluster IP [%v]: %s is not within any configured Service CIDR; please recreate service", family, addr)
		return nil
	}
	if other := r.owners[addr]; other != nil {
		r.found(service, "ClusterIPAlreadyAllocated", "Cluster IP [%v]:%s was assigned to multiple services; please recreate service", family, addr)
		return nil
	}
	address := r.known[addr]
	if address != nil && refersTo(address, service) && labelled(address, addr) {
		r.owners[addr] = service
		return nil
	}
	if address != nil && r.heldByAnother(ctx, address, addr) {
		r.found(service, "ClusterIPAlreadyAllocated", "Cluster IP [%v]:%s was assigned to multiple services; please recreate service", family, addr)
		return nil
	}
	// The Service may be gone since it was listed.
	if current, err := r.addresses.state.Get(ctx, serviceResource, service.Namespace, service.Name); err != nil || !has(current.(*corev1.Service), addr) {
		return nil
	}
	r.owners[addr] = service
	if address == nil {
		r.found(service, "ClusterIPNotAllocated", "Cluster IP [%v]: %s is not allocated; repairing", family, addr)
	} else {
		r.found(service, "ClusterIPNotAllocated", "the ClusterIP [%v]: %s for Service %s/%s has a wrong reference; repairing", family, addr, service.Namespace, service.Name)
		if err := r.remove(ctx, address); err != nil {
			return err
		}
	}
	_, err := r.addresses.state.Create(ctx, addressResource, newAddress(addr, service))
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("making address %s again: %w", addr, err)
	}
	return nil
}

func (r *repair) inRange(addr netip.Addr) bool {
	for _, one := range r.ranges {
		if one.prefix.Contains(addr) {
			return true
		}
	}
	return false
}

func labelled(address *networkingv1.IPAddress, addr netip.Addr) bool {
	want := addressLabels(addr)
	for key, value := range want {
		if address.Labels[key] != value {
			return false
		}
	}
	return true
}

// heldByAnother says that an address is rightly that of the Service it names.
func (r *repair) heldByAnother(ctx context.Context, address *networkingv1.IPAddress, addr netip.Addr) bool {
	p := address.Spec.ParentRef
	if p == nil || p.Group != "" || p.Resource != serviceResource.Resource || !labelled(address, addr) {
		return false
	}
	obj, err := r.addresses.state.Get(ctx, serviceResource, p.Namespace, p.Name)
	if err != nil {
		return false
	}
	service, ok := obj.(*corev1.Service)
	return ok && has(service, addr)
}

// leaks deletes addresses that were made here and that no Service has.
func (r *repair) leaks(ctx context.Context) error {
	for addr, address := range r.known {
		if r.owners[addr] != nil || address.Labels[networkingv1.LabelManagedBy] != manager ||
			r.now.Sub(address.CreationTimestamp.Time) < leakAge || r.heldByAnother(ctx, address, addr) {
			continue
		}
		r.found(nil, "IPAddressNotAllocated", "IPAddress %s appears to have leaked: cleaning up", address.Name)
		if err := r.remove(ctx, address); err != nil {
			return err
		}
	}
	return nil
}

func (r *repair) remove(ctx context.Context, address *networkingv1.IPAddress) error {
	uid := address.UID
	err := r.addresses.state.Delete(ctx, addressResource, "", address.Name, &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}, false)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("removing address %s: %w", address.Name, err)
	}
	return nil
}

// repairPorts takes node ports that another API server gave out, and gives back
// those whose Service is gone.
func (s *Services) repairPorts(ctx context.Context) ([]Problem, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.loaded {
		return nil, nil
	}
	services, err := s.stored(ctx) // all that has been kept, for keeping needs mu
	if err != nil {
		return nil, err
	}
	var problems []Problem
	wanted := map[int]string{}
	for _, service := range services {
		for _, port := range NodePorts(service) {
			if owner := wanted[port]; owner != "" && owner != Owner(service) {
				problems = append(problems, Problem{service, "PortAlreadyAllocated", fmt.Sprintf("Node port %d was assigned to multiple services; please recreate service", port)})
				continue
			}
			wanted[port] = Owner(service)
			if !s.ports.contains(port) {
				problems = append(problems, Problem{service, "PortOutOfRange", fmt.Sprintf("Port %d is not within the port range %s; please recreate service", port, s.ports)})
			}
		}
	}
	// Who has a transaction may be about to store what it took.
	s.ports.reset(wanted, func(owner string) bool { return s.busy[owner] != nil })
	return problems, nil
}

// Run repairs now and then, and soon after an address has gone, until ctx ends.
func (s *Services) Run(ctx context.Context, log *slog.Logger) error {
	wake := make(chan struct{}, 1)
	err := s.state().Subscribe(ctx, addressResource, func(old, new runtime.Object) {
		if old == nil {
			return
		}
		select {
		case wake <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return fmt.Errorf("watching addresses: %w", err)
	}
	ticker := time.NewTicker(repairInterval)
	defer ticker.Stop()
	said := map[string]bool{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-wake:
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(repairPause):
			}
		}
		problems, err := s.Repair(ctx)
		if err != nil && ctx.Err() == nil {
			log.Error("Repairing the addresses of services", "err", err)
		}
		said = s.tell(ctx, log, problems, said)
	}
}

// tell logs problems and records them as events, each when it is new.
func (s *Services) tell(ctx context.Context, log *slog.Logger, problems []Problem, said map[string]bool) map[string]bool {
	now := map[string]bool{}
	for _, p := range problems {
		now[p.Message] = true
		if said[p.Message] {
			continue
		}
		if p.Service == nil {
			log.Warn("Repairing the addresses of services", "reason", p.Reason, "problem", p.Message)
			continue
		}
		log.Warn("Repairing the addresses of services", "service", p.Service.Namespace+"/"+p.Service.Name, "reason", p.Reason, "problem", p.Message)
		if _, err := s.state().Create(ctx, eventResource, event(p)); err != nil && ctx.Err() == nil {
			log.Error("Recording an event", "err", err)
		}
	}
	return now
}

// event is a problem of a Service as others see it.
func event(p Problem) *corev1.Event {
	const component = "ipallocator-repair-controller"
	at := metav1.NowMicro()
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Service.Namespace, Name: fmt.Sprintf("%s.%x", p.Service.Name, at.UnixNano())},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: "Service", Namespace: p.Service.Namespace, Name: p.Service.Name, UID: p.Service.UID, ResourceVersion: p.Service.ResourceVersion,
		},
		Reason: p.Reason, Message: p.Message, Type: corev1.EventTypeWarning, Action: "ClusterIPAllocation",
		EventTime: at, ReportingController: component, ReportingInstance: component,
	}
}
