// Package iptables keeps a node's Service rules: the wanted rules are data made
// from the service map, and only the difference to what is there is written, in
// one iptables-restore per sync. Chains carry upstream's names, so that people
// and tools recognize them.
//
// Three things differ from upstream, so that a change costs the same among ten
// Services and ten thousand (the iptables tools take time with the number of
// chains, and with the length of the chain that is changed):
//
//   - KUBE-SERVICES leads to one SAMPAN-IP chain for each block of 256 cluster
//     IPs; a packet meets the rules of its block, and a change touches only it.
//   - An endpoint has a KUBE-SEP chain only under session affinity. Otherwise the
//     Service's chain rewrites the destination itself.
//   - What an endpoint sends to itself is masqueraded by one rule for each
//     endpoint of this node in SAMPAN-HAIRPIN, not in the endpoint's chain.
package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/sampan-io/sampan/services/proxy/internal/servicemap"
)

// Config of the rules.
type Config struct {
	// ClusterCIDR is the range of all pods; traffic to Services from elsewhere is
	// masqueraded. Invalid: nothing is known to be a pod.
	ClusterCIDR netip.Prefix
	// ServiceCIDR is the range of cluster IPs: traffic to one that is no Service's
	// is refused. Invalid: it is let through.
	ServiceCIDR netip.Prefix
	// DNS is the address in ServiceCIDR that the node itself answers, if any.
	DNS netip.Addr
	// MasqueradeBit is the bit of the packet mark for traffic to masquerade.
	MasqueradeBit int
	// MasqueradeAll masquerades all traffic to cluster IPs.
	MasqueradeAll bool
	// NodePortAddresses are the node's addresses that answer NodePorts; empty is
	// every local one but loopback.
	NodePortAddresses []netip.Prefix
	// SectionChains is how many chains one atomic step of a full sync may have; 0
	// is no limit. See Command.SectionChains.
	SectionChains int
}

// portRules are all rules of one Service port: chains of its own, and lines in
// chains that all ports share.
type portRules struct {
	chains []chain // in the nat table
	shared []line
}

// chain is one of the chains of a port with its rules, without "-A NAME".
type chain struct {
	name  string
	rules []string
}

// line is one rule of a shared chain. Several ports may ask for the same line; it
// is there as long as one does.
type line struct {
	table, chain, rule string
}

// rulesOf makes the rules of one port.
func (c Config) rulesOf(p *servicemap.Port) portRules {
	b := builder{config: c, port: p, proto: strings.ToLower(string(p.Protocol)), name: p.String()}
	b.all, b.local = p.Usable(), p.Local()
	b.svc = chainHash("KUBE-SVC-", b.name, b.proto)
	b.svl = chainHash("KUBE-SVL-", b.name, b.proto)
	b.ext = chainHash("KUBE-EXT-", b.name, b.proto)
	b.clusterIP()
	b.external()
	return b.out
}

type builder struct {
	config        Config
	port          *servicemap.Port
	name, proto   string
	svc, svl, ext string
	// all may be reached through cluster IPs, local through node-local policies.
	all, local []servicemap.Endpoint
	out        portRules
}

func (b *builder) share(table, chain, rule string) {
	b.out.shared = append(b.out.shared, line{table, chain, rule})
}

func (b *builder) made(name string) bool {
	for _, c := range b.out.chains {
		if c.name == name {
			return true
		}
	}
	return false
}

func (b *builder) dport(port uint16) string {
	return "-p " + b.proto + " -m " + b.proto + " --dport " + strconv.Itoa(int(port))
}

func (b *builder) match(ip netip.Addr) string {
	return "-d " + single(ip) + " " + b.dport(b.port.Port)
}

func single(ip netip.Addr) string { return netip.PrefixFrom(ip, ip.BitLen()).String() }

// reject refuses at once. TCP is reset: an ICMP error to a sender on this host
// may get lost, and the sender then tries for a second and more.
func (b *builder) reject() string {
	if b.proto == "tcp" {
		return "-j REJECT --reject-with tcp-reset"
	}
	return "-j REJECT"
}

// clusterIP sends the cluster IP to all endpoints, or to the node's own under
// internalTrafficPolicy Local; without endpoints it is refused at once.
func (b *builder) clusterIP() {
	match := b.match(b.port.ClusterIP)
	endpoints, chain := b.all, b.svc
	if b.port.InternalLocal {
		endpoints, chain = b.local, b.svl
	}
	if len(endpoints) == 0 {
		why, verdict := " has no endpoints", b.reject()
		if b.port.InternalLocal && len(b.all) > 0 { // there are some elsewhere
			why, verdict = " has no local endpoints", "-j DROP"
		}
		b.share(filterTable, servicesChain, match+" "+comment(b.name+why)+" "+verdict)
		return
	}
	b.share(natTable, b.block(), match+" "+comment(b.name+" cluster IP")+" -j "+chain)
	b.endpointChain(chain, endpoints)
}

// block is the chain of the 256 addresses around the cluster IP. It comes with
// its way in, and with the rule that masquerades what does not come from pods.
func (b *builder) block() string {
	ip := b.port.ClusterIP
	prefix := netip.PrefixFrom(ip, ip.BitLen()-8).Masked()
	name := blockPrefix + prefix.Addr().String()
	if !ip.Is4() {
		name = chainHash(blockPrefix, prefix.String())
	}
	b.share(natTable, servicesChain, "-d "+prefix.String()+" -j "+name)
	switch {
	case b.config.MasqueradeAll:
		b.share(natTable, name, "-j "+markChain)
	case b.config.ClusterCIDR.IsValid():
		b.share(natTable, name, "! -s "+b.config.ClusterCIDR.String()+" -j "+markChain)
	}
	return name
}

// endpointChain balances over endpoints.
func (b *builder) endpointChain(name string, endpoints []servicemap.Endpoint) {
	if b.made(name) {
		return
	}
	targets := make([]string, len(endpoints))
	var rules []string
	for i, e := range endpoints {
		targets[i] = b.target(e)
		b.hairpin(e)
		if seconds := int(b.port.Affinity.Seconds()); seconds > 0 {
			sep := strings.TrimPrefix(targets[i], "-j ")
			rules = append(rules, fmt.Sprintf("-m recent --name %s --rcheck --seconds %d --reap --mask %s --rsource -j %s", sep, seconds, hostMask(e), sep))
		}
	}
	for i, target := range targets {
		if left := len(targets) - i; left > 1 {
			target = "-m statistic --mode random --probability " + strconv.FormatFloat(1/float64(left), 'f', 11, 64) + " " + target
		}
		rules = append(rules, target)
	}
	b.out.chains = append(b.out.chains, chain{name, rules})
}

// target sends a packet to an endpoint: directly, or under affinity through a
// chain that also remembers the client.
func (b *builder) target(e servicemap.Endpoint) string {
	rewrite := "-p " + b.proto + " -m " + b.proto + " -j DNAT --to-destination " + e.Address.String()
	if b.port.Affinity == 0 {
		return rewrite
	}
	sep := chainHash("KUBE-SEP-", b.name, b.proto, e.Address.String())
	if !b.made(sep) {
		b.out.chains = append(b.out.chains, chain{sep, []string{"-m recent --name " + sep + " --set --mask " + hostMask(e) + " --rsource", rewrite}})
	}
	return "-j " + sep
}

func hostMask(e servicemap.Endpoint) string {
	if e.Address.Addr().Is4() {
		return "255.255.255.255"
	}
	return "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
}

// hairpin masquerades what an endpoint of this node sends to itself through the
// Service, or the answer would not come back the same way.
func (b *builder) hairpin(e servicemap.Endpoint) {
	ip := e.Address.Addr()
	if e.Local || (e.AnyNode && b.config.ClusterCIDR.IsValid() && b.config.ClusterCIDR.Contains(ip)) {
		b.share(natTable, hairpinChain, "-s "+single(ip)+" -d "+single(ip)+" -j MASQUERADE --random-fully")
	}
}

// comment is text as a comment. What the API allows in names needs no quoting,
// but nothing of the API's is trusted with the shape of a rule.
func comment(text string) string {
	clean := strings.Map(func(r rune) rune {
		if r == '"' || r == '\\' || r < ' ' || r > '~' {
			return '_'
		}
		return r
	}, text)
	return `-m comment --comment "` + clean[:min(len(clean), 250)] + `"`
}

// chainHash is upstream's way to a short chain name.
func chainHash(prefix string, parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "")))
	return prefix + base32.StdEncoding.EncodeToString(sum[:])[:16]
}
