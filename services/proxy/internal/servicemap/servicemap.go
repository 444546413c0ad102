// Package servicemap turns Services and EndpointSlices into what a node must
// forward: per Service port the addresses that it is reached at and the
// endpoints behind it. It is pure: no I/O, no clock.
package servicemap

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// PortName names one port of one Service.
type PortName struct {
	Namespace, Name string
	Port            string // the port's name, "" when it has none
	Protocol        corev1.Protocol
}

// String is namespace/name, with ":port" where the port has a name.
func (p PortName) String() string {
	if p.Port == "" {
		return p.Namespace + "/" + p.Name
	}
	return p.Namespace + "/" + p.Name + ":" + p.Port
}

// Port is one port of a Service as it is forwarded.
type Port struct {
	PortName
	ClusterIP   netip.Addr
	Port        uint16
	NodePort    uint16 // 0 for none
	ExternalIPs []netip.Addr
	// LoadBalancerIPs are those that the node answers itself (ipMode VIP).
	LoadBalancerIPs []netip.Addr
	SourceRanges    []netip.Prefix // who may use the load balancer; empty is everyone

	Affinity time.Duration // of a client to its endpoint; 0 is none
	// InternalLocal and ExternalLocal keep traffic on the node.
	InternalLocal, ExternalLocal bool
	HealthCheckNodePort          uint16

	Endpoints []Endpoint // usable ones, in order of address
}

// Endpoint is one address behind a Service port.
type Endpoint struct {
	Address netip.AddrPort
	Local   bool // on this node
	AnyNode bool // not said on which node it is
	Ready   bool // else it is terminating and still serving
	Near    bool // topology hints give it to this node
}

// Usable are the endpoints for traffic that may go anywhere: the ready ones, of
// those the near ones if there are any, or those that terminate and still serve
// when none is ready (KEP-1669).
func (p *Port) Usable() []Endpoint {
	usable := choose(p.Endpoints)
	var near []Endpoint
	for _, e := range usable {
		if e.Near {
			near = append(near, e)
		}
	}
	if len(near) > 0 {
		return near
	}
	return usable
}

// Local are the endpoints on this node, chosen in the same way.
func (p *Port) Local() []Endpoint {
	var local []Endpoint
	for _, e := range p.Endpoints {
		if e.Local {
			local = append(local, e)
		}
	}
	return choose(local)
}

// LocalAddresses is how many ready endpoints are on this node.
func (p *Port) LocalAddresses() int {
	n := 0
	for _, e := range p.Endpoints {
		if e.Local && e.Ready {
			n++
		}
	}
	return n
}

func choose(all []Endpoint) []Endpoint {
	var ready []Endpoint
	for _, e := range all {
		if e.Ready {
			ready = append(ready, e)
		}
	}
	if len(ready) > 0 {
		return ready
	}
	return all
}

// Options of the node that the map is made for.
type Options struct {
	NodeName string
	Zone     string // of the node, "" when it has none
	Family   corev1.IPFamily
	// AllowExternalIPs forwards spec.externalIPs (CVE-2020-8554: any tenant may claim
	// any address with them).
	AllowExternalIPs bool
	// Excluded are cluster IPs that the node answers itself (cluster DNS).
	Excluded []netip.Addr
}

// Ports are the forwarded ports of one Service, given its slices; none for a
// headless or an ExternalName Service, and for one that another proxy handles.
func Ports(service *corev1.Service, slices []*discoveryv1.EndpointSlice, o Options) []Port {
	ip, ok := clusterIP(service, o)
	if !ok || foreign(service) {
		return nil
	}
	var out []Port
	for _, p := range service.Spec.Ports {
		if !known(protocol(p.Protocol)) {
			continue
		}
		port := Port{
			PortName:  PortName{service.Namespace, service.Name, p.Name, protocol(p.Protocol)},
			ClusterIP: ip, Port: uint16(p.Port), NodePort: uint16(p.NodePort),
			InternalLocal: service.Spec.InternalTrafficPolicy != nil && *service.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal,
			ExternalLocal: service.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
			SourceRanges:  prefixes(service.Spec.LoadBalancerSourceRanges),
			Affinity:      affinity(service),
			Endpoints:     endpoints(slices, p.Name, protocol(p.Protocol), o),
		}
		if port.ExternalLocal {
			port.HealthCheckNodePort = uint16(service.Spec.HealthCheckNodePort)
		}
		if o.AllowExternalIPs {
			port.ExternalIPs = addresses(service.Spec.ExternalIPs, o.Family)
		}
		for _, ingress := range service.Status.LoadBalancer.Ingress {
			if ingress.IPMode == nil || *ingress.IPMode == corev1.LoadBalancerIPModeVIP {
				port.LoadBalancerIPs = append(port.LoadBalancerIPs, addresses([]string{ingress.IP}, o.Family)...)
			}
		}
		out = append(out, port)
	}
	return out
}

func protocol(p corev1.Protocol) corev1.Protocol {
	if p == "" {
		return corev1.ProtocolTCP
	}
	return p
}

// known says whether a protocol may become part of a rule.
func known(p corev1.Protocol) bool {
	return p == corev1.ProtocolTCP || p == corev1.ProtocolUDP || p == corev1.ProtocolSCTP
}

// clusterIP is the Service's address of the node's family.
func clusterIP(service *corev1.Service, o Options) (netip.Addr, bool) {
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return netip.Addr{}, false
	}
	all := service.Spec.ClusterIPs
	if len(all) == 0 {
		all = []string{service.Spec.ClusterIP}
	}
	for _, ip := range addresses(all, o.Family) {
		return ip, !slices.Contains(o.Excluded, ip)
	}
	return netip.Addr{}, false
}

// addresses parses those of a family; what does not parse ("None", "") is left
// out.
func addresses(texts []string, family corev1.IPFamily) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		if ip, err := netip.ParseAddr(text); err == nil && ip.Unmap().Is4() == (family != corev1.IPv6Protocol) {
			out = append(out, ip.Unmap())
		}
	}
	return out
}

func prefixes(texts []string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		if prefix, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil {
			out = append(out, prefix.Masked())
		}
	}
	return out
}

const defaultAffinity = 3 * time.Hour

func affinity(service *corev1.Service) time.Duration {
	if service.Spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0
	}
	c := service.Spec.SessionAffinityConfig
	if c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
		return defaultAffinity
	}
	return time.Duration(*c.ClientIP.TimeoutSeconds) * time.Second
}

// endpoints are the addresses of a port in all slices, each once.
func endpoints(all []*discoveryv1.EndpointSlice, name string, protocol corev1.Protocol, o Options) []Endpoint {
	want := discoveryv1.AddressTypeIPv4
	if o.Family == corev1.IPv6Protocol {
		want = discoveryv1.AddressTypeIPv6
	}
	found := map[netip.AddrPort]candidate{}
	for _, slice := range all {
		if slice.AddressType != want {
			continue
		}
		for _, port := range slice.Ports {
			if !samePort(port, name, protocol) {
				continue
			}
			for _, e := range slice.Endpoints {
				if endpoint, ok := usable(e, uint16(*port.Port), o); ok {
					if have, seen := found[endpoint.Address]; !seen || !have.Ready {
						found[endpoint.Address] = candidate{endpoint, e.Hints}
					}
				}
			}
		}
	}
	sorted := slices.SortedFunc(maps.Values(found), func(a, b candidate) int { return a.Address.Compare(b.Address) })
	out := make([]Endpoint, len(sorted))
	hints := map[int]*discoveryv1.EndpointHints{}
	for i, c := range sorted {
		out[i] = c.Endpoint
		if c.hints != nil {
			hints[i] = c.hints
		}
	}
	if len(hints) > 0 {
		near(out, hints, o)
	}
	return out
}

// candidate is an endpoint with what its slice says of who should use it.
type candidate struct {
	Endpoint
	hints *discoveryv1.EndpointHints
}

func samePort(port discoveryv1.EndpointPort, name string, protocol corev1.Protocol) bool {
	if port.Port == nil || *port.Port < 1 || *port.Port > 65535 {
		return false
	}
	have := ""
	if port.Name != nil {
		have = *port.Name
	}
	return have == name && (port.Protocol == nil && protocol == corev1.ProtocolTCP || port.Protocol != nil && *port.Protocol == protocol)
}

// usable is the endpoint when it may get traffic. Addresses of this host are
// never forwarded to: who can write slices must not reach what listens on
// loopback or link-local addresses of every node.
func usable(e discoveryv1.Endpoint, port uint16, o Options) (Endpoint, bool) {
	if len(e.Addresses) == 0 {
		return Endpoint{}, false
	}
	ip, err := netip.ParseAddr(e.Addresses[0])
	if err != nil || !routable(ip) {
		return Endpoint{}, false
	}
	ready := e.Conditions.Ready == nil || *e.Conditions.Ready
	serving := ready || (e.Conditions.Serving != nil && *e.Conditions.Serving)
	terminating := e.Conditions.Terminating != nil && *e.Conditions.Terminating
	if !ready && (!serving || !terminating) {
		return Endpoint{}, false
	}
	return Endpoint{Address: netip.AddrPortFrom(ip.Unmap(), port), Local: e.NodeName != nil && *e.NodeName == o.NodeName, AnyNode: e.NodeName == nil, Ready: ready}, true
}

func routable(ip netip.Addr) bool {
	ip = ip.Unmap()
	return !ip.IsLoopback() && !ip.IsLinkLocalUnicast() && !ip.IsMulticast() && !ip.IsUnspecified() && ip.Zone() == ""
}
