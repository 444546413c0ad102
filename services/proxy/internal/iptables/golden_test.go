package iptables_test

import (
	"context"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/proxy/internal/iptables"
	"github.com/sampan-io/sampan/services/proxy/internal/servicemap"
)

var rewrite = flag.Bool("rewrite", false, "write testdata anew from what the code does")

// recorder keeps what is restored, and saves nothing.
type recorder struct{ text string }

func (r *recorder) Save(context.Context, string) (string, error) { return "", nil }

func (r *recorder) Restore(_ context.Context, input string) error {
	r.text += input
	return nil
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".txt")
	if *rewrite {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (-rewrite takes it):\n%s", path, got)
	}
}

func TestRulesAsWritten(t *testing.T) {
	rules := config()
	rules.ServiceCIDR, rules.DNS = netip.MustParsePrefix("10.96.0.0/16"), netip.MustParseAddr("10.96.0.10")
	endpoints := []string{"10.244.1.2:8080", "10.244.2.2:8080"}
	change := func(do func(p *servicemap.Port), endpoints ...string) servicemap.Port {
		p := newPort("web", "10.96.0.20", endpoints...)
		p.PortName.Port = "http"
		for i := range p.Endpoints {
			p.Endpoints[i].Local = i == 0
		}
		if do != nil {
			do(&p)
		}
		return p
	}
	loadBalancer := func(p *servicemap.Port) {
		p.NodePort, p.LoadBalancerIPs = 30080, []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	}
	for name, port := range map[string]servicemap.Port{
		"cluster-ip":    change(nil, endpoints...),
		"no-endpoints":  change(loadBalancer),
		"udp":           change(func(p *servicemap.Port) { p.Protocol = corev1.ProtocolUDP }, endpoints...),
		"affinity":      change(func(p *servicemap.Port) { p.Affinity = 90 * time.Second }, endpoints...),
		"load-balancer": change(loadBalancer, endpoints...),
		"source-ranges": change(func(p *servicemap.Port) {
			loadBalancer(p)
			p.SourceRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.7/32")}
		}, endpoints...),
		"external-local": change(func(p *servicemap.Port) { loadBalancer(p); p.ExternalLocal = true }, endpoints...),
		"external-local-elsewhere": change(func(p *servicemap.Port) {
			loadBalancer(p)
			p.ExternalLocal, p.Endpoints[0].Local = true, false
		}, endpoints...),
		"internal-local":           change(func(p *servicemap.Port) { p.InternalLocal = true }, endpoints...),
		"internal-local-elsewhere": change(func(p *servicemap.Port) { p.InternalLocal, p.Endpoints[0].Local = true, false }, endpoints...),
	} {
		record := &recorder{}
		s := iptables.NewSyncer(rules, record)
		s.SetLocalPods(netip.MustParsePrefix("10.244.1.0/24"))
		mustSync(t, s)
		if name == "cluster-ip" {
			golden(t, "base", record.text)
		}
		*record = recorder{}
		s.SetService("default/web", []servicemap.Port{port})
		mustSync(t, s)
		record.text += "# and removed:\n"
		s.SetService("default/web", nil)
		mustSync(t, s)
		golden(t, name, record.text)
	}
}

// What a full sync writes in sections is what it writes at once.
func TestSectionsAddUpToTheWhole(t *testing.T) {
	var texts []string
	for _, size := range []int{0, 3} {
		kernel := &fakeExecer{tables: map[string]map[string][]string{}}
		rules := config()
		rules.SectionChains = size
		s := iptables.NewSyncer(rules, kernel)
		s.SetService("default/gone", []servicemap.Port{newPort("gone", "10.96.9.9", "10.244.1.9:80")})
		mustSync(t, s)
		again := iptables.NewSyncer(rules, kernel) // a restart, which finds stale chains
		for _, ip := range []string{"10.96.0.20", "10.96.0.21", "10.96.1.20", "10.96.2.20"} {
			port := newPort("web-"+ip, ip, "10.244.1.2:8080", "10.244.1.3:8080")
			port.NodePort = 30000 + uint16(netip.MustParseAddr(ip).As4()[3])
			again.SetService("default/web-"+ip, []servicemap.Port{port})
		}
		mustSync(t, again)
		texts = append(texts, canonical(kernel))
	}
	if texts[0] != texts[1] {
		t.Errorf("at once:\n%s\nin sections:\n%s", texts[0], texts[1])
	}
}
