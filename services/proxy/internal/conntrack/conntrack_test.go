package conntrack_test

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/proxy/internal/conntrack"
	"github.com/sampan-io/sampan/services/proxy/internal/servicemap"
)

func newPort(ip string, nodePort uint16, endpoints ...string) servicemap.Port {
	p := servicemap.Port{PortName: servicemap.PortName{Protocol: corev1.ProtocolUDP}, ClusterIP: netip.MustParseAddr(ip), Port: 53, NodePort: nodePort}
	for _, e := range endpoints {
		p.Endpoints = append(p.Endpoints, servicemap.Endpoint{Address: netip.MustParseAddrPort(e), Ready: true})
	}
	return p
}

func TestStaleFlows(t *testing.T) {
	flows := conntrack.NewFlows()
	flows.Set("default/dns", []servicemap.Port{newPort("10.96.0.20", 30053, "10.244.1.2:5353")})
	flows.Set("default/idle", []servicemap.Port{newPort("10.96.0.21", 30054)})
	local := func(ip netip.Addr) bool { return ip == netip.MustParseAddr("10.89.0.11") }
	for name, step := range map[string]struct {
		destination, source string
		stale               bool
	}{
		"to an endpoint":                      {"10.96.0.20:53", "10.244.1.2:5353", false},
		"to an endpoint that is gone":         {"10.96.0.20:53", "10.244.1.9:5353", true},
		"to another port of the endpoint":     {"10.96.0.20:53", "10.244.1.2:53", true},
		"let through before there were rules": {"10.96.0.20:53", "10.96.0.20:53", true},
		"without endpoints":                   {"10.96.0.21:53", "10.244.1.2:5353", true},
		"without endpoints, let through":      {"10.96.0.21:53", "10.96.0.21:53", false},
		"of a Service that is gone":           {"10.96.9.9:53", "10.244.1.2:5353", true},
		"to the node's own DNS":               {"10.96.0.10:53", "10.96.0.10:53", false},
		"NodePort to an endpoint":             {"10.89.0.11:30053", "10.244.1.2:5353", false},
		"NodePort to an endpoint gone":        {"10.89.0.11:30053", "10.244.1.9:5353", true},
		"another machine's port":              {"192.0.2.1:30053", "192.0.2.1:30053", false},
		"someone else's rule":                 {"10.89.0.11:8053", "10.244.1.9:53", false},
		"from pod to pod":                     {"10.244.1.2:5353", "10.244.1.2:5353", false},
	} {
		got := flows.Stale(netip.MustParseAddrPort(step.destination), netip.MustParseAddrPort(step.source), netip.MustParsePrefix("10.96.0.0/16"), local)
		if got != step.stale {
			t.Errorf("%s: stale is %v", name, got)
		}
	}
}

func TestAddressesMoveBetweenServicesInAnyOrder(t *testing.T) {
	flows := conntrack.NewFlows()
	flows.Set("default/old", []servicemap.Port{newPort("10.96.0.20", 0, "10.244.1.2:53")})
	flows.Set("default/new", []servicemap.Port{newPort("10.96.0.20", 0, "10.244.1.3:53")})
	if !flows.Set("default/old", nil) {
		t.Error("removing the last UDP port needs no look at flows")
	}
	destination := netip.MustParseAddrPort("10.96.0.20:53")
	if flows.Stale(destination, netip.MustParseAddrPort("10.244.1.3:53"), netip.Prefix{}, nil) {
		t.Error("the new Service's flow is stale")
	}
	if flows.Set("default/other", []servicemap.Port{{PortName: servicemap.PortName{Protocol: corev1.ProtocolTCP}}}) {
		t.Error("TCP ports need a look at flows")
	}
}
