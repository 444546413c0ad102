package app

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/proxy/internal/iptables"
	"github.com/sampan-io/sampan/services/proxy/internal/state"
)

// isolated marks the test process that is in a network namespace of its own,
// which is the node: nothing that the proxy does there outlives the tests.
const isolated = "SAMPAN_PROXY_TEST_NODE"

func TestMain(m *testing.M) {
	if name := os.Getenv(podMode); name != "" {
		os.Exit(runPod(name))
	}
	if os.Geteuid() != 0 || os.Getenv(isolated) != "" {
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), isolated+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Addresses of the tests' node. The world is a machine on its link.
const (
	nodeName  = "node-1"
	nodeIP    = "10.89.0.11"
	worldIP   = "10.89.0.1"
	clusterIP = "10.96.0.20"
	dnsServer = "10.96.0.10:53"
)

// pod is a process in another network namespace.
type pod struct {
	name, ip string
	in       io.Writer
	out      *bufio.Scanner
}

// ask gives a command and returns the answer; an error starts with "error:".
func (p *pod) ask(t *testing.T, format string, args ...any) string {
	t.Helper()
	if _, err := fmt.Fprintf(p.in, format+"\n", args...); err != nil {
		t.Fatalf("pod %s: %v", p.name, err)
	}
	if !p.out.Scan() {
		t.Fatalf("pod %s ended", p.name)
	}
	return p.out.Text()
}

// node is the tests' node with two pods, the world, and the API.
type node struct {
	t       *testing.T
	api     kubernetes.Interface
	options *Options
	command iptables.Command
	a, b    *pod
	world   *pod

	stop func() // of the proxy
}

func newNode(t *testing.T, variant string) *node {
	t.Helper()
	if os.Getenv(isolated) == "" {
		t.Skip("needs root for network namespaces")
	}
	n := &node{t: t, api: fake.NewClientset()}
	n.command = iptables.Command{RestorePath: "iptables-" + variant + "-restore", SavePath: "iptables-" + variant + "-save"}
	for _, path := range []string{n.command.RestorePath, n.command.SavePath} {
		if _, err := exec.LookPath(path); err != nil {
			t.Skip(err)
		}
	}
	up(t, "lo")
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "pods"}}
	must(t, netlink.LinkAdd(bridge))
	t.Cleanup(func() { _ = netlink.LinkDel(bridge) })
	address(t, "pods", "10.244.1.1/24")
	n.a = n.start("a", "10.244.1.2", "10.244.1.1", bridge.Index, "a0")
	n.b = n.start("b", "10.244.1.3", "10.244.1.1", bridge.Index, "b0")
	n.world = n.start("world", worldIP, nodeIP, 0, "eth0")
	address(t, "eth0", nodeIP+"/24")
	must(t, netlink.RouteReplace(&netlink.Route{Gw: net.ParseIP(worldIP)}))
	must(t, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0))

	_, err := n.api.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName}, Spec: corev1.NodeSpec{PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeIP}}},
	}, metav1.CreateOptions{})
	must(t, err)
	n.options = n.newOptions("--hostname-override="+nodeName, "--cluster-cidr=10.244.0.0/16", "--iptables-sync-period=200ms")
	return n
}

func (n *node) newOptions(args ...string) *Options {
	n.t.Helper()
	resolv := filepath.Join(n.t.TempDir(), "resolv.conf")
	must(n.t, os.WriteFile(resolv, []byte("nameserver 10.96.0.10\nnameserver "+worldIP+"\n"), 0o600))
	o := New()
	fs := pflag.NewFlagSet("proxy", pflag.ContinueOnError)
	o.AddFlags(fs)
	must(n.t, fs.Parse(append(args, "--resolv-conf="+resolv)))
	must(n.t, o.Complete())
	o.checkPause = 1
	return o
}

// start makes a pod on a link of the node.
func (n *node) start(name, ip, gateway string, bridge int, device string) *pod {
	n.t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), podMode+"="+name)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	must(n.t, err)
	out, err := cmd.StdoutPipe()
	must(n.t, err)
	must(n.t, cmd.Start())
	n.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if link, err := netlink.LinkByName(device); err == nil {
			_ = netlink.LinkDel(link)
		}
	})
	must(n.t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: device, MasterIndex: bridge}, PeerName: "eth0", PeerNamespace: netlink.NsPid(cmd.Process.Pid)}))
	if link := up(n.t, device); bridge != 0 { // as CNI plugins do with hairpinMode
		must(n.t, netlink.LinkSetHairpin(link, true))
	}
	p := &pod{name: name, ip: ip, in: in, out: bufio.NewScanner(out)}
	if answer := p.ask(n.t, "net %s/24 %s", ip, gateway); answer != "" {
		n.t.Fatal(answer)
	}
	return p
}

// run starts the proxy and returns when its rules are written.
func (n *node) run() {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(n.t.Context()))
	done := make(chan error, 1)
	log := slog.New(slog.NewTextHandler(n.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	go func() { done <- n.options.serveFrom(ctx, log, state.FromAPI(n.api), n.command, newMetrics()) }()
	n.stop = func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			n.t.Errorf("proxy ended: %v", err)
		}
		n.stop = func() {}
	}
	n.t.Cleanup(func() {
		n.stop()
		ctx := context.WithoutCancel(n.t.Context())
		must(n.t, n.options.cleanup(ctx, n.command))
	})
	n.eventually("rules are written", func() error { return askHealth("http://127.0.0.1:10256/healthz") })
}

// eventually waits until condition holds.
func (n *node) eventually(what string, condition func() error) {
	n.t.Helper()
	var err error
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if err = condition(); err == nil {
			return
		}
	}
	n.t.Fatalf("%s: %v", what, err)
}

// answers says whether an answer begins with a pod's name and an address.
func answers(got, want string) error {
	if !strings.HasPrefix(got, want) {
		return fmt.Errorf("got %q, want %q", got, want)
	}
	return nil
}

// service makes or changes a Service with ports "http" (TCP 80) and "echo" (UDP
// 80), and its endpoints.
func (n *node) service(name, ip string, change func(*corev1.Service), endpoints ...discoveryv1.Endpoint) {
	n.t.Helper()
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip}, Ports: []corev1.ServicePort{
			{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}, {Name: "echo", Port: 80, Protocol: corev1.ProtocolUDP},
		}},
	}
	if change != nil {
		change(service)
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints,
		Ports: []discoveryv1.EndpointPort{
			{Name: ptr.To("http"), Port: ptr.To[int32](podPort), Protocol: ptr.To(corev1.ProtocolTCP)},
			{Name: ptr.To("echo"), Port: ptr.To[int32](podPort), Protocol: ptr.To(corev1.ProtocolUDP)},
		},
	}
	if ip == corev1.ClusterIPNone {
		slice.Labels[corev1.IsHeadlessService] = ""
	}
	services, slices := n.api.CoreV1().Services("default"), n.api.DiscoveryV1().EndpointSlices("default")
	if _, err := services.Create(n.t.Context(), service, metav1.CreateOptions{}); err != nil {
		_, err = services.Update(n.t.Context(), service, metav1.UpdateOptions{})
		must(n.t, err)
	}
	if _, err := slices.Create(n.t.Context(), slice, metav1.CreateOptions{}); err != nil {
		_, err = slices.Update(n.t.Context(), slice, metav1.UpdateOptions{})
		must(n.t, err)
	}
}

func (n *node) endpoint(p *pod) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: []string{p.ip}, NodeName: ptr.To(nodeName), Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func up(t *testing.T, device string) netlink.Link {
	t.Helper()
	link, err := netlink.LinkByName(device)
	must(t, err)
	must(t, netlink.LinkSetUp(link))
	return link
}

func address(t *testing.T, device, text string) {
	t.Helper()
	ip, err := netlink.ParseAddr(text)
	must(t, err)
	must(t, netlink.AddrReplace(up(t, device), ip))
}
