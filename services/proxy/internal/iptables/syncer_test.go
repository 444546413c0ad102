package iptables_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/sampan-io/sampan/services/proxy/internal/iptables"
	"github.com/sampan-io/sampan/services/proxy/internal/servicemap"
)

// enterNamespace runs the test in a network namespace of its own, where the
// addresses are given to the loopback device.
func enterNamespace(t testing.TB, addresses ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for a network namespace")
	}
	if _, err := exec.LookPath("iptables-restore"); err != nil {
		t.Skip(err)
	}
	runtime.LockOSThread() // left locked: the thread ends with the test
	handle, err := netns.New()
	if err != nil {
		t.Skipf("making a network namespace: %v", err)
	}
	t.Cleanup(func() { _ = handle.Close() })
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	for _, text := range addresses {
		address, err := netlink.ParseAddr(text)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.AddrAdd(lo, address); err != nil {
			t.Fatal(err)
		}
	}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: &net.IPNet{IP: net.IPv4(10, 96, 0, 0), Mask: net.CIDRMask(16, 32)}}); err != nil {
		t.Fatal(err)
	}
}

// serve answers every connection with its own address.
func serve(t *testing.T, address string) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, c.LocalAddr())
			_ = c.Close()
		}
	}()
}

// ask connects from the test's thread, which is in the namespace, and returns
// what the server says.
func ask(address string) (string, error) {
	target := netip.MustParseAddrPort(address)
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = syscall.Close(fd) }()
	if err := syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_SNDTIMEO, &syscall.Timeval{Sec: 2}); err != nil {
		return "", err
	}
	if err := syscall.Connect(fd, &syscall.SockaddrInet4{Port: int(target.Port()), Addr: target.Addr().As4()}); err != nil {
		return "", err
	}
	buffer := make([]byte, 100)
	n, err := syscall.Read(fd, buffer)
	return string(buffer[:max(n, 0)]), err
}

func newPort(name, ip string, endpoints ...string) servicemap.Port {
	p := servicemap.Port{PortName: servicemap.PortName{Namespace: "default", Name: name, Protocol: corev1.ProtocolTCP}, ClusterIP: netip.MustParseAddr(ip), Port: 80}
	for _, e := range endpoints {
		p.Endpoints = append(p.Endpoints, servicemap.Endpoint{Address: netip.MustParseAddrPort(e), Ready: true, Local: true})
	}
	return p
}

func mustSync(t testing.TB, s *iptables.Syncer) {
	t.Helper()
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func newCommand(t *testing.T) iptables.Command {
	t.Helper()
	c, err := iptables.NewCommand()
	if err != nil {
		t.Skip(err)
	}
	return c
}

func config() iptables.Config {
	return iptables.Config{ClusterCIDR: netip.MustParsePrefix("10.244.0.0/16"), MasqueradeBit: 14}
}

func TestServiceReachesItsEndpoints(t *testing.T) {
	enterNamespace(t, "10.244.1.2/32", "10.244.1.3/32", "192.0.2.1/32")
	serve(t, "10.244.1.2:8080")
	serve(t, "10.244.1.3:8080")
	s := iptables.NewSyncer(config(), newCommand(t))
	port := newPort("web", "10.96.0.20", "10.244.1.2:8080", "10.244.1.3:8080")
	port.NodePort = 30080
	s.SetService("default/web", []servicemap.Port{port})
	s.SetService("default/nobody", []servicemap.Port{newPort("nobody", "10.96.0.21")})
	mustSync(t, s)

	seen := map[string]int{}
	for range 40 {
		answer, err := ask("10.96.0.20:80")
		if err != nil {
			t.Fatal(err)
		}
		seen[answer]++
	}
	if len(seen) != 2 {
		t.Errorf("answers came from %v", seen)
	}
	if answer, err := ask("192.0.2.1:30080"); err != nil || !strings.HasPrefix(answer, "10.244.1.") {
		t.Errorf("NodePort: %q, %v", answer, err)
	}
	began := time.Now()
	if _, err := ask("10.96.0.21:80"); !errors.Is(err, syscall.ECONNREFUSED) || time.Since(began) > time.Second {
		t.Errorf("without endpoints: %v after %s", err, time.Since(began))
	}

	// One endpoint goes, the Service without endpoints gets one.
	s.SetService("default/web", []servicemap.Port{newPort("web", "10.96.0.20", "10.244.1.3:8080")})
	s.SetService("default/nobody", []servicemap.Port{newPort("nobody", "10.96.0.21", "10.244.1.2:8080")})
	mustSync(t, s)
	for range 10 {
		if answer, err := ask("10.96.0.20:80"); err != nil || answer != "10.244.1.3:8080" {
			t.Errorf("after the change: %q, %v", answer, err)
		}
	}
	if answer, err := ask("10.96.0.21:80"); err != nil || answer != "10.244.1.2:8080" {
		t.Errorf("after it got an endpoint: %q, %v", answer, err)
	}
	if stats := s.Stats(); stats.FullSyncs != 1 || stats.PartialSyncs != 1 || stats.RestoreFailed != 0 {
		t.Errorf("stats are %+v", stats)
	}
	if changed, err := s.Check(t.Context()); changed || err != nil {
		t.Errorf("check of untouched rules: %v, %v", changed, err)
	}
}

func TestAffinityKeepsAClientOnItsEndpoint(t *testing.T) {
	enterNamespace(t, "10.244.1.2/32", "10.244.1.3/32")
	serve(t, "10.244.1.2:8080")
	serve(t, "10.244.1.3:8080")
	s := iptables.NewSyncer(config(), newCommand(t))
	port := newPort("web", "10.96.0.20", "10.244.1.2:8080", "10.244.1.3:8080")
	port.Affinity = time.Hour
	s.SetService("default/web", []servicemap.Port{port})
	mustSync(t, s)
	first, err := ask("10.96.0.20:80")
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if answer, err := ask("10.96.0.20:80"); err != nil || answer != first {
			t.Fatalf("answer from %q after %q, %v", answer, first, err)
		}
	}
}

func TestForeignFlushIsRepaired(t *testing.T) {
	enterNamespace(t, "10.244.1.2/32")
	serve(t, "10.244.1.2:8080")
	s := iptables.NewSyncer(config(), newCommand(t))
	s.SetService("default/web", []servicemap.Port{newPort("web", "10.96.0.20", "10.244.1.2:8080")})
	mustSync(t, s)
	for _, damage := range []string{"iptables -t nat -F", "iptables -t nat -F KUBE-SERVICES", "iptables -t nat -F; iptables -t nat -X; iptables -F; iptables -X", "iptables -t nat -D PREROUTING 1"} {
		if out, err := exec.Command("sh", "-c", damage).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", damage, err, out)
		}
		if changed, err := s.Check(t.Context()); !changed || err != nil {
			t.Errorf("%s: noticed %v, %v", damage, changed, err)
		}
		if answer, err := ask("10.96.0.20:80"); err != nil || answer != "10.244.1.2:8080" {
			t.Errorf("after %s: %q, %v", damage, answer, err)
		}
	}
	// A change that meets a flush: the partial sync fails and a full one follows.
	if out, err := exec.Command("sh", "-c", "iptables -t nat -F; iptables -t nat -X").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s.SetService("default/web", []servicemap.Port{newPort("web", "10.96.0.22", "10.244.1.2:8080")})
	mustSync(t, s)
	if answer, err := ask("10.96.0.22:80"); err != nil || answer != "10.244.1.2:8080" {
		t.Errorf("after a change on flushed rules: %q, %v", answer, err)
	}
}

func TestRestartTakesOverAndCleanupRemovesAll(t *testing.T) {
	enterNamespace(t, "10.244.1.2/32")
	serve(t, "10.244.1.2:8080")
	command := newCommand(t)
	first := iptables.NewSyncer(config(), command)
	first.SetService("default/web", []servicemap.Port{newPort("web", "10.96.0.20", "10.244.1.2:8080")})
	first.SetService("default/old", []servicemap.Port{newPort("old", "10.96.0.30", "10.244.1.2:8080")})
	mustSync(t, first)
	second := iptables.NewSyncer(config(), command)
	second.SetService("default/web", []servicemap.Port{newPort("web", "10.96.0.20", "10.244.1.2:8080")})
	mustSync(t, second)
	if answer, err := ask("10.96.0.20:80"); err != nil || answer != "10.244.1.2:8080" {
		t.Errorf("after a restart: %q, %v", answer, err)
	}
	saved, err := command.Save(t.Context(), "nat")
	if err != nil || strings.Contains(saved, "10.96.0.30") || strings.Count(saved, "-A PREROUTING") != 1 {
		t.Errorf("rules after a restart, %v:\n%s", err, saved)
	}
	if err := iptables.Cleanup(t.Context(), command); err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"nat", "filter"} {
		if saved, err := command.Save(t.Context(), table); err != nil || strings.Contains(saved, "KUBE-") || strings.Contains(saved, "SAMPAN-") {
			t.Errorf("%s after clean-up, %v:\n%s", table, err, saved)
		}
	}
}

// The legacy variant has one lock for the machine. Who holds it delays others.
func TestHeldLockDelaysAndDropsNothing(t *testing.T) {
	enterNamespace(t, "10.244.1.2/32")
	serve(t, "10.244.1.2:8080")
	const path, held = "/run/xtables.lock", 300 * time.Millisecond
	lock, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		t.Skip(err)
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	time.AfterFunc(held, func() { _ = syscall.Flock(int(lock.Fd()), syscall.LOCK_UN) })
	s := iptables.NewSyncer(config(), newVariant(t, "legacy"))
	s.SetService("default/web", []servicemap.Port{newPort("web", "10.96.0.20", "10.244.1.2:8080")})
	mustSync(t, s)
	if waited := time.Since(began); waited < held {
		t.Errorf("rules were written after %s while the lock was held for %s", waited, held)
	}
	if answer, err := ask("10.96.0.20:80"); err != nil || answer != "10.244.1.2:8080" {
		t.Errorf("after the lock: %q, %v", answer, err)
	}
	if stats := s.Stats(); stats.RestoreFailed != 0 {
		t.Errorf("stats are %+v", stats)
	}
}

func TestHostileNamesDoNotBecomeRules(t *testing.T) {
	enterNamespace(t)
	s := iptables.NewSyncer(config(), newCommand(t))
	port := newPort("web", "10.96.0.20", "10.244.1.2:8080")
	port.Name = "x\" -j ACCEPT\n-A INPUT -j ACCEPT\nCOMMIT\n*nat\n"
	port.PortName.Port = `\" -j DROP`
	s.SetService("default/web", []servicemap.Port{port})
	mustSync(t, s)
	saved, err := newCommand(t).Save(t.Context(), "filter")
	if err != nil || strings.Contains(saved, "-A INPUT -j ACCEPT") {
		t.Errorf("%v:\n%s", err, saved)
	}
}

// fakeExecer keeps tables as iptables would and refuses what it would refuse.
type fakeExecer struct {
	tables map[string]map[string][]string
}

func (f *fakeExecer) Save(_ context.Context, table string) (string, error) {
	var out strings.Builder
	for chain, rules := range f.tables[table] {
		fmt.Fprintf(&out, ":%s - [0:0]\n", chain)
		for _, rule := range rules {
			fmt.Fprintf(&out, "-A %s %s\n", chain, rule)
		}
	}
	return out.String(), nil
}

func (f *fakeExecer) Restore(_ context.Context, input string) error {
	table := ""
	for line := range strings.Lines(input) {
		line = strings.TrimSpace(line)
		chains := f.tables[table]
		verb, rest, _ := strings.Cut(line, " ")
		chain, rule, _ := strings.Cut(rest, " ")
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
			if f.tables[table] == nil {
				f.tables[table] = map[string][]string{"PREROUTING": nil, "INPUT": nil, "FORWARD": nil, "OUTPUT": nil, "POSTROUTING": nil}
			}
		case strings.HasPrefix(line, ":"):
			chains[strings.TrimPrefix(verb, ":")] = nil
		case verb == "-A":
			chains[chain] = append(chains[chain], rule)
		case verb == "-I":
			chains[chain] = append([]string{rule}, chains[chain]...)
		case verb == "-D":
			at := -1
			for i, have := range chains[chain] {
				if have == rule {
					at = i
				}
			}
			if at < 0 {
				return fmt.Errorf("no rule %q in %s", rule, chain)
			}
			chains[chain] = append(chains[chain][:at:at], chains[chain][at+1:]...)
		case verb == "-X":
			for from, rules := range chains {
				for _, rule := range rules {
					if strings.HasSuffix(rule, "-j "+chain) {
						return fmt.Errorf("chain %s is used by %s", chain, from)
					}
				}
			}
			delete(chains, chain)
		}
	}
	return nil
}

// Whatever the way, small steps lead to the same rules as one full sync.
func TestDifferencesAddUpToTheWhole(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		stepwise := &fakeExecer{tables: map[string]map[string][]string{}}
		s := iptables.NewSyncer(config(), stepwise)
		final := map[string][]servicemap.Port{}
		for range rapid.IntRange(1, 15).Draw(r, "steps") {
			n := rapid.IntRange(0, 4).Draw(r, "service")
			key := fmt.Sprintf("default/s%d", n)
			var ports []servicemap.Port
			if rapid.Bool().Draw(r, "exists") {
				var endpoints []string
				for e := range rapid.IntRange(0, 3).Draw(r, "endpoints") {
					endpoints = append(endpoints, fmt.Sprintf("10.244.1.%d:8080", e+2))
				}
				port := newPort(fmt.Sprintf("s%d", n), fmt.Sprintf("10.96.0.%d", n+20), endpoints...)
				if rapid.Bool().Draw(r, "nodePort") {
					port.NodePort = uint16(30000 + n)
				}
				port.ExternalLocal = rapid.Bool().Draw(r, "local")
				ports = []servicemap.Port{port}
			}
			final[key] = ports
			s.SetService(key, ports)
			if rapid.Bool().Draw(r, "sync") {
				if err := s.Sync(context.Background()); err != nil {
					r.Fatal(err)
				}
			}
		}
		if err := s.Sync(context.Background()); err != nil {
			r.Fatal(err)
		}
		if s.Stats().RestoreFailed > 0 {
			r.Fatalf("a difference was refused")
		}
		whole := &fakeExecer{tables: map[string]map[string][]string{}}
		fresh := iptables.NewSyncer(config(), whole)
		for key, ports := range final {
			fresh.SetService(key, ports)
		}
		if err := fresh.Sync(context.Background()); err != nil {
			r.Fatal(err)
		}
		if a, b := canonical(stepwise), canonical(whole); a != b {
			r.Fatalf("stepwise:\n%s\nwhole:\n%s", a, b)
		}
	})
}

// canonical is all rules, in an order that does not depend on how they came:
// only the last rule of a shared chain has a place that matters.
func canonical(f *fakeExecer) string {
	var lines []string
	for table, chains := range f.tables {
		for chain, rules := range chains {
			lines = append(lines, fmt.Sprintf("%s %s (%d)", table, chain, len(rules)))
			for i, rule := range rules {
				place := ""
				if strings.HasPrefix(chain, "KUBE-S") && strings.Contains(chain, "-SVC-") || i == len(rules)-1 && chain == "KUBE-SERVICES" && table == "nat" {
					place = fmt.Sprint(i)
				}
				lines = append(lines, table+" "+chain+" "+place+" "+rule)
			}
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
