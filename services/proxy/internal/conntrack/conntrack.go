// Package conntrack keeps UDP flows from going where no endpoint is any more.
// Stale entries are found by comparing the table with the wanted state, not from
// events, so that none is missed: those to endpoints that are gone or not ready,
// those of Services that are gone, and those that were let through before a
// Service's rules were there.
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
	services   map[string][]target // by "namespace/name"
	byAddress  map[netip.AddrPort]destination
	byNodePort map[uint16]destination
}

// destination is where a Service's address leads to. An address may go from one
// Service to another in either order of events.
type destination struct {
	service string
	usable  map[netip.AddrPort]bool
}

// target is one address or node port of a Service.
type target struct {
	address  netip.AddrPort
	nodePort uint16
}

// NewFlows knows no Services.
func NewFlows() *Flows {
	return &Flows{services: map[string][]target{}, byAddress: map[netip.AddrPort]destination{}, byNodePort: map[uint16]destination{}}
}

// Set says how a Service is forwarded; it says whether the Service has or had UDP
// ports, and Reconcile has something to do.
func (f *Flows) Set(service string, ports []servicemap.Port) bool {
	before := f.services[service]
	for _, t := range before {
		if f.byAddress[t.address].service == service {
			delete(f.byAddress, t.address)
		}
		if f.byNodePort[t.nodePort].service == service {
			delete(f.byNodePort, t.nodePort)
		}
	}
	delete(f.services, service)
	var targets []target
	for i := range ports {
		p := &ports[i]
		if p.Protocol != corev1.ProtocolUDP {
			continue
		}
		to := destination{service, map[netip.AddrPort]bool{}}
		for _, e := range append(p.Usable(), p.Local()...) {
			to.usable[e.Address] = true
		}
		addresses := append([]netip.Addr{p.ClusterIP}, p.ExternalIPs...)
		for _, ip := range append(addresses, p.LoadBalancerIPs...) {
			t := target{address: netip.AddrPortFrom(ip, p.Port)}
			f.byAddress[t.address] = to
			targets = append(targets, t)
		}
		if p.NodePort != 0 {
			f.byNodePort[p.NodePort] = to
			targets = append(targets, target{nodePort: p.NodePort})
		}
	}
	if len(targets) > 0 {
		f.services[service] = targets
	}
	return len(before)+len(targets) > 0
}

// Stale says whether a flow must be forgotten: it was opened to destination, its
// answers come from source. They are the same when no rule rewrote the first
// packet.
func (f *Flows) Stale(destination, source netip.AddrPort, serviceRange netip.Prefix, local func(netip.Addr) bool) bool {
	untouched := source == destination
	to, known := f.byAddress[destination]
	if !known {
		if to, known = f.byNodePort[destination.Port()]; known && !local(destination.Addr()) {
			return false // another machine's port
		}
	}
	switch {
	case known && untouched:
		return len(to.usable) > 0 // let through before there were endpoints
	case known:
		return !to.usable[source]
	default: // a Service that is gone
		return !untouched && serviceRange.IsValid() && serviceRange.Contains(destination.Addr())
	}
}

// Reconcile deletes stale flows of this network namespace and returns how many.
func (f *Flows) Reconcile(serviceRange netip.Prefix) (int, error) {
	own, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return 0, fmt.Errorf("listing addresses: %w", err)
	}
	addresses := map[netip.Addr]bool{}
	for _, address := range own {
		if ip, ok := netip.AddrFromSlice(address.IP); ok {
			addresses[ip.Unmap()] = true
		}
	}
	deleted, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, filter{f, serviceRange, addresses})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return int(deleted), fmt.Errorf("deleting stale UDP flows: %w", err)
	}
	return int(deleted), nil
}

type filter struct {
	flows        *Flows
	serviceRange netip.Prefix
	local        map[netip.Addr]bool
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
		netip.AddrPortFrom(source.Unmap(), flow.Reverse.SrcPort),
		f.serviceRange, func(ip netip.Addr) bool { return f.local[ip] })
}
