package networking

import (
	"context"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func cidrs(list ...string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: list}}
}

func TestServiceCIDRRefusals(t *testing.T) {
	for want, obj := range map[string]*networkingv1.ServiceCIDR{
		"": cidrs("10.0.0.0/24", "fd00::/112"),
		"spec.cidrs: Required value: at least one CIDR required": cidrs(),
		"may only hold up to 2 values":                           cidrs("10.0.0.0/24", "fd00::/112", "10.1.0.0/24"),
		"no more than one IP for each IP family":                 cidrs("10.0.0.0/24", "10.1.0.0/24"),
		`spec.cidrs[0]: Invalid value: "10.0.0.1/24"`:            cidrs("10.0.0.1/24"),
	} {
		got := ""
		if err := ServiceCIDRs().Strategy.Validate(context.Background(), obj).ToAggregate(); err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestServiceCIDRMayOnlyGainAFamily(t *testing.T) {
	update := func(now, was *networkingv1.ServiceCIDR) int {
		return len(ServiceCIDRs().Strategy.ValidateUpdate(context.Background(), now, was))
	}
	one, two := cidrs("10.0.0.0/24"), cidrs("10.0.0.0/24", "fd00::/112")
	if n := update(two, one); n != 0 {
		t.Errorf("adding a family is refused with %d errors", n)
	}
	for _, now := range []*networkingv1.ServiceCIDR{cidrs("10.1.0.0/24"), cidrs("10.0.0.0/24", "10.1.0.0/24"), cidrs()} {
		if update(now, one) == 0 {
			t.Errorf("%v is accepted", now.Spec.CIDRs)
		}
	}
	if update(one, two) == 0 {
		t.Error("dropping a family is accepted")
	}
}

func TestIPAddressRefusals(t *testing.T) {
	address := func(parent *networkingv1.ParentReference) *networkingv1.IPAddress {
		return &networkingv1.IPAddress{Spec: networkingv1.IPAddressSpec{ParentRef: parent}}
	}
	for want, obj := range map[string]*networkingv1.IPAddress{
		"":                               address(&networkingv1.ParentReference{Resource: "services", Namespace: "default", Name: "web"}),
		"spec.parentRef: Required value": address(nil),
		"spec.parentRef.resource: Required value":     address(&networkingv1.ParentReference{Name: "web"}),
		"spec.parentRef.name: Required value":         address(&networkingv1.ParentReference{Resource: "services"}),
		`spec.parentRef.name: Invalid value: "a/b": `: address(&networkingv1.ParentReference{Resource: "services", Name: "a/b"}),
	} {
		got := ""
		if err := IPAddresses().Strategy.Validate(context.Background(), obj).ToAggregate(); err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	for name, ok := range map[string]bool{"10.0.0.1": true, "fd00::1": true, "010.0.0.1": false, "FD00::1": false, "web": false} {
		if msgs := IPAddresses().Strategy.ValidateName(name, false); (len(msgs) == 0) != ok {
			t.Errorf("%s: %v", name, msgs)
		}
	}
}

func TestIPAddressRow(t *testing.T) {
	obj := &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: "10.0.0.1"}}
	obj.Spec.ParentRef = &networkingv1.ParentReference{Group: "g.io", Resource: "things", Namespace: "ns", Name: "x"}
	if got := IPAddresses().Table.Row(obj); !slices.Equal(got, []any{"10.0.0.1", "things.g.io/ns/x"}) {
		t.Errorf("row is %v", got)
	}
}
