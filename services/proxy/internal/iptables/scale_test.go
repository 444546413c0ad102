package iptables_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/sampan-io/sampan/services/proxy/internal/iptables"
	"github.com/sampan-io/sampan/services/proxy/internal/servicemap"
)

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

func TestScale(t *testing.T) {
	for _, variant := range []string{"nft", "legacy"} {
		for _, n := range []int{1000, 5000, 10000} {
			t.Run(fmt.Sprintf("%s/%d", variant, n), func(t *testing.T) {
				enterNamespace(t)
				c := iptables.Command{RestorePath: "/usr/sbin/iptables-" + variant + "-restore", SavePath: "/usr/sbin/iptables-" + variant + "-save"}
				cfg := config()
				cfg.SectionChains = c.SectionChains(t.Context())
				s := iptables.NewSyncer(cfg, c)
				manyServices(s, n)
				began := time.Now()
				mustSync(t, s)
				t.Logf("full %s", time.Since(began))
				for i := range 3 {
					began = time.Now()
					s.SetService("default/svc-7", []servicemap.Port{newPort("svc-7", "10.96.0.7", fmt.Sprintf("10.244.1.%d:8080", i))})
					mustSync(t, s)
					t.Logf("endpoints %s", time.Since(began))
					began = time.Now()
					s.SetService("default/svc-9", nil)
					mustSync(t, s)
					t.Logf("remove %s", time.Since(began))
					began = time.Now()
					s.SetService("default/svc-9", []servicemap.Port{newPort("svc-9", "10.96.0.9", "10.244.1.2:8080")})
					mustSync(t, s)
					t.Logf("add %s", time.Since(began))
				}
				began = time.Now()
				changed, err := s.Check(t.Context())
				t.Logf("check %s %v %v", time.Since(began), changed, err)
			})
		}
	}
}
