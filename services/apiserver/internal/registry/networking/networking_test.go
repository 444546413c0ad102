package networking

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

func errorsOf(r *registry.Resource, obj runtime.Object) string {
	if r.Strategy.Default != nil {
		r.Strategy.Default(obj)
	}
	if err := r.Strategy.Validate(context.Background(), obj).ToAggregate(); err != nil {
		return err.Error()
	}
	return ""
}

func TestNetworkPolicies(t *testing.T) {
	r := NetworkPolicies()
	policy := func(peer networkingv1.NetworkPolicyPeer, ports ...networkingv1.NetworkPolicyPort) *networkingv1.NetworkPolicy {
		return &networkingv1.NetworkPolicy{Spec: networkingv1.NetworkPolicySpec{Egress: []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{peer}, Ports: ports}}}}
	}
	block := func(cidr string, except ...string) networkingv1.NetworkPolicyPeer {
		return networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: cidr, Except: except}}
	}
	p := policy(block("10.0.0.0/8", "10.1.0.0/16"), networkingv1.NetworkPolicyPort{Port: ptr.To(intstr.FromInt32(80)), EndPort: ptr.To(int32(90))})
	if got := errorsOf(r, p); got != "" {
		t.Error(got)
	}
	if len(p.Spec.PolicyTypes) != 2 || *p.Spec.Egress[0].Ports[0].Protocol != corev1.ProtocolTCP {
		t.Errorf("policy is %+v", p.Spec)
	}
	for want, bad := range map[string]*networkingv1.NetworkPolicy{
		"spec.egress[0].to[0]: Required value: must specify a peer":                                                                    policy(networkingv1.NetworkPolicyPeer{}),
		"spec.egress[0].to[0].ipBlock.except[0]: Invalid value: \"192.168.0.0/16\": must be a strict subset of `cidr`: \"10.0.0.0/8\"": policy(block("10.0.0.0/8", "192.168.0.0/16")),
		"spec.egress[0].ports[0].port: Required value: may not be empty when `endPort` is specified":                                   policy(block("10.0.0.0/8"), networkingv1.NetworkPolicyPort{EndPort: ptr.To(int32(1))}),
	} {
		if got := errorsOf(r, bad); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestIngresses(t *testing.T) {
	r := Ingresses()
	ingress := func(path string, kind networkingv1.PathType, service string) *networkingv1.Ingress {
		return &networkingv1.Ingress{Spec: networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{{Host: "*.example.com", IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{
			Paths: []networkingv1.HTTPIngressPath{{Path: path, PathType: &kind, Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: service, Port: networkingv1.ServiceBackendPort{Number: 80}}}}},
		}}}}}}
	}
	for want, i := range map[string]*networkingv1.Ingress{
		"":                         ingress("/a", networkingv1.PathTypePrefix, "web"),
		"must be an absolute path": ingress("a", networkingv1.PathTypeExact, "web"),
		"must not contain '/../'":  ingress("/a/../b", networkingv1.PathTypeExact, "web"),
		"spec.rules[0].http.paths[0].backend.service.name: Required value": ingress("/", networkingv1.PathTypeExact, ""),
		"either `defaultBackend` or `rules` must be specified":             {},
	} {
		if got := errorsOf(r, i); !strings.Contains(got, want) || (want == "" && got != "") {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if r.KeyPrefix != "/registry/ingress" {
		t.Errorf("ingresses are kept at %s", r.KeyPrefix)
	}
}

func TestIngressClasses(t *testing.T) {
	r := IngressClasses()
	class := &networkingv1.IngressClass{Spec: networkingv1.IngressClassSpec{Controller: "example.com/ingress", Parameters: &networkingv1.IngressClassParametersReference{Kind: "K", Name: "n"}}}
	if got := errorsOf(r, class); got != "" || *class.Spec.Parameters.Scope != "Cluster" {
		t.Errorf("%q; class is %+v", got, class.Spec.Parameters)
	}
}
