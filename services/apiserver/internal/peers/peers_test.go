package peers_test

import (
	"fmt"
	"net"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/sampan-io/sampan/services/apiserver/internal/peers"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage/memory"
)

func assertAddresses(t *testing.T, p *peers.Peers, want string) {
	t.Helper()
	got, err := p.Addresses(t.Context())
	if err != nil || fmt.Sprint(got) != want {
		t.Errorf("the servers are %v, %v; want %s", got, err, want)
	}
}

func TestPeersComeAndGo(t *testing.T) {
	store := memory.New()
	a, b := peers.New(store, net.IPv4(10, 0, 0, 2)), peers.New(store, net.IPv4(10, 0, 0, 1))
	for _, p := range []*peers.Peers{a, b, a, a} {
		if err := p.Announce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	assertAddresses(t, a, "[10.0.0.1 10.0.0.2]")
	kv, err := store.Get(t.Context(), "/registry/masterleases/10.0.0.1", 0)
	if err != nil {
		t.Fatal(err)
	}
	obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(kv.Value, nil, nil)
	if endpoints, ok := obj.(*corev1.Endpoints); err != nil || !ok || endpoints.Subsets[0].Addresses[0].IP != "10.0.0.1" { //nolint:staticcheck // the kind that upstream stores
		t.Errorf("stored is %+v, %v", obj, err)
	}
	if err := b.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	assertAddresses(t, a, "[10.0.0.2]")

	again := peers.New(store, net.IPv4(10, 0, 0, 2)) // restarted within its old life
	if err := again.Announce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := a.Announce(t.Context()); err != nil {
		t.Errorf("after a key was written by another: %v", err)
	}
	assertAddresses(t, a, "[10.0.0.2]")
}
