// Package routes sends traffic for other nodes' pods to those nodes, and keeps
// traffic to Services on this one.
package routes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
)

const (
	// Protocol marks the routes of this package; "ip route" shows the number.
	Protocol netlink.RouteProtocol = 88
	// serviceDevice is the local device that the Service range is routed to.
	serviceDevice = "sampan-svc"
	vxlanDevice   = "sampan-vxlan"
	vxlanID       = 88
	vxlanPort     = 8472
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

// Node is another node.
type Node struct {
	Name    string
	Address netip.Addr
	Pods    []netip.Prefix
}

// Service keeps the Service range on this host: packets to a Service that does
// not exist reach a device without a peer and never leave. Addresses are given
// to the device too (cluster DNS).
func Service(serviceRange netip.Prefix, source netip.Addr, addresses []netip.Addr) error {
	link, err := ensureServiceDevice()
	if err != nil {
		return err
	}
	if err := setAddresses(link, addresses); err != nil {
		return err
	}
	if !serviceRange.IsValid() {
		return nil
	}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(serviceRange), Protocol: Protocol, Scope: netlink.SCOPE_LINK}
	if source.IsValid() {
		route.Src = source.AsSlice()
	}
	if err := netlink.RouteReplace(route); err != nil {
		return fmt.Errorf("routing %s to %s: %w", serviceRange, serviceDevice, err)
	}
	return nil
}

// ensureServiceDevice makes a dummy device, or a bridge without ports where the
// kernel has no dummy.
func ensureServiceDevice() (netlink.Link, error) {
	link, err := netlink.LinkByName(serviceDevice)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		attributes := netlink.NewLinkAttrs()
		attributes.Name = serviceDevice
		if err = netlink.LinkAdd(&netlink.Dummy{LinkAttrs: attributes}); errors.Is(err, syscall.EOPNOTSUPP) {
			err = netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attributes})
		}
		if err != nil {
			return nil, fmt.Errorf("making device %s: %w", serviceDevice, err)
		}
		link, err = netlink.LinkByName(serviceDevice)
	}
	if err != nil {
		return nil, fmt.Errorf("finding device %s: %w", serviceDevice, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("starting device %s: %w", serviceDevice, err)
	}
	return link, nil
}

func setAddresses(link netlink.Link, want []netip.Addr) error {
	have, err := netlink.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("listing addresses of %s: %w", link.Attrs().Name, err)
	}
	for _, address := range have {
		ip, _ := netip.AddrFromSlice(address.IP)
		if !slices.Contains(want, ip.Unmap()) {
			if err := netlink.AddrDel(link, &address); err != nil {
				return fmt.Errorf("removing address %s: %w", ip, err)
			}
		}
	}
	for _, ip := range want {
		address := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(ip, ip.BitLen()))}
		if err := netlink.AddrReplace(link, address); err != nil {
			return fmt.Errorf("adding address %s: %w", ip, err)
		}
	}
	return nil
}

func ipNet(prefix netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
}

// Reconcile makes the routes to the pods of other nodes, and removes those of
// this package that are not wanted any more.
func Reconcile(_ context.Context, mode Mode, self netip.Addr, nodes []Node) error {
	if mode == None {
		nodes = nil
	}
	wanted := map[string]*netlink.Route{}
	var problems []error
	for _, node := range nodes {
		for _, pods := range node.Pods {
			route, err := routeTo(mode, self, node, pods)
			if err != nil {
				problems = append(problems, fmt.Errorf("routing to pods of %s: %w", node.Name, err))
				continue
			}
			wanted[route.Dst.String()] = route
		}
	}
	have, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: Protocol}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return fmt.Errorf("listing routes: %w", err)
	}
	service, _ := netlink.LinkByName(serviceDevice)
	for _, route := range have {
		if service != nil && route.LinkIndex == service.Attrs().Index {
			continue
		}
		want := wanted[route.Dst.String()]
		if want == nil {
			if err := netlink.RouteDel(&route); err != nil && !errors.Is(err, syscall.ESRCH) {
				problems = append(problems, fmt.Errorf("removing route to %s: %w", route.Dst, err))
			}
			continue
		}
		if want.Gw.Equal(route.Gw) && want.LinkIndex == route.LinkIndex {
			delete(wanted, route.Dst.String())
		}
	}
	for _, route := range wanted {
		if err := netlink.RouteReplace(route); err != nil {
			problems = append(problems, fmt.Errorf("adding route to %s: %w", route.Dst, err))
		}
	}
	return errors.Join(problems...)
}

// routeTo is the way to a node's pods: directly where the node is a neighbour,
// through the VXLAN otherwise.
func routeTo(mode Mode, self netip.Addr, node Node, pods netip.Prefix) (*netlink.Route, error) {
	route := &netlink.Route{Dst: ipNet(pods.Masked()), Gw: node.Address.AsSlice(), Protocol: Protocol}
	found, err := netlink.RouteGet(node.Address.AsSlice())
	if err != nil {
		return nil, fmt.Errorf("finding %s: %w", node.Address, err)
	}
	neighbour := len(found) > 0 && found[0].Gw == nil
	if mode == Host || (mode == Auto && neighbour) {
		if !neighbour {
			return nil, fmt.Errorf("%s is not on this node's link; --pod-network=auto or vxlan reaches it", node.Address)
		}
		route.LinkIndex = found[0].LinkIndex
		return route, nil
	}
	link, err := ensureVXLAN(self)
	if err != nil {
		return nil, err
	}
	if err := setPeer(link, node.Address); err != nil {
		return nil, err
	}
	route.LinkIndex = link.Attrs().Index
	route.SetFlag(netlink.FLAG_ONLINK)
	return route, nil
}

// hardware is the address of a node's end of the VXLAN, made from the node's
// own so that nobody has to be asked for it.
func hardware(ip netip.Addr) net.HardwareAddr {
	b := ip.As4()
	return net.HardwareAddr{0x0a, 0x58, b[0], b[1], b[2], b[3]}
}

func ensureVXLAN(self netip.Addr) (netlink.Link, error) {
	link, err := netlink.LinkByName(vxlanDevice)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		attributes := netlink.NewLinkAttrs()
		attributes.Name, attributes.HardwareAddr = vxlanDevice, hardware(self)
		if err := netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: attributes, VxlanId: vxlanID, Port: vxlanPort, SrcAddr: self.AsSlice(), Learning: false}); err != nil {
			return nil, fmt.Errorf("making device %s: %w", vxlanDevice, err)
		}
		link, err = netlink.LinkByName(vxlanDevice)
	}
	if err != nil {
		return nil, fmt.Errorf("finding device %s: %w", vxlanDevice, err)
	}
	return link, netlink.LinkSetUp(link)
}

// setPeer tells the VXLAN where a node's end is.
func setPeer(link netlink.Link, node netip.Addr) error {
	forward := &netlink.Neigh{LinkIndex: link.Attrs().Index, Family: syscall.AF_BRIDGE, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF, IP: node.AsSlice(), HardwareAddr: hardware(node)}
	if err := netlink.NeighSet(forward); err != nil {
		return fmt.Errorf("forwarding to %s: %w", node, err)
	}
	resolve := &netlink.Neigh{LinkIndex: link.Attrs().Index, Family: netlink.FAMILY_V4, State: netlink.NUD_PERMANENT, IP: node.AsSlice(), HardwareAddr: hardware(node)}
	if err := netlink.NeighSet(resolve); err != nil {
		return fmt.Errorf("resolving %s: %w", node, err)
	}
	return nil
}

// Sysctls sets what forwarding needs in this network namespace.
func Sysctls() error {
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return fmt.Errorf("enabling IP forwarding: %w", err)
	}
	// Bridged pod traffic must pass iptables, or a pod cannot reach a pod of its own
	// node through a Service. Kernels without br_netfilter lack the file.
	err := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-iptables", []byte("1"), 0)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("passing bridged packets to iptables: %w", err)
	}
	return nil
}

// Cleanup removes the devices and routes of this package.
func Cleanup(ctx context.Context) error {
	problems := []error{Reconcile(ctx, None, netip.Addr{}, nil)}
	for _, name := range []string{serviceDevice, vxlanDevice} {
		link, err := netlink.LinkByName(name)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			continue
		}
		if err == nil {
			err = netlink.LinkDel(link)
		}
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}
