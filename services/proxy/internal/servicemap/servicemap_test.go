package servicemap_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/sampan-io/sampan/services/proxy/internal/servicemap"
)

var here = servicemap.Options{NodeName: "here", Zone: "east", Family: corev1.IPv4Protocol}

func newService(change func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.20", ClusterIPs: []string{"10.96.0.20", "fd00::20"}, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}
	if change != nil {
		change(s)
	}
	return s
}

func newSlice(kind discoveryv1.AddressType, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		AddressType: kind, Endpoints: endpoints,
		Ports: []discoveryv1.EndpointPort{
			{Name: ptr.To("http"), Port: ptr.To[int32](8080), Protocol: ptr.To(corev1.ProtocolTCP)},
			{Name: ptr.To("other"), Port: ptr.To[int32](9090), Protocol: ptr.To(corev1.ProtocolTCP)},
		},
	}
}

type state struct{ ready, serving, terminating bool }

func endpoint(ip, node string, s state, hints ...string) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{ip}, Conditions: discoveryv1.EndpointConditions{Ready: &s.ready, Serving: &s.serving, Terminating: &s.terminating}}
	if node != "" {
		e.NodeName = &node
	}
	for _, zone := range hints {
		if e.Hints == nil {
			e.Hints = &discoveryv1.EndpointHints{}
		}
		e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: zone})
	}
	return e
}

var (
	ready    = state{ready: true, serving: true}
	unready  = state{}
	draining = state{serving: true, terminating: true}
	dying    = state{terminating: true}
)

// addresses are endpoints in short.
func addresses(all []servicemap.Endpoint) (out []string) {
	for _, e := range all {
		out = append(out, e.Address.String())
	}
	return out
}

func mustPort(t *testing.T, service *corev1.Service, o servicemap.Options, all ...*discoveryv1.EndpointSlice) servicemap.Port {
	t.Helper()
	ports := servicemap.Ports(service, all, o)
	if len(ports) != 1 {
		t.Fatalf("%d ports", len(ports))
	}
	return ports[0]
}

func TestEndpointsAreChosenByCondition(t *testing.T) {
	for name, step := range map[string]struct {
		endpoints     []discoveryv1.Endpoint
		usable, local []string
	}{
		"ready ones only":                       {[]discoveryv1.Endpoint{endpoint("10.244.1.1", "here", ready), endpoint("10.244.1.2", "here", unready), endpoint("10.244.1.3", "", draining)}, []string{"10.244.1.1:8080"}, []string{"10.244.1.1:8080"}},
		"draining ones when none is ready":      {[]discoveryv1.Endpoint{endpoint("10.244.1.2", "here", unready), endpoint("10.244.1.3", "there", draining), endpoint("10.244.1.4", "here", dying)}, []string{"10.244.1.3:8080"}, nil},
		"local ones drain on their own":         {[]discoveryv1.Endpoint{endpoint("10.244.1.1", "there", ready), endpoint("10.244.1.3", "here", draining)}, []string{"10.244.1.1:8080"}, []string{"10.244.1.3:8080"}},
		"conditions that are not said are good": {[]discoveryv1.Endpoint{{Addresses: []string{"10.244.1.1"}}}, []string{"10.244.1.1:8080"}, nil},
		"each address once":                     {[]discoveryv1.Endpoint{endpoint("10.244.1.1", "", ready), endpoint("10.244.1.1", "", ready), endpoint("10.244.1.1", "", draining)}, []string{"10.244.1.1:8080"}, nil},
		"addresses of the host are never reached": {[]discoveryv1.Endpoint{
			endpoint("127.0.0.1", "here", ready), endpoint("169.254.169.254", "here", ready), endpoint("0.0.0.0", "here", ready), endpoint("224.0.0.1", "here", ready), endpoint("::ffff:127.0.0.1", "here", ready),
			endpoint("nonsense", "here", ready), endpoint("10.244.1.1 -j ACCEPT", "here", ready), {},
		}, nil, nil},
	} {
		port := mustPort(t, newService(nil), here, newSlice(discoveryv1.AddressTypeIPv4, step.endpoints...))
		if got := addresses(port.Usable()); !slices.Equal(got, step.usable) {
			t.Errorf("%s: usable are %v, want %v", name, got, step.usable)
		}
		if got := addresses(port.Local()); !slices.Equal(got, step.local) {
			t.Errorf("%s: local are %v, want %v", name, got, step.local)
		}
	}
}

func TestHintsAreFollowedOnlyWhenTheyLeaveNoOneOut(t *testing.T) {
	forNode := func(e discoveryv1.Endpoint, nodes ...string) discoveryv1.Endpoint {
		e.Hints = &discoveryv1.EndpointHints{ForZones: e.Hints.ForZones}
		for _, node := range nodes {
			e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: node})
		}
		return e
	}
	east, west := endpoint("10.244.1.1", "", ready, "east"), endpoint("10.244.1.2", "", ready, "west")
	for name, step := range map[string]struct {
		endpoints []discoveryv1.Endpoint
		zone      string
		want      []string
	}{
		"the zone's":                    {[]discoveryv1.Endpoint{east, west}, "east", []string{"10.244.1.1:8080"}},
		"one without hints":             {[]discoveryv1.Endpoint{east, west, endpoint("10.244.1.3", "", ready)}, "east", []string{"10.244.1.1:8080", "10.244.1.2:8080", "10.244.1.3:8080"}},
		"one without hints not ready":   {[]discoveryv1.Endpoint{east, west, endpoint("10.244.1.3", "", unready)}, "east", []string{"10.244.1.1:8080"}},
		"none for the zone":             {[]discoveryv1.Endpoint{east, west}, "north", []string{"10.244.1.1:8080", "10.244.1.2:8080"}},
		"a node without a zone":         {[]discoveryv1.Endpoint{east, west}, "", []string{"10.244.1.1:8080", "10.244.1.2:8080"}},
		"the node's before the zone's":  {[]discoveryv1.Endpoint{forNode(east, "there"), forNode(west, "here")}, "east", []string{"10.244.1.2:8080"}},
		"the zone's when not the nodes": {[]discoveryv1.Endpoint{forNode(east, "there"), forNode(west, "there")}, "east", []string{"10.244.1.1:8080"}},
	} {
		o := here
		o.Zone = step.zone
		port := mustPort(t, newService(nil), o, newSlice(discoveryv1.AddressTypeIPv4, step.endpoints...))
		if got := addresses(port.Usable()); !slices.Equal(got, step.want) {
			t.Errorf("%s: %v, want %v", name, got, step.want)
		}
	}
}

func TestServicesThatAreNotForwarded(t *testing.T) {
	dns := here
	dns.Excluded = []netip.Addr{netip.MustParseAddr("10.96.0.20")}
	for name, step := range map[string]struct {
		change func(*corev1.Service)
		o      servicemap.Options
	}{
		"headless":      {func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"} }, here},
		"ExternalName":  {func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }, here},
		"no address":    {func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil }, here},
		"other proxy's": {func(s *corev1.Service) { s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "x"} }, here},
		"excluded":      {nil, dns},
		"hostile":       {func(s *corev1.Service) { s.Spec.Ports[0].Protocol = "tcp -j ACCEPT" }, here},
	} {
		if ports := servicemap.Ports(newService(step.change), nil, step.o); len(ports) > 0 {
			t.Errorf("%s: %v", name, ports)
		}
	}
}

func TestFamiliesAreKeptApart(t *testing.T) {
	six := here
	six.Family = corev1.IPv6Protocol
	both := []*discoveryv1.EndpointSlice{newSlice(discoveryv1.AddressTypeIPv4, endpoint("10.244.1.1", "", ready)), newSlice(discoveryv1.AddressTypeIPv6, endpoint("fd00::1:1", "", ready))}
	port := mustPort(t, newService(nil), six, both...)
	if port.ClusterIP != netip.MustParseAddr("fd00::20") || !slices.Equal(addresses(port.Usable()), []string{"[fd00::1:1]:8080"}) {
		t.Errorf("IPv6: %+v", port)
	}
	port = mustPort(t, newService(nil), here, both...)
	if port.ClusterIP != netip.MustParseAddr("10.96.0.20") || !slices.Equal(addresses(port.Usable()), []string{"10.244.1.1:8080"}) {
		t.Errorf("IPv4: %+v", port)
	}
}

func TestExternalAddressesAndAffinity(t *testing.T) {
	service := newService(func(s *corev1.Service) {
		s.Spec.Ports[0].NodePort = 30080
		s.Spec.ExternalIPs = []string{"192.0.2.9"}
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.LoadBalancerSourceRanges = []string{"198.51.100.0/24", " 203.0.113.7/32 ", "nonsense"}
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}, {IP: "192.0.2.2", IPMode: ptr.To(corev1.LoadBalancerIPModeProxy)}, {Hostname: "lb.example.com"}}
	})
	port := mustPort(t, service, here)
	if len(port.ExternalIPs) != 0 || port.NodePort != 30080 || port.Affinity != 3*time.Hour {
		t.Errorf("%+v", port)
	}
	if want := []netip.Addr{netip.MustParseAddr("192.0.2.1")}; !slices.Equal(port.LoadBalancerIPs, want) {
		t.Errorf("load balancer addresses are %v", port.LoadBalancerIPs)
	}
	if fmt.Sprint(port.SourceRanges) != "[198.51.100.0/24 203.0.113.7/32]" {
		t.Errorf("source ranges are %v", port.SourceRanges)
	}
	allowed := here
	allowed.AllowExternalIPs = true
	if port := mustPort(t, service, allowed); len(port.ExternalIPs) != 1 {
		t.Errorf("allowed external addresses are %v", port.ExternalIPs)
	}
}

// Whatever slices say, and however endpoints are spread over them: an endpoint is
// usable only if it is, none is lost, and the order of slices does not matter.
func TestUsableEndpointsFollowTheModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		states := []state{ready, unready, draining, dying}
		of := map[string]state{}
		var all []*discoveryv1.EndpointSlice
		for range rapid.IntRange(0, 3).Draw(r, "slices") {
			var endpoints []discoveryv1.Endpoint
			for range rapid.IntRange(0, 4).Draw(r, "endpoints") {
				ip := fmt.Sprintf("10.244.1.%d", rapid.IntRange(1, 200).Draw(r, "ip"))
				if _, taken := of[ip]; taken {
					continue
				}
				of[ip] = rapid.SampledFrom(states).Draw(r, "state")
				endpoints = append(endpoints, endpoint(ip, "", of[ip]))
			}
			all = append(all, newSlice(discoveryv1.AddressTypeIPv4, endpoints...))
		}
		var want, draining []string
		for ip, s := range of {
			switch {
			case s.ready:
				want = append(want, ip+":8080")
			case s.serving && s.terminating:
				draining = append(draining, ip+":8080")
			}
		}
		if len(want) == 0 {
			want = draining
		}
		got := servicemap.Ports(newService(nil), all, here)[0]
		slices.Reverse(all)
		again := servicemap.Ports(newService(nil), all, here)[0]
		if !slices.Equal(addresses(got.Usable()), addresses(again.Usable())) {
			r.Fatalf("order of slices matters: %v, %v", got.Usable(), again.Usable())
		}
		found := addresses(got.Usable())
		slices.Sort(found)
		slices.Sort(want)
		if !slices.Equal(found, want) {
			r.Fatalf("usable are %v, want %v of %v", found, want, of)
		}
	})
}
