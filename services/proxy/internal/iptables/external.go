package iptables

// external sends NodePort, load balancer and external addresses on. Where nothing
// may answer, they are refused or dropped, lest a packet goes on unchanged.
func (b *builder) external() {
	p := b.port
	if p.NodePort == 0 && len(p.ExternalIPs) == 0 && len(p.LoadBalancerIPs) == 0 {
		return
	}
	if len(b.all) == 0 {
		b.refuse(" has no endpoints", b.reject())
		return
	}
	if p.ExternalLocal && len(b.local) == 0 {
		b.refuse(" has no local endpoints", "-j DROP")
	}
	if p.NodePort != 0 {
		b.share(natTable, nodePortsChain, b.dport(p.NodePort)+" "+comment(b.name)+" -j "+b.ext)
	}
	for _, ip := range p.ExternalIPs {
		b.share(natTable, servicesChain, b.match(ip)+" "+comment(b.name+" external IP")+" -j "+b.ext)
	}
	b.loadBalancer()
	b.extChain()
}

// refuse answers packets to the external addresses that were not rewritten.
func (b *builder) refuse(why, verdict string) {
	p := b.port
	text := " " + comment(b.name+why) + " " + verdict
	if p.NodePort != 0 {
		b.share(filterTable, externalChain, "-m addrtype --dst-type LOCAL "+b.dport(p.NodePort)+text)
	}
	for _, ip := range append(p.ExternalIPs[:len(p.ExternalIPs):len(p.ExternalIPs)], p.LoadBalancerIPs...) {
		b.share(filterTable, externalChain, b.match(ip)+text)
	}
}

// loadBalancer lets in who may use the load balancer's addresses; from others the
// packet stays as it is, and is dropped.
func (b *builder) loadBalancer() {
	p := b.port
	to := b.ext
	if len(p.SourceRanges) > 0 && len(p.LoadBalancerIPs) > 0 {
		to = chainHash("KUBE-FW-", b.name, b.proto)
		allowed := chain{name: to}
		for _, source := range p.SourceRanges {
			allowed.rules = append(allowed.rules, "-s "+source.String()+" -j "+b.ext)
		}
		b.out.chains = append(b.out.chains, allowed)
	}
	for _, ip := range p.LoadBalancerIPs {
		b.share(natTable, servicesChain, b.match(ip)+" "+comment(b.name+" loadbalancer IP")+" -j "+to)
		if to != b.ext {
			b.share(filterTable, firewallChain, b.match(ip)+" "+comment(b.name+" traffic not accepted by "+to)+" -j DROP")
		}
	}
}

// extChain is where all external addresses of a port lead to.
func (b *builder) extChain() {
	b.endpointChain(b.svc, b.all)
	ext := chain{name: b.ext}
	if !b.port.ExternalLocal {
		ext.rules = []string{"-j " + markChain, "-j " + b.svc}
		b.out.chains = append(b.out.chains, ext)
		return
	}
	if b.config.ClusterCIDR.IsValid() { // pods reach it as they reach the cluster IP
		ext.rules = append(ext.rules, "-s "+b.config.ClusterCIDR.String()+" -j "+b.svc)
	}
	ext.rules = append(ext.rules, "-m addrtype --src-type LOCAL -j "+markChain, "-m addrtype --src-type LOCAL -j "+b.svc)
	if len(b.local) > 0 {
		b.endpointChain(b.svl, b.local)
		ext.rules = append(ext.rules, "-j "+b.svl)
	}
	b.out.chains = append(b.out.chains, ext)
}
