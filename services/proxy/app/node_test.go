package app

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/proxy/internal/iptables"
)

func askHealth(url string) error {
	client := http.Client{Timeout: time.Second}
	answer, err := client.Get(url)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}

func variants(t *testing.T, test func(t *testing.T, n *node)) {
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) { test(t, newNode(t, variant)) })
	}
}

func TestClusterIPIsReachedFromEverywhere(t *testing.T) {
	variants(t, func(t *testing.T, n *node) {
		n.service("web", clusterIP, nil, n.endpoint(n.b))
		n.run()
		fromNode := func(network string) string {
			ask := askTCP
			if network == "udp" {
				ask = func(address string) (string, error) { return askUDP("0", address) }
			}
			answer, err := ask(clusterIP + ":80")
			return fmt.Sprintf("%s %v", answer, err)
		}
		for _, step := range []struct{ who, got, want string }{
			{"a pod", n.a.ask(t, "tcp %s:80", clusterIP), "b 10.244.1.2"},
			{"a pod by UDP", n.a.ask(t, "udp 0 %s:80", clusterIP), "b 10.244.1.2"},
			{"the endpoint itself", n.b.ask(t, "tcp %s:80", clusterIP), "b 10.244.1.1"},
			{"the endpoint itself by UDP", n.b.ask(t, "udp 0 %s:80", clusterIP), "b 10.244.1.1"},
			{"the node", fromNode("tcp"), "b 10.244.1.1"},
			{"the node by UDP", fromNode("udp"), "b 10.244.1.1"},
			{"outside", n.world.ask(t, "tcp %s:80", clusterIP), "b 10.244.1.1"},
		} {
			if err := answers(step.got, step.want); err != nil {
				t.Errorf("from %s: %v", step.who, err)
			}
		}
		if got := n.a.ask(t, "tcp %s:8080", worldIP); !strings.HasPrefix(got, "world "+nodeIP) {
			t.Errorf("a pod speaks to the world with the node's address: %q", got)
		}
		if got := n.world.ask(t, "tcp %s:8080", n.a.ip); !strings.HasPrefix(got, "a "+worldIP) {
			t.Errorf("the world speaks to a pod: %q", got)
		}
	})
}

func TestUnknownClusterIPIsRefusedAtOnce(t *testing.T) {
	variants(t, func(t *testing.T, n *node) {
		n.service("idle", clusterIP, nil)
		n.run()
		for _, target := range []string{clusterIP + ":80", "10.96.77.7:80"} {
			for _, ask := range []string{"tcp ", "udp 0 "} {
				began := time.Now()
				got := n.a.ask(t, "%s%s", ask, target)
				if !strings.Contains(got, "refused") || time.Since(began) > 400*time.Millisecond {
					t.Errorf("%s%s from a pod: %q after %s", ask, target, got, time.Since(began))
				}
			}
			if _, err := askTCP(target); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s from the node: %v", target, err)
			}
		}
		route, err := exec.Command("ip", "route", "get", "10.96.77.7").CombinedOutput()
		if err != nil || !strings.Contains(string(route), "dev sampan-svc src "+nodeIP) {
			t.Errorf("route of the Service range: %v %s", err, route)
		}
	})
}

func TestNodePortAndTrafficPolicies(t *testing.T) {
	variants(t, func(t *testing.T, n *node) {
		nodePort := func(local bool) func(*corev1.Service) {
			return func(s *corev1.Service) {
				s.Spec.Type = corev1.ServiceTypeNodePort
				s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort = 30080, 30080
				s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
				if local {
					s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
					s.Spec.Type, s.Spec.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer, 32000
				}
			}
		}
		n.service("web", clusterIP, nodePort(false), n.endpoint(n.b))
		n.run()
		for _, ask := range []string{"tcp ", "udp 0 "} {
			if err := answers(n.world.ask(t, "%s%s:30080", ask, nodeIP), "b 10.244.1.1"); err != nil {
				t.Errorf("%s NodePort from outside: %v", ask, err)
			}
			if err := answers(n.a.ask(t, "%s%s:30080", ask, nodeIP), "b "); err != nil {
				t.Errorf("%s NodePort from a pod: %v", ask, err)
			}
		}
		if _, err := askTCP("127.0.0.1:30080"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("NodePort on loopback: %v", err)
		}

		n.service("web", clusterIP, nodePort(true), n.endpoint(n.b))
		n.eventually("the client's address is kept under Local", func() error {
			return answers(n.world.ask(t, "tcp %s:30080", nodeIP), "b "+worldIP)
		})
		n.eventually("the health check says yes", func() error { return askHealth("http://" + nodeIP + ":32000/") })
		elsewhere := n.endpoint(n.b)
		elsewhere.NodeName = ptr.To("node-2")
		n.service("web", clusterIP, nodePort(true), elsewhere)
		n.eventually("nothing answers without local endpoints", func() error {
			if got := n.world.ask(t, "tcp %s:30080", nodeIP); !strings.Contains(got, "timeout") {
				return errors.New(got)
			}
			return nil
		})
		if err := askHealth("http://" + nodeIP + ":32000/"); err == nil || !strings.Contains(err.Error(), "503") {
			t.Errorf("health check without local endpoints: %v", err)
		}
	})
}

func TestAffinityOutlivesOtherEndpoints(t *testing.T) {
	variants(t, func(t *testing.T, n *node) {
		sticky := func(s *corev1.Service) {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To[int32](600)}}
		}
		n.service("web", clusterIP, sticky, n.endpoint(n.a), n.endpoint(n.b))
		n.run()
		first := n.world.ask(t, "tcp %s:80", clusterIP)
		for range 10 {
			if got := n.world.ask(t, "tcp %s:80", clusterIP); got != first {
				t.Fatalf("answer %q after %q", got, first)
			}
		}
		rest := n.a
		if strings.HasPrefix(first, "a") {
			rest = n.b
		}
		n.service("web", clusterIP, sticky, n.endpoint(rest))
		n.eventually("the client goes to the endpoint that is left", func() error {
			return answers(n.world.ask(t, "tcp %s:80", clusterIP), rest.name)
		})
	})
}

// A client that keeps its socket must follow the endpoints: the kernel's flow
// would hold it on the old one.
func TestUDPFlowsFollowEndpoints(t *testing.T) {
	n := newNode(t, "nft")
	n.service("echo", clusterIP, nil, n.endpoint(n.a))
	n.run()
	ask := func() string { return n.world.ask(t, "udp 4000 %s:80", clusterIP) }
	if err := answers(ask(), "a "); err != nil {
		t.Fatal(err)
	}
	n.service("echo", clusterIP, nil, n.endpoint(n.b))
	n.eventually("the flow moves to the new endpoint", func() error { return answers(ask(), "b ") })
	n.service("echo", clusterIP, nil)
	n.eventually("the flow ends when no endpoint is left", func() error {
		if got := ask(); !strings.HasPrefix(got, "error:") {
			return errors.New(got)
		}
		return nil
	})
	unready := n.endpoint(n.a)
	unready.Conditions.Ready = ptr.To(false)
	n.service("echo", clusterIP, nil, unready)
	n.service("echo", clusterIP, nil, n.endpoint(n.a))
	n.eventually("the flow comes back with a ready endpoint", func() error { return answers(ask(), "a ") })
	must(t, n.api.CoreV1().Services("default").Delete(t.Context(), "echo", metav1.DeleteOptions{}))
	n.eventually("the flow ends with its Service", func() error {
		if got := ask(); !strings.HasPrefix(got, "error:") {
			return errors.New(got)
		}
		return nil
	})
}

func TestRestartAndForeignFlushDisturbNoOne(t *testing.T) {
	variants(t, func(t *testing.T, n *node) {
		n.service("web", clusterIP, nil, n.endpoint(n.a))
		n.run()
		held, err := net.DialTimeout("tcp4", clusterIP+":80", time.Second)
		must(t, err)
		defer func() { _ = held.Close() }()
		check := func(when string) {
			t.Helper()
			if got, err := say(held); err != nil || !strings.HasPrefix(got, "a ") {
				t.Errorf("open connection %s: %q, %v", when, got, err)
			}
		}
		check("at first")
		n.stop()
		check("without the proxy")
		if got, err := askTCP(clusterIP + ":80"); err != nil {
			t.Errorf("new connection without the proxy: %q, %v", got, err)
		}
		n.run()
		check("after a restart")

		command := strings.TrimSuffix(n.command.RestorePath, "-restore")
		for _, damage := range []string{"-t nat -F", "-t nat -F KUBE-SERVICES", "-t nat -R KUBE-SERVICES 1 -j RETURN", "-t filter -D INPUT 1"} {
			before, err := n.command.Save(t.Context(), "nat")
			must(t, err)
			if out, err := exec.Command(command, strings.Fields(damage)...).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v: %s", damage, err, out)
			}
			n.eventually("rules are repaired after "+damage, func() error {
				after, err := n.command.Save(t.Context(), "nat")
				if err != nil || countRules(after) != countRules(before) || strings.Contains(after, "-A KUBE-SERVICES -j RETURN") {
					return fmt.Errorf("%w:\n%s", err, after)
				}
				_, err = askTCP(clusterIP + ":80")
				return err
			})
		}
		check("after flushes")
	})
}

func countRules(saved string) int { return strings.Count(saved, "\n-A ") }

func TestNodeAnswersClusterDNS(t *testing.T) {
	n := newNode(t, "nft")
	if got := n.world.ask(t, "resolve 203.0.113.7"); got != "" {
		t.Fatal(got)
	}
	n.service("web", clusterIP, nil, n.endpoint(n.a))
	// Whatever is said of the DNS Service, the node answers its address.
	n.service("kube-dns", "10.96.0.10", func(s *corev1.Service) { s.Spec.Ports[0].Port, s.Spec.Ports[1].Port = 53, 53 })
	n.run()
	for _, step := range []struct{ question, want string }{
		{"udp " + dnsServer + " web.default.svc.cluster.local A", "NOERROR 10.96.0.20"},
		{"tcp " + dnsServer + " web.default.svc.cluster.local A", "NOERROR 10.96.0.20"},
		{"udp " + dnsServer + " nobody.default.svc.cluster.local A", "NXDOMAIN"},
		{"udp " + dnsServer + " _http._tcp.web.default.svc.cluster.local SRV", "NOERROR 0 100 80 web.default.svc.cluster.local."},
		{"udp " + dnsServer + " example.com A", "NOERROR 203.0.113.7"},
	} {
		if got := n.a.ask(t, "dns %s", step.question); got != step.want {
			t.Errorf("%s from a pod: %q, want %q", step.question, got, step.want)
		}
		if got := n.world.ask(t, "dns %s", step.question); got != step.want {
			t.Errorf("%s from outside: %q, want %q", step.question, got, step.want)
		}
		fields := strings.Fields(step.question)
		if got, err := askDNS(fields[0], fields[1], fields[2], fields[3]); got != step.want {
			t.Errorf("%s from the node: %q, %v, want %q", step.question, got, err, step.want)
		}
	}
}

// The kernel tells of changes of nf_tables rules: no one waits for the next look.
func TestForeignFlushIsNoticedAtOnce(t *testing.T) {
	n := newNode(t, "nft")
	n.command.Monitor = &iptables.Monitor{}
	n.options.SyncPeriod = time.Hour
	n.service("web", clusterIP, nil, n.endpoint(n.a))
	n.run()
	for range 3 {
		if out, err := exec.Command("iptables-nft", "-t", "nat", "-F").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		n.eventually("rules are back", func() error { _, err := askTCP(clusterIP + ":80"); return err })
	}
	n.eventually("repairs are counted", func() error {
		if got := n.metric("sampan_proxy_foreign_changes_total"); got != 3 {
			return fmt.Errorf("%v repairs after three flushes", got)
		}
		return nil
	})
	checks := n.metric("sampan_proxy_checks_total")
	for _, p := range []*pod{n.b, n.a, n.b, n.a, n.b} {
		n.service("web", clusterIP, nil, n.endpoint(p))
		n.eventually("a change of ours", func() error {
			answer, err := askTCP(clusterIP + ":80")
			return errors.Join(err, answers(answer, p.name))
		})
	}
	if got := n.metric("sampan_proxy_checks_total"); got > checks+1 {
		t.Errorf("%v looks for foreign changes before changes of ours, %v after", checks, got)
	}
}
