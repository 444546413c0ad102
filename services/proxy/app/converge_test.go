package app

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var (
	steps = flag.Int("steps", 40, "random changes of TestProxyConverges")
	seed  = flag.Uint64("seed", rand.Uint64(), "of TestProxyConverges")
)

// Whatever happens, in whatever order: in the end the rules are those that a proxy
// writes that never saw anything but the end.
func TestProxyConverges(t *testing.T) {
	variants(t, func(t *testing.T, n *node) {
		t.Logf("-seed=%d", *seed)
		random := rand.New(rand.NewPCG(*seed, 0))
		iptables := strings.TrimSuffix(n.command.RestorePath, "-restore")
		n.run()
		for range *steps {
			switch random.IntN(10) {
			case 0:
				flush := [][]string{{"-t", "nat", "-F"}, {"-F"}, {"-t", "nat", "-F", "KUBE-SERVICES"}, {"-t", "nat", "-D", "OUTPUT", "1"}}[random.IntN(4)]
				_ = exec.Command(iptables, flush...).Run() // what to flush may not be there now
			case 1:
				n.stop()
				n.run()
			default:
				n.change(random)
			}
		}
		n.settle()
		n.stop()
		got := n.rules()
		must(t, n.options.cleanup(t.Context(), n.command))
		n.run()
		if want := n.rules(); !slices.Equal(got, want) {
			t.Errorf("rules after all changes:\n%s\nrules of a new proxy:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

// settle waits until all changes have had their effect: a last one is there, and
// two looks for foreign changes found nothing more to do.
func (n *node) settle() {
	n.t.Helper()
	last := n.endpoint(&pod{ip: "10.244.1.99"})
	n.service("last", "10.96.0.99", nil, last)
	n.eventually("the last change is there", func() error {
		text := strings.Join(n.rules(), "\n")
		if !strings.Contains(text, "default/last:http cluster IP") || !strings.Contains(text, "--to-destination 10.244.1.99:8080") {
			return errors.New(text)
		}
		return nil
	})
	checks := n.metric("sampan_proxy_checks_total")
	n.eventually("rules are looked at twice", func() error {
		if now := n.metric("sampan_proxy_checks_total"); now < checks+2 {
			return fmt.Errorf("%v after %v", now, checks)
		}
		return nil
	})
}

// metric is a series of the running proxy.
func (n *node) metric(name string) float64 {
	n.t.Helper()
	answer, err := http.Get("http://127.0.0.1:10249/metrics")
	must(n.t, err)
	defer func() { _ = answer.Body.Close() }()
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			value, err := strconv.ParseFloat(text, 64)
			must(n.t, err)
			return value
		}
	}
	n.t.Fatalf("no metric %s", name)
	return 0
}

// change makes, changes or removes one of a few Services.
func (n *node) change(random *rand.Rand) {
	n.t.Helper()
	number := random.IntN(6)
	name := fmt.Sprintf("s%d", number)
	if random.IntN(4) == 0 {
		_ = n.api.CoreV1().Services("default").Delete(n.t.Context(), name, metav1.DeleteOptions{})
		return
	}
	var endpoints []discoveryv1.Endpoint
	for _, p := range []*pod{n.a, n.b} {
		if random.IntN(2) == 0 {
			e := n.endpoint(p)
			ready := random.IntN(4) > 0
			e.Conditions.Ready = &ready
			endpoints = append(endpoints, e)
		}
	}
	n.service(name, fmt.Sprintf("10.96.%d.%d", number%2, 20+number), func(s *corev1.Service) {
		if random.IntN(2) == 0 {
			s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, int32(30080+number)
		}
		if random.IntN(3) == 0 {
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}
		if random.IntN(3) == 0 {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		}
	}, endpoints...)
}

// rules are all rules of the node, without counters, in the order of their text:
// Services come in different orders.
func (n *node) rules() []string {
	n.t.Helper()
	var out []string
	for _, table := range []string{"nat", "filter"} {
		saved, err := n.command.Save(n.t.Context(), table)
		must(n.t, err)
		for line := range strings.Lines(saved) {
			if strings.HasPrefix(line, "-A ") || strings.HasPrefix(line, ":") {
				line, _, _ = strings.Cut(line, " [")
				out = append(out, strings.TrimSpace(table+" "+line))
			}
		}
	}
	slices.Sort(out)
	return out
}
