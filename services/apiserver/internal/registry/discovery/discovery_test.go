package discovery

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func slice(kind discoveryv1.AddressType, addresses ...string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "web-1", CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Hour * 30))},
		AddressType: kind, Endpoints: []discoveryv1.Endpoint{{Addresses: addresses}},
	}
}

func errorsOf(obj, old *discoveryv1.EndpointSlice) string {
	s := EndpointSlices().Strategy
	s.Default(obj)
	errs := s.Validate(context.Background(), obj)
	if old != nil {
		errs = s.ValidateUpdate(context.Background(), obj, old)
	}
	if err := errs.ToAggregate(); err != nil {
		return err.Error()
	}
	return ""
}

func TestPortsDefault(t *testing.T) {
	s := slice("IPv4", "10.0.0.1")
	s.Ports = []discoveryv1.EndpointPort{{}}
	if got := errorsOf(s, nil); got != "" || *s.Ports[0].Name != "" || *s.Ports[0].Protocol != "TCP" {
		t.Errorf("%q; ports are %+v", got, s.Ports)
	}
}

func TestRefusals(t *testing.T) {
	host := slice("IPv4", "10.0.0.1")
	host.Endpoints[0].Hostname = ptr.To("a.b")
	topology := slice("IPv4", "10.0.0.1")
	topology.Endpoints[0].DeprecatedTopology = map[string]string{"kubernetes.io/hostname": "n"}
	ports := slice("IPv4", "10.0.0.1")
	ports.Ports = []discoveryv1.EndpointPort{{Port: ptr.To(int32(0))}, {}}
	hints := slice("IPv4", "10.0.0.1")
	hints.Endpoints[0].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "z"}, {Name: "z"}}}
	for _, c := range []struct {
		obj  *discoveryv1.EndpointSlice
		want string
	}{
		{slice("IPv6", "fd00::1"), ""},
		{slice("FQDN", "web.example.com"), ""},
		{slice("", "10.0.0.1"), "addressType: Required value"},
		{slice("IPX", "10.0.0.1"), `addressType: Unsupported value: "IPX": supported values: "FQDN", "IPv4", "IPv6"`},
		{slice("IPv4"), "endpoints[0].addresses: Required value: must contain at least 1 address"},
		{slice("IPv4", "fd00::1"), `endpoints[0].addresses[0]: Invalid value: "fd00::1": must be an IPv4 address`},
		{slice("IPv6", "10.0.0.1"), `endpoints[0].addresses[0]: Invalid value: "10.0.0.1": must be an IPv6 address`},
		{slice("IPv4", "127.0.0.1"), `endpoints[0].addresses[0]: Invalid value: "127.0.0.1": may not be in the loopback range`},
		{host, `endpoints[0].hostname: Invalid value: "a.b": `},
		{topology, "may not be set; use nodeName instead"},
		{ports, "ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive"},
		{ports, `ports[1].name: Duplicate value: ""`},
		{hints, `endpoints[0].hints.forZones[1].name: Duplicate value: "z"`},
	} {
		if got := errorsOf(c.obj, nil); !strings.Contains(got, c.want) || (c.want == "" && got != "") {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	if got, want := errorsOf(slice("IPv6", "fd00::1"), slice("IPv4", "10.0.0.1")), `addressType: Invalid value: "IPv6": field is immutable`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestRow(t *testing.T) {
	s := slice("IPv4")
	s.Endpoints = nil
	for i := range 5 {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.0.0.%d", i+1)}})
	}
	s.Ports = []discoveryv1.EndpointPort{{Port: ptr.To(int32(80))}, {Name: ptr.To("all")}}
	want := []any{"web-1", "IPv4", "80,all", "10.0.0.1,10.0.0.2,10.0.0.3 + 2 more...", "30h"}
	if got := EndpointSlices().Table.Cells(s, time.Now()); !slices.Equal(got, want) {
		t.Errorf("row is %v, want %v", got, want)
	}
	if got := EndpointSlices().Table.Cells(&discoveryv1.EndpointSlice{}, time.Now()); got[2] != "<unset>" || got[3] != "<unset>" {
		t.Errorf("row is %v", got)
	}
}
