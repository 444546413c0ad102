// Package conntrack keeps UDP flows from going where no endpoint is any more.
// Stale entries are found by comparing the table with the wanted state, not from
// events, so that none is missed.
package conntrack

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/proxy/internal/servicemap"
)

// Flows is where UDP traffic to Services may go.
type Flows struct {
	byAddress  map[netip.AddrPort]map[netip.AddrPort]bool // cluster, external and load balancer IPs
	byNodePort map[uint16]map[netip.AddrPort]bool
}

// NewFlows collects the UDP ports among all ports.
func NewFlows(ports []servicemap.Port) *Flows {
	f := &Flows{byAddress: map[netip.AddrPort]map[netip.AddrPort]bool{}, byNodePort: map[uint16]map[netip.AddrPort]bool{}}
	for i := range ports {
		p := &ports[i]
		if p.Protocol != corev1.ProtocolUDP {
			continue
		}
		endpoints := map[netip.AddrPort]bool{}
		for _, e := range append(p.Usable(), p.Local()...) {
			endpoints[e.Address] = true
		}
		addresses := append([]netip.Addr{p.ClusterIP}, p.ExternalIPs...)
		for _, ip := range append(addresses, p.LoadBalancerIPs...) {
			f.byAddress[netip.AddrPortFrom(ip, p.Port)] = endpoints
		}
		if p.NodePort != 0 {
			f.byNodePort[p.NodePort] = endpoints
		}
	}
	return f
}

// Stale says whether a flow from a client to destination whose answers come
// from source must be forgotten.
func (f *Flows) Stale(destination, source netip.AddrPort, serviceRange netip.Prefix) bool {
	endpoints, known := f.byAddress[destination]
	if !known {
		if endpoints, known = f.byNodePort[destination.Port()]; known && source == destination {
			return false // a local program's own port, not a NodePort's flow
		}
	}
	switch {
	case known && source == destination:
		return len(endpoints) > 0 // was let through before there were endpoints
	case known:
		return !endpoints[source]
	default: // a Service that is gone
		return serviceRange.IsValid() && serviceRange.Contains(destination.Addr()) && source != destination
	}
}

// Reconcile deletes stale flows and returns how many.
func Reconcile(flows *Flows, serviceRange netip.Prefix) (int, error) {
	deleted, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, filter{flows, serviceRange})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return int(deleted), fmt.Errorf("deleting stale UDP flows: %w", err)
	}
	return int(deleted), nil
}

type filter struct {
	flows        *Flows
	serviceRange netip.Prefix
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (f filter) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	if flow.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	destination, ok := netip.AddrFromSlice(flow.Forward.DstIP)
	source, alsoOK := netip.AddrFromSlice(flow.Reverse.SrcIP)
	return ok && alsoOK && f.flows.Stale(
		netip.AddrPortFrom(destination.Unmap(), flow.Forward.DstPort),
		netip.AddrPortFrom(source.Unmap(), flow.Reverse.SrcPort), f.serviceRange)
}
