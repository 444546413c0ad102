package networking

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// NetworkPolicies say which traffic pods take and make.
func NetworkPolicies() *registry.Resource {
	return registry.Define(registry.Definition[*networkingv1.NetworkPolicy]{
		GroupVersion: v1, Resource: "networkpolicies", Kind: "NetworkPolicy", Singular: "networkpolicy", ShortNames: []string{"netpol"},
		Namespaced: true,
		New:        func() *networkingv1.NetworkPolicy { return &networkingv1.NetworkPolicy{} },
		NewList:    func() runtime.Object { return &networkingv1.NetworkPolicyList{} },
		KeyPrefix:  "/registry/networkpolicies",
		Strategy: registry.Behaviour[*networkingv1.NetworkPolicy]{
			Default: defaultPolicy,
			Validate: func(_ context.Context, obj *networkingv1.NetworkPolicy) field.ErrorList {
				return validatePolicy(&obj.Spec, nil)
			},
			ValidateUpdate: func(_ context.Context, obj, old *networkingv1.NetworkPolicy) field.ErrorList {
				return validatePolicy(&obj.Spec, &old.Spec)
			},
			Warnings: warnOfPolicy,
			SpecOf:   func(obj *networkingv1.NetworkPolicy) any { return &obj.Spec },
		},
		Columns: []metav1.TableColumnDefinition{
			table.Name(), table.String("Pod-Selector", networkingv1.NetworkPolicySpec{}.SwaggerDoc()["podSelector"]), table.Age(),
		},
		Row: func(obj *networkingv1.NetworkPolicy) []any {
			return []any{obj.Name, table.Selector(&obj.Spec.PodSelector), table.Since(obj.CreationTimestamp)}
		},
	})
}

func defaultPolicy(obj *networkingv1.NetworkPolicy) {
	if len(obj.Spec.PolicyTypes) == 0 {
		obj.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(obj.Spec.Egress) != 0 {
			obj.Spec.PolicyTypes = append(obj.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
		}
	}
	ports := func(list []networkingv1.NetworkPolicyPort) {
		for i := range list {
			if list[i].Protocol == nil {
				list[i].Protocol = ptr.To(corev1.ProtocolTCP)
			}
		}
	}
	for i := range obj.Spec.Ingress {
		ports(obj.Spec.Ingress[i].Ports)
	}
	for i := range obj.Spec.Egress {
		ports(obj.Spec.Egress[i].Ports)
	}
}

func validatePolicy(spec, old *networkingv1.NetworkPolicySpec) field.ErrorList {
	path := field.NewPath("spec")
	errs := metav1validation.ValidateLabelSelector(&spec.PodSelector, metav1validation.LabelSelectorValidationOptions{}, path.Child("podSelector"))
	known := cidrsOf(old)
	for i, rule := range spec.Ingress {
		errs = append(errs, validateRule(rule.Ports, rule.From, known, path.Child("ingress").Index(i), "from")...)
	}
	for i, rule := range spec.Egress {
		errs = append(errs, validateRule(rule.Ports, rule.To, known, path.Child("egress").Index(i), "to")...)
	}
	types := path.Child("policyTypes")
	if len(spec.PolicyTypes) > 2 {
		return append(errs, field.Invalid(types, &spec.PolicyTypes, "may not specify more than two policyTypes"))
	}
	for i, kind := range spec.PolicyTypes {
		errs = append(errs, oneOf(kind, types.Index(i), networkingv1.PolicyTypeEgress, networkingv1.PolicyTypeIngress)...)
	}
	return errs
}

// cidrsOf are the ranges of a policy, which an update may keep however they are
// written.
func cidrsOf(spec *networkingv1.NetworkPolicySpec) []string {
	if spec == nil {
		return nil
	}
	var out []string
	add := func(peers []networkingv1.NetworkPolicyPeer) {
		for _, peer := range peers {
			if peer.IPBlock != nil {
				out = append(append(out, peer.IPBlock.CIDR), peer.IPBlock.Except...)
			}
		}
	}
	for _, rule := range spec.Ingress {
		add(rule.From)
	}
	for _, rule := range spec.Egress {
		add(rule.To)
	}
	return out
}

func validateRule(ports []networkingv1.NetworkPolicyPort, peers []networkingv1.NetworkPolicyPeer, known []string, path *field.Path, direction string) field.ErrorList {
	var errs field.ErrorList
	for i := range ports {
		errs = append(errs, validatePolicyPort(&ports[i], path.Child("ports").Index(i))...)
	}
	for i := range peers {
		errs = append(errs, validatePeer(&peers[i], known, path.Child(direction).Index(i))...)
	}
	return errs
}

func validatePolicyPort(port *networkingv1.NetworkPolicyPort, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if port.Protocol != nil {
		errs = append(errs, oneOf(*port.Protocol, path.Child("protocol"), corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP)...)
	}
	end := path.Child("endPort")
	if port.Port == nil {
		if port.EndPort != nil {
			errs = append(errs, field.Required(path.Child("port"), "may not be empty when `endPort` is specified"))
		}
		return errs
	}
	errs = append(errs, podspec.ValidatePort(*port.Port, path.Child("port"))...)
	if port.EndPort == nil {
		return errs
	}
	if port.Port.Type == intstr.String {
		return append(errs, field.Required(path.Child("port"), "may not be a name when `endPort` is specified"))
	}
	if *port.EndPort < port.Port.IntVal {
		errs = append(errs, field.Invalid(end, port.Port.IntVal, "must be greater than or equal to `port`"))
	}
	return append(errs, invalid(end, *port.EndPort, utilvalidation.IsValidPortNum(int(*port.EndPort)))...)
}

func validatePeer(peer *networkingv1.NetworkPolicyPeer, known []string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	options := metav1validation.LabelSelectorValidationOptions{}
	kinds := 0
	if peer.PodSelector != nil {
		kinds++
		errs = append(errs, metav1validation.ValidateLabelSelector(peer.PodSelector, options, path.Child("podSelector"))...)
	}
	if peer.NamespaceSelector != nil {
		kinds++
		errs = append(errs, metav1validation.ValidateLabelSelector(peer.NamespaceSelector, options, path.Child("namespaceSelector"))...)
	}
	switch {
	case peer.IPBlock != nil && kinds > 0:
		errs = append(errs, field.Forbidden(path, "may not specify both ipBlock and another peer"))
	case peer.IPBlock != nil:
		errs = append(errs, validateIPBlock(peer.IPBlock, known, path.Child("ipBlock"))...)
	case kinds == 0:
		errs = append(errs, field.Required(path, "must specify a peer"))
	}
	return errs
}

func validateIPBlock(block *networkingv1.IPBlock, known []string, path *field.Path) field.ErrorList {
	if block.CIDR == "" {
		return field.ErrorList{field.Required(path.Child("cidr"), "")}
	}
	errs := utilvalidation.IsValidCIDRForLegacyField(path.Child("cidr"), block.CIDR, true, known)
	whole, err := netip.ParsePrefix(block.CIDR)
	if err != nil {
		return errs
	}
	for i, text := range block.Except {
		at := path.Child("except").Index(i)
		bad := utilvalidation.IsValidCIDRForLegacyField(at, text, true, known)
		errs = append(errs, bad...)
		part, err := netip.ParsePrefix(text)
		if err != nil || len(bad) > 0 {
			continue
		}
		if !whole.Contains(part.Addr()) || part.Bits() <= whole.Bits() {
			errs = append(errs, field.Invalid(at, text, fmt.Sprintf("must be a strict subset of `cidr`: %q", block.CIDR)))
		}
	}
	return errs
}

func warnOfPolicy(_ context.Context, obj, old *networkingv1.NetworkPolicy) []string {
	var warnings []string
	before := []string(nil)
	if old != nil {
		before = cidrsOf(&old.Spec)
	}
	warn := func(path *field.Path, cidr string) {
		if !slices.Contains(before, cidr) {
			warnings = append(warnings, utilvalidation.GetWarningsForCIDR(path, cidr)...)
		}
	}
	peers := func(path *field.Path, list []networkingv1.NetworkPolicyPeer) {
		for i, peer := range list {
			if peer.IPBlock == nil {
				continue
			}
			at := path.Index(i).Child("ipBlock")
			warn(at.Child("cidr"), peer.IPBlock.CIDR)
			for j, except := range peer.IPBlock.Except {
				warn(at.Child("except").Index(j), except)
			}
		}
	}
	for i, rule := range obj.Spec.Ingress {
		peers(field.NewPath("spec", "ingress").Index(i).Child("from"), rule.From)
	}
	for i, rule := range obj.Spec.Egress {
		peers(field.NewPath("spec", "egress").Index(i).Child("to"), rule.To)
	}
	return warnings
}
