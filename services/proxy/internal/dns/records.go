// Package dns answers cluster DNS on the node from the same objects that the
// rules are made from, as the Kubernetes DNS specification 1.1 says, and asks
// the host's resolvers for everything else.
package dns

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Source is where records come from.
type Source interface {
	// Synced says whether everything that exists is known; a name that is not known
	// before then may still exist.
	Synced() bool
	Namespace(name string) bool
	Service(namespace, name string) *corev1.Service
	Slices(namespace, name string) []*discoveryv1.EndpointSlice
	// ServiceByIP and EndpointByIP answer reverse look-ups.
	ServiceByIP(ip netip.Addr) *corev1.Service
	EndpointByIP(ip netip.Addr) (service *corev1.Service, hostname string)
}

const (
	ttl         = 5
	soaRefresh  = 7200
	soaRetry    = 1800
	soaExpire   = 86400
	specVersion = "1.1.0"
)

// zone answers names below the cluster's domain.
type zone struct {
	domain string // "cluster.local."
	self   netip.Addr
	source Source
}

// answer is the outcome of a look-up.
type answer struct {
	records []dns.RR
	extra   []dns.RR
	exists  bool // the name exists, if not with this type
	unsure  bool // not all is known yet
}

func (z *zone) lookup(question dns.Question) answer {
	name := strings.ToLower(question.Name)
	rest, ok := strings.CutSuffix(name, z.domain)
	if !ok {
		return answer{}
	}
	if rest == "" {
		return answer{exists: true, records: z.apex(question)}
	}
	labels := strings.Split(strings.TrimSuffix(rest, "."), ".")
	slices.Reverse(labels)
	switch {
	case len(labels) == 1 && (labels[0] == "svc" || labels[0] == "pod"):
		return answer{exists: true}
	case len(labels) == 1 && labels[0] == "dns-version":
		return only(question, dns.TypeTXT, &dns.TXT{Hdr: header(question.Name, dns.TypeTXT), Txt: []string{specVersion}})
	case rest == "ns.dns.":
		return answer{exists: true, records: records(question, []netip.Addr{z.self})}
	case rest == "dns.":
		return answer{exists: true}
	case labels[0] == "svc":
		return z.service(question, labels[1:])
	case labels[0] == "pod":
		return z.pod(question, labels[1:])
	}
	return answer{}
}

func header(name string, kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: ttl}
}

func only(question dns.Question, kind uint16, record dns.RR) answer {
	if question.Qtype != kind && question.Qtype != dns.TypeANY {
		return answer{exists: true}
	}
	return answer{exists: true, records: []dns.RR{record}}
}

func (z *zone) apex(question dns.Question) []dns.RR {
	switch question.Qtype {
	case dns.TypeSOA:
		return []dns.RR{z.soa()}
	case dns.TypeNS:
		return []dns.RR{&dns.NS{Hdr: header(question.Name, dns.TypeNS), Ns: "ns.dns." + z.domain}}
	}
	return nil
}

func (z *zone) soa() dns.RR {
	return &dns.SOA{Hdr: header(z.domain, dns.TypeSOA), Ns: "ns.dns." + z.domain, Mbox: "hostmaster." + z.domain, Serial: 1, Refresh: soaRefresh, Retry: soaRetry, Expire: soaExpire, Minttl: ttl}
}

// service answers below svc: [namespace, service, endpoint] or [namespace,
// service, _protocol, _port], given in that order.
func (z *zone) service(question dns.Question, labels []string) answer {
	if len(labels) == 1 {
		return answer{exists: z.source.Namespace(labels[0])}
	}
	service := z.source.Service(labels[0], labels[1])
	if service == nil {
		return answer{}
	}
	switch len(labels) {
	case 2:
		return z.addresses(question, service, "")
	case 3:
		if strings.HasPrefix(labels[2], "_") {
			return answer{exists: true} // a protocol without a port
		}
		if !headless(service) {
			return answer{}
		}
		return z.addresses(question, service, labels[2])
	case 4:
		return z.srv(question, service, strings.TrimPrefix(labels[2], "_"), strings.TrimPrefix(labels[3], "_"))
	}
	return answer{}
}

func headless(service *corev1.Service) bool { return service.Spec.ClusterIP == corev1.ClusterIPNone }

// addresses are a Service's A or AAAA records: its cluster IPs, or its
// endpoints when it is headless; hostname chooses one endpoint.
func (z *zone) addresses(question dns.Question, service *corev1.Service, hostname string) answer {
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		if hostname != "" {
			return answer{}
		}
		return answer{exists: true, records: []dns.RR{&dns.CNAME{Hdr: header(question.Name, dns.TypeCNAME), Target: dns.Fqdn(service.Spec.ExternalName)}}}
	}
	if !headless(service) {
		return answer{exists: true, records: records(question, clusterIPs(service))}
	}
	var all []netip.Addr
	for _, e := range z.endpoints(service) {
		if hostname == "" || e.name == hostname {
			all = append(all, e.ip)
		}
	}
	if len(all) == 0 { // without ready endpoints the name does not exist
		return answer{}
	}
	// Clients take the first: let it be another each time.
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return answer{exists: true, records: records(question, all)}
}

func clusterIPs(service *corev1.Service) []netip.Addr {
	all := service.Spec.ClusterIPs
	if len(all) == 0 {
		all = []string{service.Spec.ClusterIP}
	}
	var out []netip.Addr
	for _, text := range all {
		if ip, err := netip.ParseAddr(text); err == nil {
			out = append(out, ip)
		}
	}
	return out
}

func records(question dns.Question, ips []netip.Addr) []dns.RR {
	var out []dns.RR
	for _, ip := range ips {
		if record := address(question.Name, ip); question.Qtype == record.Header().Rrtype || question.Qtype == dns.TypeANY {
			out = append(out, record)
		}
	}
	return out
}

func address(name string, ip netip.Addr) dns.RR {
	if ip.Is4() {
		return &dns.A{Hdr: header(name, dns.TypeA), A: net.IP(ip.AsSlice())}
	}
	return &dns.AAAA{Hdr: header(name, dns.TypeAAAA), AAAA: net.IP(ip.AsSlice())}
}

// endpoint is one address of a headless Service and its name below it.
type endpoint struct {
	ip    netip.Addr
	name  string
	ports []discoveryv1.EndpointPort
}

func (z *zone) endpoints(service *corev1.Service) []endpoint {
	var out []endpoint
	seen := map[netip.Addr]bool{}
	for _, slice := range z.source.Slices(service.Namespace, service.Name) {
		for _, e := range slice.Endpoints {
			if !service.Spec.PublishNotReadyAddresses && e.Conditions.Ready != nil && !*e.Conditions.Ready {
				continue
			}
			for _, text := range e.Addresses {
				ip, err := netip.ParseAddr(text)
				if err != nil || seen[ip] {
					continue
				}
				seen[ip] = true
				name := dashed(ip)
				if e.Hostname != nil && *e.Hostname != "" {
					name = strings.ToLower(*e.Hostname)
				}
				out = append(out, endpoint{ip, name, slice.Ports})
			}
		}
	}
	return out
}

// dashed is an address as a label: 10-0-0-1.
func dashed(ip netip.Addr) string {
	return strings.NewReplacer(".", "-", ":", "-").Replace(ip.String())
}

// srv are the records of a named port.
func (z *zone) srv(question dns.Question, service *corev1.Service, protocol, port string) answer {
	out := answer{}
	name := strings.ToLower(service.Name) + "." + service.Namespace + ".svc." + z.domain
	add := func(number int32, target string, ips ...netip.Addr) {
		out.exists = true
		if question.Qtype != dns.TypeSRV && question.Qtype != dns.TypeANY {
			return
		}
		out.records = append(out.records, &dns.SRV{Hdr: header(question.Name, dns.TypeSRV), Priority: 0, Weight: 100, Port: uint16(number), Target: target})
		for _, ip := range ips {
			out.extra = append(out.extra, address(target, ip))
		}
	}
	if !headless(service) {
		for _, p := range service.Spec.Ports {
			if strings.EqualFold(p.Name, port) && strings.EqualFold(string(p.Protocol), protocol) {
				add(p.Port, name, clusterIPs(service)...)
			}
		}
		return out
	}
	for _, e := range z.endpoints(service) {
		for _, p := range e.ports {
			if p.Name != nil && p.Port != nil && p.Protocol != nil && strings.EqualFold(*p.Name, port) && strings.EqualFold(string(*p.Protocol), protocol) {
				add(*p.Port, e.name+"."+name, e.ip)
			}
		}
	}
	return out
}

// pod answers below pod: [namespace, dashed address]. The address is in the
// name; whether the namespace has a pod with it is not looked up, as upstream's
// default has it.
func (z *zone) pod(question dns.Question, labels []string) answer {
	if len(labels) == 1 {
		return answer{exists: z.source.Namespace(labels[0])}
	}
	if len(labels) > 2 {
		return answer{}
	}
	for _, separator := range []string{".", ":"} {
		if ip, err := netip.ParseAddr(strings.ReplaceAll(labels[1], "-", separator)); err == nil {
			return answer{exists: true, records: records(question, []netip.Addr{ip})}
		}
	}
	return answer{}
}

// reverse answers PTR questions for addresses of Services and endpoints; ok is
// false for addresses that are not the cluster's.
func (z *zone) reverse(question dns.Question) (answer, bool) {
	ip, ok := reverseAddress(question.Name)
	if !ok {
		return answer{}, false
	}
	pointer := func(target string) (answer, bool) {
		return only(question, dns.TypePTR, &dns.PTR{Hdr: header(question.Name, dns.TypePTR), Ptr: target}), true
	}
	if service := z.source.ServiceByIP(ip); service != nil {
		return pointer(service.Name + "." + service.Namespace + ".svc." + z.domain)
	}
	if service, hostname := z.source.EndpointByIP(ip); service != nil {
		if hostname == "" {
			hostname = dashed(ip)
		}
		return pointer(hostname + "." + service.Name + "." + service.Namespace + ".svc." + z.domain)
	}
	return answer{}, false
}

func reverseAddress(name string) (netip.Addr, bool) {
	if rest, ok := strings.CutSuffix(strings.ToLower(name), ".in-addr.arpa."); ok {
		parts := strings.Split(rest, ".")
		slices.Reverse(parts)
		ip, err := netip.ParseAddr(strings.Join(parts, "."))
		return ip, err == nil && ip.Is4()
	}
	if rest, ok := strings.CutSuffix(strings.ToLower(name), ".ip6.arpa."); ok {
		nibbles := strings.Split(rest, ".")
		if len(nibbles) != 32 {
			return netip.Addr{}, false
		}
		slices.Reverse(nibbles)
		var text strings.Builder
		for i, nibble := range nibbles {
			if i > 0 && i%4 == 0 {
				text.WriteByte(':')
			}
			text.WriteString(nibble)
		}
		ip, err := netip.ParseAddr(text.String())
		return ip, err == nil
	}
	return netip.Addr{}, false
}
