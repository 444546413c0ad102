package iptables_test

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"testing"

	"github.com/sampan-io/sampan/services/proxy/internal/iptables"
	"github.com/sampan-io/sampan/services/proxy/internal/servicemap"
)

// manyServices have four endpoints each, of which those of the first twenty
// Services are on this node.
func manyServices(s *iptables.Syncer, n int) {
	for i := range n {
		name := fmt.Sprintf("svc-%d", i)
		ip := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
		var endpoints []string
		for e := range 4 {
			endpoints = append(endpoints, fmt.Sprintf("10.244.%d.%d:8080", (i>>6)&255, (i*4+e)&255))
		}
		port := newPort(name, ip.String(), endpoints...)
		for e := range port.Endpoints {
			port.Endpoints[e].Local = i < 20
		}
		s.SetService("default/"+name, []servicemap.Port{port})
	}
}

func changeOne(s *iptables.Syncer, i int) {
	port := newPort("svc-77", "10.96.0.77", fmt.Sprintf("10.244.1.%d:8080", i%250+1))
	port.Endpoints[0].Local = false
	s.SetService("default/svc-77", []servicemap.Port{port})
}

// measuring takes the texts without looking at them.
type measuring struct{ bytes, restores int }

func (m *measuring) Save(context.Context, string) (string, error) { return "", nil }

func (m *measuring) Restore(_ context.Context, input string) error {
	m.bytes, m.restores = m.bytes+len(input), m.restores+1
	return nil
}

func TestOneChangeIsWrittenAloneAmongMany(t *testing.T) {
	var sizes []int
	for _, n := range []int{100, 10000} {
		kernel := &measuring{}
		s := iptables.NewSyncer(config(), kernel)
		manyServices(s, n)
		mustSync(t, s)
		*kernel = measuring{}
		changeOne(s, 1)
		mustSync(t, s)
		if kernel.restores != 1 {
			t.Errorf("%d restores for one change", kernel.restores)
		}
		sizes = append(sizes, kernel.bytes)
		allocated := testing.AllocsPerRun(10, func() { changeOne(s, 2); mustSync(t, s); changeOne(s, 3); mustSync(t, s) })
		if allocated > 1000 {
			t.Errorf("two changes among %d Services take %.0f allocations", n, allocated)
		}
	}
	if sizes[0] != sizes[1] {
		t.Errorf("a change writes %d bytes among 100 Services and %d among 10,000", sizes[0], sizes[1])
	}
}

func newVariant(tb testing.TB, variant string) iptables.Command {
	tb.Helper()
	c := iptables.Command{RestorePath: "iptables-" + variant + "-restore", SavePath: "iptables-" + variant + "-save"}
	if _, err := exec.LookPath(c.RestorePath); err != nil {
		tb.Skip(err)
	}
	return c
}

func eachSize(b *testing.B, sizes []int, run func(b *testing.B, s *iptables.Syncer)) {
	for _, variant := range []string{"nft", "legacy"} {
		for _, n := range sizes {
			b.Run(fmt.Sprintf("%s/%d", variant, n), func(b *testing.B) {
				enterNamespace(b)
				c := newVariant(b, variant)
				rules := config()
				rules.SectionChains = c.SectionChains(b.Context())
				s := iptables.NewSyncer(rules, c)
				manyServices(s, n)
				run(b, s)
			})
		}
	}
}

func BenchmarkFullSync(b *testing.B) {
	eachSize(b, []int{1000, 5000}, func(b *testing.B, s *iptables.Syncer) {
		i := byte(0)
		for b.Loop() {
			i++ // new base rules ask for a full sync
			s.SetLocalPods(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, i, 0}), 24))
			mustSync(b, s)
		}
	})
}

func BenchmarkOneServiceChanged(b *testing.B) {
	eachSize(b, []int{100, 1000, 10000}, func(b *testing.B, s *iptables.Syncer) {
		mustSync(b, s)
		i := 0
		for b.Loop() {
			i++
			changeOne(s, i)
			mustSync(b, s)
		}
	})
}
