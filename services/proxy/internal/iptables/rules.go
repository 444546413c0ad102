// Package iptables keeps a node's Service rules: the wanted rules are data made
// from the service map, and only the difference to what is there is written, in
// one iptables-restore per sync. Chains carry upstream's names, so that people
// and tools recognize them.
package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net/netip"
	"strings"

	"github.com/sampan-io/sampan/services/proxy/internal/servicemap"
)

// Config of the rules.
type Config struct {
	// ClusterCIDR is the range of all pods; traffic to Services from elsewhere is
	// masqueraded. Invalid: nothing is known to be a pod.
	ClusterCIDR netip.Prefix
	// MasqueradeBit is the bit of the packet mark for traffic to masquerade.
	MasqueradeBit int
	// MasqueradeAll masquerades all traffic to cluster IPs.
	MasqueradeAll bool
	// NodePortAddresses are the node's addresses that answer NodePorts; empty is
	// every local one but loopback.
	NodePortAddresses []netip.Prefix
}

// Tables and chains.
const (
	natTable    = "nat"
	filterTable = "filter"

	servicesChain    = "KUBE-SERVICES"
	externalChain    = "KUBE-EXTERNAL-SERVICES"
	nodePortsChain   = "KUBE-NODEPORTS"
	postroutingChain = "KUBE-POSTROUTING"
	markChain        = "KUBE-MARK-MASQ"
	forwardChain     = "KUBE-FORWARD"
	podsChain        = "SAMPAN-PODS" // pods to the outside and back
)

// portRules are all rules of one Service port: chains of its own and lines in
// the chains that all ports share.
type portRules struct {
	chains map[string][]string // nat chain → its rules, without "-A CHAIN"
	shared []line
}

// line is one rule in a shared chain.
type line struct {
	table, chain, rule string
}

// chainHash is upstream's way to a short chain name.
func chainHash(prefix string, parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "")))
	return prefix + base32.StdEncoding.EncodeToString(sum[:])[:16]
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

func (c Config) mark() string { return fmt.Sprintf("%#x", 1<<c.MasqueradeBit) }

// rulesOf makes the rules of one port.
func (c Config) rulesOf(p *servicemap.Port) portRules {
	b := builder{config: c, port: p, proto: strings.ToLower(string(p.Protocol)), out: portRules{chains: map[string][]string{}}}
	b.name = p.PortName.String()
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
	all, local    []servicemap.Endpoint
	out           portRules
}

func (b *builder) share(table, chain, rule string) {
	b.out.shared = append(b.out.shared, line{table, chain, rule})
}

func (b *builder) match(ip netip.Addr) string {
	return fmt.Sprintf("-d %s/%d -p %s -m %s --dport %d", ip, ip.BitLen(), b.proto, b.proto, b.port.Port)
}

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
		verdict := b.reject()
		if b.port.InternalLocal && len(b.all) > 0 { // there are some elsewhere
			verdict = "-j DROP"
		}
		b.share(filterTable, servicesChain, match+" "+comment(b.name+" has no endpoints")+" "+verdict)
		return
	}
	b.share(natTable, servicesChain, match+" "+comment(b.name+" cluster IP")+" -j "+chain)
	b.endpointChain(chain, endpoints)
}

// endpointChain balances over endpoints.
func (b *builder) endpointChain(chain string, endpoints []servicemap.Endpoint) {
	if _, made := b.out.chains[chain]; made {
		return
	}
	var rules []string
	match := b.match(b.port.ClusterIP)
	switch {
	case b.config.MasqueradeAll:
		rules = append(rules, match+" -j "+markChain)
	case b.config.ClusterCIDR.IsValid():
		rules = append(rules, "! -s "+b.config.ClusterCIDR.String()+" "+match+" -j "+markChain)
	}
	var heads []string
	for _, e := range endpoints {
		heads = append(heads, b.sepChain(e))
	}
	if seconds := int(b.port.Affinity.Seconds()); seconds > 0 {
		for _, sep := range heads {
			rules = append(rules, fmt.Sprintf("-m recent --name %s --rcheck --seconds %d --reap --mask 255.255.255.255 --rsource -j %s", sep, seconds, sep))
		}
	}
	for i, sep := range heads {
		probability := ""
		if left := len(heads) - i; left > 1 {
			probability = fmt.Sprintf("-m statistic --mode random --probability %.11f ", 1/float64(left))
		}
		rules = append(rules, probability+"-j "+sep)
	}
	b.out.chains[chain] = rules
}

// sepChain is the chain of one endpoint. What an endpoint sends to itself
// through the Service is masqueraded, or the answer would not come back.
func (b *builder) sepChain(e servicemap.Endpoint) string {
	chain := chainHash("KUBE-SEP-", b.name, b.proto, e.Address.String())
	ip := e.Address.Addr()
	affinity := ""
	if b.port.Affinity > 0 {
		affinity = "-m recent --name " + chain + " --set --mask 255.255.255.255 --rsource "
	}
	b.out.chains[chain] = []string{
		fmt.Sprintf("-s %s/%d -j %s", ip, ip.BitLen(), markChain),
		fmt.Sprintf("-p %s %s-m %s -j DNAT --to-destination %s", b.proto, affinity, b.proto, e.Address),
	}
	return chain
}

// external sends NodePort, load balancer and external addresses on.
func (b *builder) external() {
	p := b.port
	if p.NodePort == 0 && len(p.ExternalIPs) == 0 && len(p.LoadBalancerIPs) == 0 {
		return
	}
	nodePort := fmt.Sprintf("-p %s -m %s --dport %d", b.proto, b.proto, p.NodePort)
	if len(b.all) == 0 {
		if p.NodePort != 0 {
			b.share(filterTable, externalChain, "-m addrtype --dst-type LOCAL "+nodePort+" "+comment(b.name+" has no endpoints")+" "+b.reject())
		}
		for _, ip := range append(p.ExternalIPs, p.LoadBalancerIPs...) {
			b.share(filterTable, externalChain, b.match(ip)+" "+comment(b.name+" has no endpoints")+" "+b.reject())
		}
		return
	}
	if p.NodePort != 0 {
		b.share(natTable, nodePortsChain, nodePort+" "+comment(b.name)+" -j "+b.ext)
	}
	for _, ip := range p.ExternalIPs {
		b.share(natTable, servicesChain, b.match(ip)+" "+comment(b.name+" external IP")+" -j "+b.ext)
	}
	for _, ip := range p.LoadBalancerIPs {
		if len(p.SourceRanges) == 0 {
			b.share(natTable, servicesChain, b.match(ip)+" "+comment(b.name+" loadbalancer IP")+" -j "+b.ext)
		}
		for _, source := range p.SourceRanges {
			b.share(natTable, servicesChain, "-s "+source.String()+" "+b.match(ip)+" "+comment(b.name+" loadbalancer IP")+" -j "+b.ext)
		}
	}
	b.extChain()
}

func (b *builder) extChain() {
	if !b.port.ExternalLocal {
		b.endpointChain(b.svc, b.all)
		b.out.chains[b.ext] = []string{"-j " + markChain, "-j " + b.svc}
		return
	}
	b.endpointChain(b.svc, b.all)
	var rules []string
	if b.config.ClusterCIDR.IsValid() { // pods reach it as they reach the cluster IP
		rules = append(rules, "-s "+b.config.ClusterCIDR.String()+" -j "+b.svc)
	}
	rules = append(rules, "-m addrtype --src-type LOCAL -j "+markChain, "-m addrtype --src-type LOCAL -j "+b.svc)
	if len(b.local) > 0 { // without, the packet goes on unchanged and is dropped
		b.endpointChain(b.svl, b.local)
		rules = append(rules, "-j "+b.svl)
	} else {
		b.share(filterTable, externalChain, fmt.Sprintf("-m addrtype --dst-type LOCAL -p %s -m %s --dport %d %s -j DROP", b.proto, b.proto, b.port.NodePort, comment(b.name+" has no local endpoints")))
	}
	b.out.chains[b.ext] = rules
}

// base are the rules that do not depend on Services.
func (c Config) base(localPods netip.Prefix) map[string]map[string][]string {
	mark := c.mark()
	nodePorts := []string{"-m addrtype --dst-type LOCAL ! -d 127.0.0.0/8 " + comment("NodePorts; this is the last rule") + " -j " + nodePortsChain}
	if len(c.NodePortAddresses) > 0 {
		nodePorts = nil
		for _, prefix := range c.NodePortAddresses {
			nodePorts = append(nodePorts, "-d "+prefix.String()+" -m addrtype --dst-type LOCAL "+comment("NodePorts; this is the last rule")+" -j "+nodePortsChain)
		}
	}
	var pods []string
	if c.ClusterCIDR.IsValid() {
		// Pods speak to the world with the node's address, and what comes from outside
		// for another node's pods comes back this way.
		pods = append(pods, "-s "+c.ClusterCIDR.String()+" -d "+c.ClusterCIDR.String()+" -j RETURN", "-s "+c.ClusterCIDR.String()+" -d 224.0.0.0/4 -j RETURN", "-s "+c.ClusterCIDR.String()+" -j MASQUERADE --random-fully")
		if localPods.IsValid() {
			pods = append(pods, "-d "+localPods.String()+" -j RETURN", "-d "+c.ClusterCIDR.String()+" -j MASQUERADE --random-fully")
		}
	}
	return map[string]map[string][]string{
		natTable: {
			servicesChain:  nodePorts,
			nodePortsChain: nil,
			markChain:      {"-j MARK --set-xmark " + mark + "/" + mark},
			postroutingChain: {
				"-m mark ! --mark " + mark + "/" + mark + " -j RETURN",
				"-j MARK --set-xmark " + mark + "/0x0",
				comment("kubernetes service traffic requiring SNAT") + " -j MASQUERADE --random-fully",
			},
			podsChain: pods,
		},
		filterTable: {
			servicesChain: nil,
			externalChain: nil,
			forwardChain: {
				"-m conntrack --ctstate INVALID -j DROP",
				"-m mark --mark " + mark + "/" + mark + " -j ACCEPT",
				"-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
			},
		},
	}
}

// jump is a rule in a built-in chain that leads to one of ours.
type jump struct{ table, from, match, to string }

func jumps() []jump {
	fresh := "-m conntrack --ctstate NEW"
	return []jump{
		{natTable, "PREROUTING", "", servicesChain},
		{natTable, "OUTPUT", "", servicesChain},
		{natTable, "POSTROUTING", "", podsChain},
		{natTable, "POSTROUTING", "", postroutingChain},
		{filterTable, "INPUT", fresh, servicesChain},
		{filterTable, "FORWARD", fresh, servicesChain},
		{filterTable, "OUTPUT", fresh, servicesChain},
		{filterTable, "INPUT", fresh, externalChain},
		{filterTable, "FORWARD", fresh, externalChain},
		{filterTable, "FORWARD", "", forwardChain},
	}
}

func (j jump) rule() string {
	return strings.TrimSpace(j.match + " " + comment("sampan") + " -j " + j.to)
}

// owned says whether a chain is ours to remove.
func owned(chain string) bool {
	for _, prefix := range []string{"KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-SEP-"} {
		if strings.HasPrefix(chain, prefix) {
			return true
		}
	}
	switch chain {
	case servicesChain, externalChain, nodePortsChain, postroutingChain, markChain, forwardChain, podsChain:
		return true
	}
	return false
}
