package routes

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
)

const (
	vxlanDevice   = "sampan-vxlan"
	vxlanID       = 88
	vxlanPort     = 8472
	vxlanOverhead = 50 // bytes that each packet grows by
)

// tunnel is this node's end of the VXLAN, made when the first route needs it.
type tunnel struct {
	self  Node
	link  netlink.Link
	peers map[netip.Addr]bool
}

// to makes a node reachable and returns the device.
func (t *tunnel) to(node netip.Addr, underlay int) (netlink.Link, error) {
	if t.link == nil {
		link, err := t.ensure(underlay)
		if err != nil {
			return nil, err
		}
		t.link = link
	}
	t.peers[node] = true
	return t.link, t.setPeer(node)
}

// hardware is the address of a node's end of the VXLAN, made from the node's
// own so that nobody has to be asked for it.
func hardware(ip netip.Addr) net.HardwareAddr {
	b := ip.As4()
	return net.HardwareAddr{0x0a, 0x58, b[0], b[1], b[2], b[3]}
}

// ensure makes the device. Its address is the first of the node's pods, which no
// pod has: this node speaks with it to pods elsewhere, and their answers take
// the same way back.
func (t *tunnel) ensure(underlay int) (netlink.Link, error) {
	if old, err := netlink.LinkByName(vxlanDevice); err == nil {
		if vxlan, ok := old.(*netlink.Vxlan); !ok || !vxlan.SrcAddr.Equal(t.self.Address.AsSlice()) {
			if err := netlink.LinkDel(old); err != nil { // the node's address changed
				return nil, fmt.Errorf("replacing device %s: %w", vxlanDevice, err)
			}
		}
	}
	link, err := ensureDevice(vxlanDevice, func() error {
		attributes := netlink.NewLinkAttrs()
		attributes.Name, attributes.HardwareAddr = vxlanDevice, hardware(t.self.Address)
		if below, err := netlink.LinkByIndex(underlay); err == nil {
			attributes.MTU = below.Attrs().MTU - vxlanOverhead
		}
		return netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: attributes, VxlanId: vxlanID, Port: vxlanPort, SrcAddr: t.self.Address.AsSlice(), Learning: false})
	})
	if err != nil || len(t.self.Pods) == 0 {
		return link, err
	}
	return link, setAddresses(link, []netip.Addr{t.self.Pods[0].Addr()}, netlink.SCOPE_UNIVERSE)
}

// setPeer tells the VXLAN where a node's end is.
func (t *tunnel) setPeer(node netip.Addr) error {
	index := t.link.Attrs().Index
	forward := &netlink.Neigh{LinkIndex: index, Family: syscall.AF_BRIDGE, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF, IP: node.AsSlice(), HardwareAddr: hardware(node)}
	if err := netlink.NeighSet(forward); err != nil {
		return fmt.Errorf("forwarding to %s: %w", node, err)
	}
	resolve := &netlink.Neigh{LinkIndex: index, Family: netlink.FAMILY_V4, State: netlink.NUD_PERMANENT, IP: node.AsSlice(), HardwareAddr: hardware(node)}
	if err := netlink.NeighSet(resolve); err != nil {
		return fmt.Errorf("resolving %s: %w", node, err)
	}
	return nil
}

// prune removes nodes that are gone, and the device when no node needs it.
func (t *tunnel) prune() error {
	link, err := netlink.LinkByName(vxlanDevice)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("finding device %s: %w", vxlanDevice, err)
	}
	if len(t.peers) == 0 {
		return netlink.LinkDel(link)
	}
	var problems []error
	for _, family := range []int{syscall.AF_BRIDGE, netlink.FAMILY_V4} {
		have, err := netlink.NeighList(link.Attrs().Index, family)
		if err != nil {
			return fmt.Errorf("listing nodes of %s: %w", vxlanDevice, err)
		}
		for _, peer := range have {
			ip, ok := netip.AddrFromSlice(peer.IP)
			if !ok || t.peers[ip.Unmap()] || peer.State&netlink.NUD_PERMANENT == 0 {
				continue
			}
			if err := netlink.NeighDel(&peer); err != nil && !errors.Is(err, syscall.ENOENT) {
				problems = append(problems, fmt.Errorf("forgetting node %s: %w", ip, err))
			}
		}
	}
	return errors.Join(problems...)
}
