package host

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/sampan-io/sampan/services/sampan/internal/cluster"
)

// routeProtocol marks the routes that are ours ("ip route" shows the number).
const routeProtocol netlink.RouteProtocol = 89

const forwardSysctl = "/proc/sys/net/ipv4/ip_forward"

// EnsureNetwork makes the bridge, a network namespace for each node and the
// host's way to Services and pods. What exists stays.
func EnsureNetwork(layout cluster.Layout, config cluster.Config) error {
	bridge, err := ensureBridge()
	if err != nil {
		return err
	}
	for i := 1; i <= config.Nodes; i++ {
		if err := ensureNode(bridge, i); err != nil {
			return fmt.Errorf("making network of %s: %w", cluster.NodeName(i), err)
		}
	}
	// The host reaches Services through node 1; pods it reaches the same way, for
	// every node routes to every other's pods.
	for _, cidr := range []string{cluster.ServiceCIDR, cluster.PodCIDR} {
		_, destination, err := net.ParseCIDR(cidr)
		if err != nil {
			return err
		}
		route := &netlink.Route{LinkIndex: bridge.Attrs().Index, Dst: destination, Gw: cluster.NodeAddress(1), Protocol: routeProtocol}
		if err := netlink.RouteReplace(route); err != nil {
			return fmt.Errorf("routing %s to node-1: %w", cidr, err)
		}
	}
	if err := rememberForwarding(layout); err != nil {
		return err
	}
	if err := os.WriteFile(forwardSysctl, []byte("1"), 0); err != nil {
		return fmt.Errorf("enabling IP forwarding: %w", err)
	}
	return ensureRules()
}

func ensureBridge() (netlink.Link, error) {
	link, err := netlink.LinkByName(cluster.Bridge)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		attributes := netlink.NewLinkAttrs()
		attributes.Name = cluster.Bridge
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attributes}); err != nil {
			return nil, fmt.Errorf("making bridge %s: %w", cluster.Bridge, err)
		}
		link, err = netlink.LinkByName(cluster.Bridge)
	}
	if err != nil {
		return nil, fmt.Errorf("finding bridge %s: %w", cluster.Bridge, err)
	}
	address, err := netlink.ParseAddr(cluster.HostAddress + "/24")
	if err != nil {
		return nil, err
	}
	if err := netlink.AddrReplace(link, address); err != nil {
		return nil, fmt.Errorf("giving %s its address: %w", cluster.Bridge, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("starting bridge %s: %w", cluster.Bridge, err)
	}
	return link, nil
}

// ensureNode makes the namespace of node i and its link to the bridge.
func ensureNode(bridge netlink.Link, i int) error {
	if err := ensureNamespace(cluster.NamespacePath(cluster.NodeName(i))); err != nil {
		return err
	}
	handle, err := netns.GetFromPath(cluster.NamespacePath(cluster.NodeName(i)))
	if err != nil {
		return fmt.Errorf("opening network namespace: %w", err)
	}
	defer func() { _ = handle.Close() }()
	inside, err := netlink.NewHandleAt(handle)
	if err != nil {
		return fmt.Errorf("opening netlink in network namespace: %w", err)
	}
	defer inside.Close()
	if _, err := inside.LinkByName("eth0"); err != nil {
		if err := addVeth(bridge, i, handle); err != nil {
			return err
		}
	}
	return configureInside(inside, i)
}

func addVeth(bridge netlink.Link, i int, namespace netns.NsHandle) error {
	attributes := netlink.NewLinkAttrs()
	attributes.Name = fmt.Sprintf("sampan-n%d", i)
	attributes.MasterIndex = bridge.Attrs().Index
	pair := &netlink.Veth{LinkAttrs: attributes, PeerName: "eth0", PeerNamespace: netlink.NsFd(namespace)}
	if err := netlink.LinkAdd(pair); err != nil {
		return fmt.Errorf("making link %s: %w", attributes.Name, err)
	}
	if err := netlink.LinkSetUp(pair); err != nil {
		return fmt.Errorf("starting link %s: %w", attributes.Name, err)
	}
	return nil
}

func configureInside(inside *netlink.Handle, i int) error {
	for _, name := range []string{"lo", "eth0"} {
		link, err := inside.LinkByName(name)
		if err != nil {
			return fmt.Errorf("finding link %s: %w", name, err)
		}
		if name == "eth0" {
			address, err := netlink.ParseAddr(cluster.NodeAddress(i).String() + "/24")
			if err != nil {
				return err
			}
			if err := inside.AddrReplace(link, address); err != nil {
				return fmt.Errorf("giving the node its address: %w", err)
			}
		}
		if err := inside.LinkSetUp(link); err != nil {
			return fmt.Errorf("starting link %s: %w", name, err)
		}
	}
	if err := inside.RouteReplace(&netlink.Route{Gw: net.ParseIP(cluster.HostAddress)}); err != nil {
		return fmt.Errorf("setting the node's default route: %w", err)
	}
	return nil
}

// ensureNamespace pins a new network namespace at path. It is entered with
// setns only; the pin is made in this process's mount namespace, where all
// services see it.
func ensureNamespace(path string) error {
	if isNamespace(path) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("making folder of network namespaces: %w", err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o444)
	if err != nil {
		return fmt.Errorf("pinning network namespace: %w", err)
	}
	_ = file.Close()
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // left locked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("making network namespace: %w", err)
			return
		}
		if err := unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), path, "", unix.MS_BIND, ""); err != nil {
			result <- fmt.Errorf("pinning network namespace: %w", err)
			return
		}
		result <- nil
	}()
	return <-result
}

func isNamespace(path string) bool {
	const nsfsMagic = 0x6e736673
	var stat unix.Statfs_t
	return unix.Statfs(path, &stat) == nil && int64(stat.Type) == nsfsMagic
}

// RemoveNetwork takes away what EnsureNetwork made, for any number of nodes.
func RemoveNetwork(layout cluster.Layout) error {
	problems := []error{removeRules(), removeNamespaces()}
	if link, err := netlink.LinkByName(cluster.Bridge); err == nil {
		problems = append(problems, netlink.LinkDel(link))
	}
	links, err := netlink.LinkList()
	problems = append(problems, err)
	for _, link := range links {
		if strings.HasPrefix(link.Attrs().Name, "sampan-n") {
			if err := netlink.LinkDel(link); err != nil && !errors.Is(err, syscall.ENODEV) {
				problems = append(problems, err)
			}
		}
	}
	return errors.Join(append(problems, restoreForwarding(layout))...)
}

func removeNamespaces() error {
	pins, err := filepath.Glob(cluster.NamespacePath("*"))
	if err != nil {
		return err
	}
	var problems []error
	for _, pin := range pins {
		for unix.Unmount(pin, unix.MNT_DETACH) == nil {
		}
		if err := os.Remove(pin); err != nil && !errors.Is(err, fs.ErrNotExist) {
			problems = append(problems, fmt.Errorf("removing network namespace: %w", err))
		}
	}
	return errors.Join(problems...)
}

func forwardingFile(layout cluster.Layout) string { return filepath.Join(layout.Dir, "ip_forward") }

// rememberForwarding keeps the host's setting as it was before the first up.
func rememberForwarding(layout cluster.Layout) error {
	if _, err := os.Stat(forwardingFile(layout)); err == nil {
		return nil
	}
	before, err := os.ReadFile(forwardSysctl)
	if err != nil {
		return fmt.Errorf("reading IP forwarding: %w", err)
	}
	return os.WriteFile(forwardingFile(layout), before, 0o644)
}

func restoreForwarding(layout cluster.Layout) error {
	before, err := os.ReadFile(forwardingFile(layout))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = os.WriteFile(forwardSysctl, before, 0)
	}
	return errors.Join(err, os.Remove(forwardingFile(layout)))
}
