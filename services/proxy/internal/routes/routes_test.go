package routes_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/sampan-io/sampan/services/proxy/internal/routes"
)

// host is a network namespace that stands for a node, with one pod address on
// its loopback.
type host struct {
	t    *testing.T
	ns   netns.NsHandle
	self routes.Node
	pod  string
}

// in runs do in the host's namespace.
func (h *host) in(do func()) {
	h.t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if err := netns.Set(h.ns); err != nil {
			h.t.Errorf("entering namespace: %v", err)
			return
		}
		do()
	}()
	<-done
}

func newHost(t *testing.T, number int, link string) *host {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	h := &host{t: t, pod: fmt.Sprintf("10.244.%d.2", number)}
	address := netip.MustParsePrefix(link)
	h.self = routes.Node{Name: fmt.Sprintf("node-%d", number), Address: address.Addr(), Pods: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", number))}}
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		ns, err := netns.New()
		h.ns = ns
		done <- err
	}()
	if err := <-done; err != nil {
		t.Skipf("making a network namespace: %v", err)
	}
	t.Cleanup(func() { _ = h.ns.Close() })
	h.in(func() {
		h.up("lo", h.pod+"/32")
	})
	return h
}

func (h *host) up(device string, addresses ...string) {
	link, err := netlink.LinkByName(device)
	if err != nil {
		h.t.Error(err)
		return
	}
	if err := netlink.LinkSetUp(link); err != nil {
		h.t.Error(err)
	}
	for _, text := range addresses {
		address, err := netlink.ParseAddr(text)
		if err != nil {
			h.t.Error(err)
			continue
		}
		if err := netlink.AddrReplace(link, address); err != nil {
			h.t.Errorf("%s on %s: %v", text, device, err)
		}
	}
}

// cable connects two hosts.
func cable(a *host, aDevice, aAddress string, b *host, bDevice, bAddress string) {
	a.in(func() {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: aDevice}, PeerName: bDevice, PeerNamespace: netlink.NsFd(b.ns)}); err != nil {
			a.t.Error(err)
		}
		a.up(aDevice, aAddress)
	})
	b.in(func() { b.up(bDevice, bAddress) })
}

func (h *host) route(gateway string) {
	h.in(func() {
		if err := netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(gateway)}); err != nil {
			h.t.Error(err)
		}
	})
}

// reconcile makes the routes of the host to others.
func (h *host) reconcile(mode routes.Mode, others ...routes.Node) (err error) {
	h.in(func() {
		network := routes.Network{Mode: mode, Self: h.self, Pods: netip.MustParsePrefix("10.244.0.0/16")}
		err = network.Reconcile(context.Background(), others)
	})
	return err
}

// reaches says whether a packet from this host's pod comes to another's pod, and
// the answer back.
func (h *host) reaches(other *host) error {
	listening := make(chan int)
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		other.in(func() {
			packets, err := net.ListenPacket("udp4", other.pod+":9")
			if err != nil {
				h.t.Error(err)
				close(listening)
				return
			}
			go func() {
				buffer := make([]byte, 10)
				for {
					_, from, err := packets.ReadFrom(buffer)
					if err != nil {
						return
					}
					_, _ = packets.WriteTo(buffer[:1], from)
				}
			}()
			close(listening)
			<-stop
			_ = packets.Close()
		})
	}()
	<-listening
	defer func() { close(stop); <-done }()
	var problem error
	h.in(func() { problem = ping(h.pod, other.pod) })
	return problem
}

func ping(from, to string) error {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer func() { _ = syscall.Close(fd) }()
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: netip.MustParseAddr(from).As4()}); err != nil {
		return err
	}
	if err := syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &syscall.Timeval{Usec: 300000}); err != nil {
		return err
	}
	for range 5 { // the first may get lost while neighbours find each other
		if err = syscall.Sendto(fd, []byte("x"), 0, &syscall.SockaddrInet4{Port: 9, Addr: netip.MustParseAddr(to).As4()}); err != nil {
			continue
		}
		if _, _, err = syscall.Recvfrom(fd, make([]byte, 10), 0); err == nil {
			return nil
		}
	}
	return err
}

func (h *host) forward() {
	h.in(func() {
		if err := routes.Sysctls(); err != nil {
			h.t.Error(err)
		}
	})
}

// state are the routes and devices that the package owns, in short.
func (h *host) state() string {
	var out []string
	h.in(func() {
		found, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: routes.Protocol}, netlink.RT_FILTER_PROTOCOL)
		if err != nil {
			h.t.Error(err)
		}
		for _, route := range found {
			link, err := netlink.LinkByIndex(route.LinkIndex)
			if err != nil {
				h.t.Error(err)
				continue
			}
			out = append(out, fmt.Sprintf("%s via %s dev %s", route.Dst, route.Gw, link.Attrs().Name))
		}
		for _, name := range []string{"sampan-svc", "sampan-vxlan"} {
			if _, err := netlink.LinkByName(name); err == nil {
				out = append(out, name)
			}
		}
	})
	return strings.Join(out, ", ")
}

func TestNeighboursGetHostRoutes(t *testing.T) {
	a, b := newHost(t, 1, "10.89.0.11/24"), newHost(t, 2, "10.89.0.12/24")
	cable(a, "eth0", "10.89.0.11/24", b, "eth0", "10.89.0.12/24")
	for _, mode := range []routes.Mode{routes.Auto, routes.Host} {
		if err := a.reconcile(mode, b.self); err != nil {
			t.Fatal(err)
		}
		if err := b.reconcile(mode, a.self); err != nil {
			t.Fatal(err)
		}
		if err := a.reaches(b); err != nil {
			t.Errorf("%s: %v", mode, err)
		}
		if got, want := a.state(), "10.244.2.0/24 via 10.89.0.12 dev eth0"; got != want {
			t.Errorf("%s: %s, want %s", mode, got, want)
		}
	}
	moved := b.self
	moved.Address = netip.MustParseAddr("10.89.0.13")
	if err := a.reconcile(routes.Auto, moved); err != nil || a.state() != "10.244.2.0/24 via 10.89.0.13 dev eth0" {
		t.Errorf("after the node moved: %s, %v", a.state(), err)
	}
	if err := a.reconcile(routes.Auto); err != nil || a.state() != "" {
		t.Errorf("after the node went: %s, %v", a.state(), err)
	}
}

func TestFarNodesGetATunnel(t *testing.T) {
	a, b, router := newHost(t, 1, "10.1.0.11/24"), newHost(t, 2, "10.2.0.12/24"), newHost(t, 3, "10.1.0.1/24")
	cable(a, "eth0", "10.1.0.11/24", router, "left", "10.1.0.1/24")
	cable(b, "eth0", "10.2.0.12/24", router, "right", "10.2.0.1/24")
	a.route("10.1.0.1")
	b.route("10.2.0.1")
	router.forward()
	if err := a.reconcile(routes.Host, b.self); err == nil || !strings.Contains(err.Error(), "not on this node's link") {
		t.Errorf("host routes to a far node: %v", err)
	}
	unknown := *a
	unknown.self.Address = netip.Addr{}
	if err := unknown.reconcile(routes.Auto, b.self); err != nil || a.state() != "" {
		t.Errorf("before the own address is known: %s, %v", a.state(), err)
	}
	if err := a.reconcile(routes.Auto, b.self); err != nil {
		t.Fatal(err)
	}
	if err := b.reconcile(routes.VXLAN, a.self); err != nil {
		t.Fatal(err)
	}
	if err := a.reaches(b); err != nil {
		t.Error(err)
	}
	if got, want := a.state(), "10.244.2.0/24 via 10.2.0.12 dev sampan-vxlan, sampan-vxlan"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	a.in(func() {
		link, err := netlink.LinkByName("sampan-vxlan")
		if err != nil || link.Attrs().MTU != 1450 {
			t.Errorf("device: %v, %v", link, err)
		}
	})
	if err := a.reconcile(routes.Auto); err != nil || a.state() != "" {
		t.Errorf("after the node went: %s, %v", a.state(), err)
	}
}

func TestImplausiblePodsGetNoRoute(t *testing.T) {
	a := newHost(t, 1, "10.89.0.11/24")
	b := newHost(t, 2, "10.89.0.12/24")
	cable(a, "eth0", "10.89.0.11/24", b, "eth0", "10.89.0.12/24")
	bad := func(name, pods string) routes.Node {
		return routes.Node{Name: name, Address: netip.MustParseAddr("10.89.0.13"), Pods: []netip.Prefix{netip.MustParsePrefix(pods)}}
	}
	err := a.reconcile(routes.Auto, b.self, bad("x-all", "0.0.0.0/0"), bad("x-other", "192.0.2.0/24"), bad("x-mine", "10.244.1.0/25"), bad("x-theirs", "10.244.2.0/24"))
	if got, want := a.state(), "10.244.2.0/24 via 10.89.0.12 dev eth0"; got != want || err == nil {
		t.Errorf("%s, want %s; %v", got, want, err)
	}
	for _, name := range []string{"x-all", "x-other", "x-mine", "x-theirs"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named: %v", name, err)
		}
	}
}

func TestForeignRoutesAreLeftAlone(t *testing.T) {
	a, b := newHost(t, 1, "10.89.0.11/24"), newHost(t, 2, "10.89.0.12/24")
	cable(a, "eth0", "10.89.0.11/24", b, "eth0", "10.89.0.12/24")
	foreign := &netlink.Route{Dst: &net.IPNet{IP: net.IPv4(10, 244, 9, 0), Mask: net.CIDRMask(24, 32)}, Gw: net.IPv4(10, 89, 0, 12)}
	a.in(func() {
		if err := netlink.RouteAdd(foreign); err != nil {
			t.Error(err)
		}
		if err := routes.Service(netip.MustParsePrefix("10.96.0.0/16"), a.self.Address, []netip.Addr{netip.MustParseAddr("10.96.0.10")}); err != nil {
			t.Error(err)
		}
		// A restart that does not know the node yet keeps the source.
		if err := routes.Service(netip.MustParsePrefix("10.96.0.0/16"), netip.Addr{}, []netip.Addr{netip.MustParseAddr("10.96.0.10")}); err != nil {
			t.Error(err)
		}
		found, err := netlink.RouteGet(net.IPv4(10, 96, 7, 7))
		if err != nil || len(found) != 1 || !found[0].Src.Equal(a.self.Address.AsSlice()) {
			t.Errorf("way to a Service: %v, %v", found, err)
		}
	})
	if err := a.reconcile(routes.Auto, b.self); err != nil {
		t.Fatal(err)
	}
	a.in(func() {
		if err := routes.Cleanup(context.Background()); err != nil {
			t.Error(err)
		}
		found, err := netlink.RouteGet(net.IPv4(10, 244, 9, 1))
		if err != nil || len(found) != 1 || !found[0].Gw.Equal(foreign.Gw) {
			t.Errorf("the foreign route: %v, %v", found, err)
		}
	})
	if got := a.state(); got != "" {
		t.Errorf("after clean-up: %s", got)
	}
}
