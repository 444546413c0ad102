package routes

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
)

// Service keeps the Service range on this host: packets to a Service that does
// not exist reach a device without a peer and never leave. Addresses are given
// to the device too (cluster DNS). Source is what this host says it is when it
// calls Services; when it is not known yet, the route stays as it is, and a new
// one has the address with which this host speaks to the world.
func Service(serviceRange netip.Prefix, source netip.Addr, addresses []netip.Addr) error {
	link, err := ensureServiceDevice()
	if err != nil {
		return err
	}
	if err := setAddresses(link, addresses, netlink.SCOPE_HOST); err != nil {
		return err
	}
	if !serviceRange.IsValid() {
		return nil
	}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(serviceRange), Protocol: Protocol, Scope: netlink.SCOPE_LINK}
	have, err := netlink.RouteListFiltered(netlink.FAMILY_V4, route, netlink.RT_FILTER_DST|netlink.RT_FILTER_OIF)
	if err != nil {
		return fmt.Errorf("listing routes to %s: %w", serviceRange, err)
	}
	if !source.IsValid() {
		if len(have) > 0 {
			return nil
		}
		source = worldAddress()
	}
	if source.IsValid() {
		route.Src = source.AsSlice()
	}
	if len(have) == 1 && have[0].Src.Equal(route.Src) {
		return nil
	}
	if err := netlink.RouteReplace(route); err != nil {
		return fmt.Errorf("routing %s to %s: %w", serviceRange, serviceDevice, err)
	}
	return nil
}

// worldAddress is the source of packets to an address that is nobody's (RFC
// 5737), invalid when there is no way to it.
func worldAddress() netip.Addr {
	found, err := netlink.RouteGet(netip.MustParseAddr("192.0.2.1").AsSlice())
	if err != nil || len(found) == 0 {
		return netip.Addr{}
	}
	ip, _ := netip.AddrFromSlice(found[0].Src)
	return ip.Unmap()
}

// ensureServiceDevice makes a dummy device, or a bridge without ports where the
// kernel has no dummy.
func ensureServiceDevice() (netlink.Link, error) {
	return ensureDevice(serviceDevice, func() error {
		attributes := netlink.NewLinkAttrs()
		attributes.Name = serviceDevice
		err := netlink.LinkAdd(&netlink.Dummy{LinkAttrs: attributes})
		if errors.Is(err, syscall.EOPNOTSUPP) {
			err = netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attributes})
		}
		return err
	})
}

// ensureDevice finds a device, or makes it, and starts it.
func ensureDevice(name string, create func() error) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		if err := create(); err != nil {
			return nil, fmt.Errorf("making device %s: %w", name, err)
		}
		link, err = netlink.LinkByName(name)
	}
	if err != nil {
		return nil, fmt.Errorf("finding device %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("starting device %s: %w", name, err)
	}
	return link, nil
}

// setAddresses gives a device exactly these addresses. With scope host they are
// answered, but never chosen as the source of a packet.
func setAddresses(link netlink.Link, want []netip.Addr, scope netlink.Scope) error {
	have, err := netlink.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("listing addresses of %s: %w", link.Attrs().Name, err)
	}
	missing := slices.Clone(want)
	for _, address := range have {
		ip, _ := netip.AddrFromSlice(address.IP)
		if at := slices.Index(missing, ip.Unmap()); at >= 0 && address.Scope == int(scope) {
			missing = slices.Delete(missing, at, at+1)
			continue
		}
		if err := netlink.AddrDel(link, &address); err != nil {
			return fmt.Errorf("removing address %s: %w", ip, err)
		}
	}
	for _, ip := range missing {
		address := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(ip, ip.BitLen())), Scope: int(scope)}
		if err := netlink.AddrReplace(link, address); err != nil {
			return fmt.Errorf("adding address %s: %w", ip, err)
		}
	}
	return nil
}
