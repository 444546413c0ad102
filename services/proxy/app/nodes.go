package app

import (
	"context"
	"net"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/proxy/internal/progress"
	"github.com/sampan-io/sampan/services/proxy/internal/routes"
	"github.com/sampan-io/sampan/services/proxy/internal/state"
)

// meetNodes brings pod routes up to date with the nodes, and takes what concerns
// this node: its address, its pods and its zone. When the zone changed, all
// Services change, and are added to changed.
func (k *keeper) meetNodes(ctx context.Context, changed map[string]time.Time) error {
	var others []routes.Node
	self := routes.Node{Name: k.options.NodeName}
	for _, node := range k.state.Nodes() {
		address, known := internalIP(node)
		pods := podRanges(node)
		if node.Name == k.options.NodeName {
			self.Address, self.Pods = address, pods
			if zone := node.Labels[corev1.LabelTopologyZone]; zone != k.zone {
				k.zone = zone
				k.all(changed)
			}
		} else if known {
			others = append(others, routes.Node{Name: node.Name, Address: address, Pods: pods})
		}
	}
	if len(self.Pods) > 0 {
		k.syncer.SetLocalPods(self.Pods[0])
	}
	if err := k.options.prepareDevice(self.Address); err != nil {
		return err
	}
	network := routes.Network{Mode: k.options.parsed.podNetwork, Self: self, Pods: k.options.parsed.clusterCIDR}
	return network.Reconcile(ctx, others)
}

// peers are the proxies of the other nodes, which listen where this one does.
func (o *Options) peers(known *state.State) []progress.Peer {
	_, port, err := net.SplitHostPort(o.HealthzBindAddress)
	if err != nil {
		return nil
	}
	var out []progress.Peer
	for _, node := range known.Nodes() {
		if address, has := internalIP(node); has && node.Name != o.NodeName {
			out = append(out, progress.Peer{Node: node.Name, Address: net.JoinHostPort(address.String(), port)})
		}
	}
	return out
}

// all adds every Service to changed.
func (k *keeper) all(changed map[string]time.Time) {
	for _, service := range k.state.Services() {
		key := service.Namespace + "/" + service.Name
		if _, there := changed[key]; !there {
			changed[key] = time.Time{}
		}
	}
}

func internalIP(node *corev1.Node) (netip.Addr, bool) {
	for _, address := range node.Status.Addresses {
		if ip, err := netip.ParseAddr(address.Address); err == nil && address.Type == corev1.NodeInternalIP && ip.Is4() {
			return ip, true
		}
	}
	return netip.Addr{}, false
}

// podRanges are the node's IPv4 pod ranges.
func podRanges(node *corev1.Node) []netip.Prefix {
	all := node.Spec.PodCIDRs
	if len(all) == 0 {
		all = []string{node.Spec.PodCIDR}
	}
	var out []netip.Prefix
	for _, text := range all {
		if prefix, err := netip.ParsePrefix(text); err == nil && prefix.Addr().Is4() {
			out = append(out, prefix.Masked())
		}
	}
	return out
}
