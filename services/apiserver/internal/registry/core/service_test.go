package core

import (
	"context"
	"net/netip"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/allocator"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/statetest"
)

// cluster is the Service strategy over allocations of its own.
type cluster struct {
	t        *testing.T
	state    *statetest.State
	strategy *registry.Strategy
}

func newCluster(t *testing.T, cidrs string, stored ...*corev1.Service) *cluster {
	t.Helper()
	var prefixes []netip.Prefix
	for _, text := range strings.Split(cidrs, ",") {
		prefixes = append(prefixes, netip.MustParsePrefix(text))
	}
	state := statetest.New()
	state.Put(networkingv1.Resource("servicecidrs"), &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: strings.Split(cidrs, ",")},
	})
	for _, service := range stored {
		state.Put(services, service)
	}
	allocations, err := allocator.NewServices(prefixes, 30000, 30099, func() registry.State { return state })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := allocations.Repair(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &cluster{t: t, state: state, strategy: Services(allocations, nil).Strategy}
}

var services = corev1.Resource("services")

// store keeps a service as the engine does once it is valid.
func (c *cluster) store(obj *corev1.Service, errs field.ErrorList, dryRun bool) bool {
	if len(errs) > 0 || dryRun {
		return false
	}
	c.state.Put(services, obj)
	return true
}

// remove deletes a service as the engine does.
func (c *cluster) remove(obj *corev1.Service) {
	c.t.Helper()
	if err := c.state.Delete(c.t.Context(), services, obj.Namespace, obj.Name, nil, false); err != nil {
		c.t.Fatal(err)
	}
	c.strategy.AfterDelete(context.Background(), obj)
}

// write runs a create (old nil) or an update as the engine does.
func (c *cluster) write(obj, old *corev1.Service, dryRun bool) error {
	ctx := context.Background()
	s := c.strategy
	s.Default(obj)
	if old == nil {
		done, err := s.Begin(ctx, obj, nil, dryRun)
		if err != nil {
			return err
		}
		s.PrepareForCreate(ctx, obj)
		errs := s.Validate(ctx, obj)
		done(c.store(obj, errs, dryRun))
		return errs.ToAggregate()
	}
	done, err := s.Begin(ctx, obj, old, dryRun)
	if err != nil {
		return err
	}
	s.PrepareForUpdate(ctx, obj, old)
	errs := s.ValidateUpdate(ctx, obj, old)
	done(c.store(obj, errs, dryRun))
	return errs.ToAggregate()
}

func (c *cluster) mustWrite(obj, old *corev1.Service) *corev1.Service {
	c.t.Helper()
	if err := c.write(obj, old, false); err != nil {
		c.t.Fatal(err)
	}
	return obj
}

func service(name string, kind corev1.ServiceType, ports ...int32) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.ServiceSpec{Type: kind, Selector: map[string]string{"app": name}},
	}
	for _, p := range ports {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "p" + string(rune('a'+len(s.Spec.Ports))), Port: p})
	}
	return s
}

func wantError(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Fatalf("error is %v, want %q", err, text)
	}
}

func TestServiceGetsAddressAndNodePorts(t *testing.T) {
	c := newCluster(t, "10.96.0.0/16")
	s := c.mustWrite(service("web", corev1.ServiceTypeNodePort, 80, 443), nil)
	ip := netip.MustParseAddr(s.Spec.ClusterIP)
	if !netip.MustParsePrefix("10.96.0.0/16").Contains(ip) || s.Spec.ClusterIPs[0] != s.Spec.ClusterIP {
		t.Errorf("cluster IPs are %s and %v", s.Spec.ClusterIP, s.Spec.ClusterIPs)
	}
	if *s.Spec.IPFamilyPolicy != corev1.IPFamilyPolicySingleStack || s.Spec.IPFamilies[0] != corev1.IPv4Protocol {
		t.Errorf("families are %v by %s", s.Spec.IPFamilies, *s.Spec.IPFamilyPolicy)
	}
	if a, b := s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort; a < 30000 || b < 30000 || a == b {
		t.Errorf("node ports are %d and %d", a, b)
	}
}

func TestServicePortsOfOneNumberShareANodePort(t *testing.T) {
	c := newCluster(t, "10.96.0.0/16")
	s := service("dns", corev1.ServiceTypeNodePort, 53, 53)
	s.Spec.Ports[1].Protocol = corev1.ProtocolUDP
	c.mustWrite(s, nil)
	if s.Spec.Ports[0].NodePort != s.Spec.Ports[1].NodePort {
		t.Errorf("node ports are %d and %d", s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort)
	}
}

func TestServiceKeepsWhatAnUpdateLeavesOut(t *testing.T) {
	c := newCluster(t, "10.96.0.0/16")
	old := c.mustWrite(service("web", corev1.ServiceTypeNodePort, 80), nil)
	now := service("web", corev1.ServiceTypeNodePort, 80, 81)
	c.mustWrite(now, old)
	if now.Spec.ClusterIP != old.Spec.ClusterIP || now.Spec.Ports[0].NodePort != old.Spec.Ports[0].NodePort {
		t.Errorf("address and node port were %s and %d, are %s and %d", old.Spec.ClusterIP, old.Spec.Ports[0].NodePort, now.Spec.ClusterIP, now.Spec.Ports[0].NodePort)
	}
	if now.Spec.Ports[1].NodePort == 0 {
		t.Error("the new port got no node port")
	}
}

func TestServiceTypeChangeReleasesWhatOnlyTheOldTypeHad(t *testing.T) {
	c := newCluster(t, "10.96.0.0/16")
	old := c.mustWrite(service("web", corev1.ServiceTypeNodePort, 80), nil)
	now := old.DeepCopy()
	now.Spec.Type, now.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.com"
	c.mustWrite(now, old)
	if now.Spec.ClusterIP != "" || now.Spec.ClusterIPs != nil || now.Spec.Ports[0].NodePort != 0 || now.Spec.IPFamilies != nil {
		t.Errorf("an ExternalName service has %+v", now.Spec)
	}
	other := service("other", corev1.ServiceTypeNodePort, 80)
	other.Spec.ClusterIP = old.Spec.ClusterIP
	other.Spec.Ports[0].NodePort = old.Spec.Ports[0].NodePort
	c.mustWrite(other, nil)

	back := now.DeepCopy()
	back.Spec.Type = corev1.ServiceTypeClusterIP
	back.Spec.ExternalName = ""
	c.mustWrite(back, now)
	if back.Spec.ClusterIP == "" || back.Spec.ClusterIP == old.Spec.ClusterIP {
		t.Errorf("address after coming back is %q", back.Spec.ClusterIP)
	}
}

func TestServiceRefusals(t *testing.T) {
	taken := service("taken", corev1.ServiceTypeNodePort, 80)
	taken.Spec.ClusterIP, taken.Spec.ClusterIPs = "10.96.0.7", []string{"10.96.0.7"}
	taken.Spec.Ports[0].NodePort = 30007
	for _, test := range []struct {
		name, want string
		change     func(*corev1.Service)
	}{
		{"taken address", "failed to allocate IP 10.96.0.7: provided IP is already allocated", func(s *corev1.Service) { s.Spec.ClusterIP = "10.96.0.7" }},
		{"foreign address", "failed to allocate IP 192.0.2.1: the provided network does not match the current range", func(s *corev1.Service) { s.Spec.ClusterIP = "192.0.2.1" }},
		{"taken port", "spec.ports[0].nodePort: Invalid value: 30007: provided port is already allocated", func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 30007 }},
		{"foreign port", "provided port is not in the valid range. The range of valid ports is 30000-30099", func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 31000 }},
		{"no ports", "spec.ports: Required value", func(s *corev1.Service) { s.Spec.Ports = nil }},
		{"dual stack", "this cluster is not configured for dual-stack services", func(s *corev1.Service) {
			s.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyRequireDualStack)
		}},
		{"other family", `spec.ipFamilies[0]: Invalid value: "IPv6": not configured on this cluster`, func(s *corev1.Service) { s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} }},
		{"headless node port", "spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for NodePort services", func(s *corev1.Service) { s.Spec.ClusterIP = "None" }},
		{"loopback external IP", "may not be in the loopback range (127.0.0.0/8, ::1/128)", func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"127.0.0.1"} }},
		{"selector", "spec.selector: Invalid value", func(s *corev1.Service) { s.Spec.Selector = map[string]string{"a": "not valid!"} }},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newCluster(t, "10.96.0.0/16", taken)
			s := service("web", corev1.ServiceTypeNodePort, 80)
			test.change(s)
			wantError(t, c.write(s, nil, false), test.want)
		})
	}
}

func TestServiceAddressIsFixedOnceSet(t *testing.T) {
	c := newCluster(t, "10.96.0.0/16")
	old := c.mustWrite(service("web", corev1.ServiceTypeClusterIP, 80), nil)
	now := old.DeepCopy()
	now.Spec.ClusterIP = "10.96.0.9"
	wantError(t, c.write(now, old, false), "spec.clusterIPs[0]: Invalid value: [\"10.96.0.9\"]: may not change once set")
	// The refused update gave back what it took.
	other := service("other", corev1.ServiceTypeClusterIP, 80)
	other.Spec.ClusterIP = "10.96.0.9"
	c.mustWrite(other, nil)
}

func TestServiceDualStackUpgradeAndDowngrade(t *testing.T) {
	c := newCluster(t, "10.96.0.0/16,fd00:10:96::/112")
	old := c.mustWrite(service("web", corev1.ServiceTypeClusterIP, 80), nil)
	dual := old.DeepCopy()
	dual.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyPreferDualStack)
	c.mustWrite(dual, old)
	if len(dual.Spec.ClusterIPs) != 2 || !strings.HasPrefix(dual.Spec.ClusterIPs[1], "fd00:10:96::") || dual.Spec.ClusterIPs[0] != old.Spec.ClusterIP {
		t.Fatalf("addresses are %v", dual.Spec.ClusterIPs)
	}
	single := dual.DeepCopy()
	single.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicySingleStack)
	c.mustWrite(single, dual)
	if len(single.Spec.ClusterIPs) != 1 || len(single.Spec.IPFamilies) != 1 {
		t.Errorf("addresses are %v of %v", single.Spec.ClusterIPs, single.Spec.IPFamilies)
	}
}

func TestHeadlessServiceHasNoAddress(t *testing.T) {
	c := newCluster(t, "10.96.0.0/16")
	s := service("db", corev1.ServiceTypeClusterIP)
	s.Spec.ClusterIP = corev1.ClusterIPNone
	c.mustWrite(s, nil)
	if s.Spec.ClusterIP != "None" || len(s.Spec.ClusterIPs) != 1 || s.Spec.IPFamilies[0] != corev1.IPv4Protocol {
		t.Errorf("got %s, %v, %v", s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.IPFamilies)
	}
}

func TestServiceDryRunTakesNothing(t *testing.T) {
	c := newCluster(t, "10.96.0.0/30") // two addresses
	for i := range 20 {
		if err := c.write(service("web"+string(rune('a'+i)), corev1.ServiceTypeClusterIP, 80), nil, true); err != nil {
			t.Fatal(err)
		}
	}
	c.mustWrite(service("one", corev1.ServiceTypeClusterIP, 80), nil)
	c.mustWrite(service("two", corev1.ServiceTypeClusterIP, 80), nil)
	wantError(t, c.write(service("three", corev1.ServiceTypeClusterIP, 80), nil, false), "failed to allocate a serviceIP: range is full")
}

func TestServiceDeletionReleasesOnlyItsOwn(t *testing.T) {
	c := newCluster(t, "10.96.0.0/16")
	first := service("web", corev1.ServiceTypeClusterIP, 80)
	first.Spec.ClusterIP = "10.96.0.5"
	c.mustWrite(first, nil)
	c.remove(first)
	second := service("web", corev1.ServiceTypeClusterIP, 80)
	second.UID = "another"
	second.Spec.ClusterIP = "10.96.0.5"
	c.mustWrite(second, nil)
	c.strategy.AfterDelete(context.Background(), first) // told twice
	third := service("third", corev1.ServiceTypeClusterIP, 80)
	third.Spec.ClusterIP = "10.96.0.5"
	wantError(t, c.write(third, nil, false), "provided IP is already allocated")
}

func TestServicesRaceForAddressesAndPorts(t *testing.T) {
	c := newCluster(t, "10.96.0.0/25") // 126 addresses, 100 ports
	const writers, each = 8, 12
	var mu sync.Mutex
	ips, ports := map[string]bool{}, map[int32]bool{}
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			for i := range each {
				s := service("s"+string(rune('a'+w))+string(rune('a'+i)), corev1.ServiceTypeNodePort, 80)
				if err := c.write(s, nil, false); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if ips[s.Spec.ClusterIP] || ports[s.Spec.Ports[0].NodePort] {
					t.Errorf("%s or %d was given out twice", s.Spec.ClusterIP, s.Spec.Ports[0].NodePort)
				}
				ips[s.Spec.ClusterIP], ports[s.Spec.Ports[0].NodePort] = true, true
				mu.Unlock()
			}
		})
	}
	group.Wait()
}

func TestLoadBalancerHealthCheckPort(t *testing.T) {
	c := newCluster(t, "10.96.0.0/16")
	s := service("lb", corev1.ServiceTypeLoadBalancer, 80)
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	c.mustWrite(s, nil)
	if s.Spec.HealthCheckNodePort < 30000 || s.Spec.HealthCheckNodePort == s.Spec.Ports[0].NodePort || !*s.Spec.AllocateLoadBalancerNodePorts {
		t.Errorf("health check port is %d beside %d", s.Spec.HealthCheckNodePort, s.Spec.Ports[0].NodePort)
	}
	now := s.DeepCopy()
	now.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	c.mustWrite(now, s)
	if now.Spec.HealthCheckNodePort != 0 {
		t.Errorf("health check port %d stayed", now.Spec.HealthCheckNodePort)
	}
}
