package iptables

import (
	"net/netip"
	"strings"
)

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
	firewallChain    = "KUBE-PROXY-FIREWALL"
	hairpinChain     = "SAMPAN-HAIRPIN"
	podsChain        = "SAMPAN-PODS" // pods to the outside and back
	blockPrefix      = "SAMPAN-IP-"
)

func tables() []string { return []string{natTable, filterTable} }

func (c Config) mark() string {
	const digits = "0123456789abcdef"
	return "0x" + string(digits[1<<(c.MasqueradeBit%4)]) + strings.Repeat("0", c.MasqueradeBit/4)
}

// base are the rules that do not depend on Services, in the order of their
// tables' chains. Lines of Services come before them in their chains.
func (c Config) base(localPods netip.Prefix) map[string][]chain {
	mark := c.mark() + "/" + c.mark()
	return map[string][]chain{
		natTable: {
			{servicesChain, c.nodePorts()},
			{nodePortsChain, nil},
			{hairpinChain, nil},
			{markChain, []string{"-j MARK --set-xmark " + mark}},
			{postroutingChain, []string{
				"-m mark ! --mark " + mark + " -j RETURN",
				"-j MARK --set-xmark " + c.mark() + "/0x0",
				comment("kubernetes service traffic requiring SNAT") + " -j MASQUERADE --random-fully",
			}},
			{podsChain, c.pods(localPods)},
		},
		filterTable: {
			{servicesChain, c.unknown()},
			{externalChain, nil},
			{firewallChain, nil},
			{forwardChain, []string{
				"-m conntrack --ctstate INVALID -j DROP",
				"-m mark --mark " + mark + " -j ACCEPT",
				"-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
			}},
		},
	}
}

// nodePorts are the ways to NodePorts. Loopback is never one: what listens
// there must not be reachable from other machines (CVE-2020-8558).
func (c Config) nodePorts() []string {
	last := comment("NodePorts; this must be the last rule") + " -j " + nodePortsChain
	if len(c.NodePortAddresses) == 0 {
		return []string{"! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL " + last}
	}
	var rules []string
	for _, prefix := range c.NodePortAddresses {
		if !prefix.Addr().IsLoopback() {
			rules = append(rules, "-d "+prefix.String()+" -m addrtype --dst-type LOCAL "+last)
		}
	}
	return rules
}

// pods speak to the world with the node's address, and what comes from outside
// for another node's pods goes back the way it came.
func (c Config) pods(local netip.Prefix) []string {
	if !c.ClusterCIDR.IsValid() {
		return nil
	}
	all := c.ClusterCIDR.String()
	rules := []string{
		"-s " + all + " -d " + all + " -j RETURN",
		"-s " + all + " -d 224.0.0.0/4 -j RETURN",
		"-s " + all + " -j MASQUERADE --random-fully",
	}
	if local.IsValid() {
		rules = append(rules, "-d "+local.String()+" -j RETURN", "-d "+all+" -j MASQUERADE --random-fully")
	}
	return rules
}

// unknown refuses cluster IPs that are no Service's.
func (c Config) unknown() []string {
	if !c.ServiceCIDR.IsValid() {
		return nil
	}
	var rules []string
	if c.DNS.IsValid() {
		rules = append(rules, "-d "+single(c.DNS)+" "+comment("cluster DNS of this node")+" -j RETURN")
	}
	text := "-d " + c.ServiceCIDR.String() + " "
	return append(rules,
		text+"-p tcp -m tcp "+comment("no such Service")+" -j REJECT --reject-with tcp-reset",
		text+comment("no such Service")+" -j REJECT")
}

// jump is a rule in a built-in chain that leads to one of ours.
type jump struct{ table, from, match, to string }

// jumps are in the order in which packets meet them. Rules of network policies
// would follow those of Services in the filter table, where destinations are
// already those of endpoints.
func jumps() []jump {
	fresh := "-m conntrack --ctstate NEW"
	return []jump{
		{natTable, "PREROUTING", "", servicesChain},
		{natTable, "OUTPUT", "", servicesChain},
		{natTable, "POSTROUTING", "", hairpinChain},
		{natTable, "POSTROUTING", "", podsChain},
		{natTable, "POSTROUTING", "", postroutingChain},
		{filterTable, "INPUT", fresh, firewallChain},
		{filterTable, "FORWARD", fresh, firewallChain},
		{filterTable, "OUTPUT", fresh, firewallChain},
		{filterTable, "INPUT", fresh, servicesChain},
		{filterTable, "FORWARD", fresh, servicesChain},
		{filterTable, "OUTPUT", fresh, servicesChain},
		{filterTable, "INPUT", fresh, externalChain},
		{filterTable, "FORWARD", fresh, externalChain},
		{filterTable, "OUTPUT", fresh, externalChain},
		{filterTable, "FORWARD", "", forwardChain},
	}
}

func (j jump) rule() string {
	return strings.TrimSpace(j.match + " " + comment("sampan") + " -j " + j.to)
}

// owned says whether a chain is ours to remove.
func owned(chain string) bool {
	for _, prefix := range []string{"KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-SEP-", "KUBE-FW-", blockPrefix} {
		if strings.HasPrefix(chain, prefix) {
			return true
		}
	}
	switch chain {
	case servicesChain, externalChain, nodePortsChain, postroutingChain, markChain, forwardChain, firewallChain, hairpinChain, podsChain:
		return true
	}
	return false
}
