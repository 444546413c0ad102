package network

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// LoopbackUp brings up the loopback interface of the network namespace that the
// calling thread is in.
func LoopbackUp() error {
	link, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("finding the loopback interface: %w", err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("bringing up the loopback interface: %w", err)
	}
	return nil
}
