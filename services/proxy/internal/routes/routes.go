// Package routes sends traffic for other nodes' pods to those nodes, and keeps
// traffic to Services on this one. It owns the devices sampan-svc and
// sampan-vxlan, and the routes with its protocol number; others are left alone.
package routes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
)

const (
	// Protocol marks the routes of this package; "ip route" shows the number.
	Protocol netlink.RouteProtocol = 88
	// serviceDevice is the local device that the Service range is routed to.
	serviceDevice = "sampan-svc"
)

// Mode is how pods of other nodes are reached.
type Mode string

// The modes. Auto takes host routes to nodes on the same link and VXLAN to the
// others.
const (
	Auto  Mode = "auto"
	Host  Mode = "routes"
	VXLAN Mode = "vxlan"
	None  Mode = "none"
)

// ParseMode reads a mode's name.
func ParseMode(text string) (Mode, error) {
	if mode := Mode(text); slices.Contains([]Mode{Auto, Host, VXLAN, None}, mode) {
		return mode, nil
	}
	return "", fmt.Errorf("pod network %q is none of auto, routes, vxlan, none", text)
}

// Node is a node with its pods.
type Node struct {
	Name    string
	Address netip.Addr // invalid while it is not known
	Pods    []netip.Prefix
}

func ipNet(prefix netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
}

// Network is the pod network as one node sees it.
type Network struct {
	Mode Mode
	Self Node
	// Pods is the range of all pods. A node that claims others gets no route.
	// Invalid: nodes are believed.
	Pods netip.Prefix
}

// Reconcile makes the routes to the pods of other nodes, and removes those of
// this package that are not wanted any more. A node that cannot be reached does
// not hold up the others.
func (n Network) Reconcile(_ context.Context, others []Node) error {
	wanted, tunnel, problem := n.routes(others)
	problems := []error{problem}
	have, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: Protocol}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return fmt.Errorf("listing routes: %w", err)
	}
	service := 0
	if link, err := netlink.LinkByName(serviceDevice); err == nil {
		service = link.Attrs().Index
	}
	for _, route := range have {
		if route.LinkIndex == service {
			continue
		}
		want := wanted[route.Dst.String()]
		if want == nil {
			if err := netlink.RouteDel(&route); err != nil && !errors.Is(err, syscall.ESRCH) {
				problems = append(problems, fmt.Errorf("removing route to %s: %w", route.Dst, err))
			}
		} else if want.Gw.Equal(route.Gw) && want.LinkIndex == route.LinkIndex {
			delete(wanted, route.Dst.String())
		}
	}
	for _, route := range wanted {
		if err := netlink.RouteReplace(route); err != nil {
			problems = append(problems, fmt.Errorf("adding route to %s: %w", route.Dst, err))
		}
	}
	return errors.Join(append(problems, tunnel.prune())...)
}

// routes are the wanted routes by destination. Of two nodes that claim the same
// pods the first by name gets them.
func (n Network) routes(others []Node) (map[string]*netlink.Route, *tunnel, error) {
	wanted, tunnel := map[string]*netlink.Route{}, &tunnel{self: n.Self, peers: map[netip.Addr]bool{}}
	if n.Mode == None {
		return wanted, tunnel, nil
	}
	var problems []error
	taken := slices.Clone(n.Self.Pods)
	for _, node := range slices.SortedFunc(slices.Values(others), func(a, b Node) int { return cmp.Compare(a.Name, b.Name) }) {
		for _, pods := range node.Pods {
			if slices.ContainsFunc(taken, pods.Overlaps) || !n.plausible(pods) {
				problems = append(problems, fmt.Errorf("pods %s of node %s: the range is another node's, or not of the cluster's pods", pods, node.Name))
				continue
			}
			taken = append(taken, pods)
			route, err := n.routeTo(tunnel, node, pods)
			if err != nil {
				problems = append(problems, fmt.Errorf("routing to pods of node %s: %w", node.Name, err))
			} else if route != nil {
				wanted[route.Dst.String()] = route
			}
		}
	}
	return wanted, tunnel, errors.Join(problems...)
}

func (n Network) plausible(pods netip.Prefix) bool {
	return !n.Pods.IsValid() || (n.Pods.Contains(pods.Addr()) && n.Pods.Bits() <= pods.Bits())
}

// routeTo is the way to a node's pods: directly where the node is a neighbour,
// through the VXLAN otherwise. It is nil while this node's own address is not
// known, which the VXLAN needs.
func (n Network) routeTo(tunnel *tunnel, node Node, pods netip.Prefix) (*netlink.Route, error) {
	route := &netlink.Route{Dst: ipNet(pods), Gw: node.Address.AsSlice(), Protocol: Protocol}
	found, err := netlink.RouteGet(node.Address.AsSlice())
	if err != nil || len(found) == 0 {
		return nil, fmt.Errorf("finding %s: %w", node.Address, err)
	}
	neighbour := found[0].Gw == nil
	if n.Mode == Host || (n.Mode == Auto && neighbour) {
		if !neighbour {
			return nil, fmt.Errorf("%s is not on this node's link; --pod-network=auto or vxlan reaches it", node.Address)
		}
		route.LinkIndex = found[0].LinkIndex
		return route, nil
	}
	if !n.Self.Address.IsValid() {
		return nil, nil
	}
	link, err := tunnel.to(node.Address, found[0].LinkIndex)
	if err != nil {
		return nil, err
	}
	route.LinkIndex = link.Attrs().Index
	route.SetFlag(netlink.FLAG_ONLINK)
	return route, nil
}

// Sysctls sets what forwarding needs in this network namespace. What is set
// already is left alone, for a container may not write there.
func Sysctls() error {
	if err := enable("/proc/sys/net/ipv4/ip_forward"); err != nil {
		return fmt.Errorf("enabling IP forwarding: %w", err)
	}
	// Bridged pod traffic must pass iptables, or a pod cannot reach a pod of its own
	// node through a Service. Kernels without br_netfilter lack the file.
	err := enable("/proc/sys/net/bridge/bridge-nf-call-iptables")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("passing bridged packets to iptables: %w", err)
	}
	return nil
}

// enable sets a switch that is off.
func enable(path string) error {
	if have, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(have)) == "1" {
		return nil
	}
	return os.WriteFile(path, []byte("1"), 0)
}

// Cleanup removes the devices and routes of this package.
func Cleanup(ctx context.Context) error {
	problems := []error{Network{Mode: None}.Reconcile(ctx, nil)}
	link, err := netlink.LinkByName(serviceDevice)
	if err == nil {
		problems = append(problems, netlink.LinkDel(link))
	} else if !errors.As(err, &netlink.LinkNotFoundError{}) {
		problems = append(problems, fmt.Errorf("finding device %s: %w", serviceDevice, err))
	}
	return errors.Join(problems...)
}
