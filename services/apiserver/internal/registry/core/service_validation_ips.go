package core

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry/allocator"
)

// validateClusterIPFields checks clusterIPs, ipFamilies and ipFamilyPolicy as
// far as they can be before addresses are given out.
func validateClusterIPFields(obj *corev1.Service) field.ErrorList {
	spec := &obj.Spec
	if spec.Type == corev1.ServiceTypeExternalName {
		return nil // refused with the type
	}
	path := field.NewPath("spec")
	ips := path.Child("clusterIPs")
	var errs field.ErrorList
	switch {
	case spec.ClusterIP != "" && len(spec.ClusterIPs) == 0:
		errs = append(errs, field.Required(ips, ""))
	case spec.ClusterIP != "" && spec.ClusterIPs[0] != spec.ClusterIP:
		errs = append(errs, field.Invalid(ips, spec.ClusterIPs, "first value must match `clusterIP`"))
	case spec.ClusterIP == "" && len(spec.ClusterIPs) != 0:
		errs = append(errs, field.Invalid(ips, spec.ClusterIPs, "must be empty when `clusterIP` is not specified"))
	}
	for i, family := range spec.IPFamilies {
		at := path.Child("ipFamilies").Index(i)
		errs = append(errs, oneOf(family, at, corev1.IPv4Protocol, corev1.IPv6Protocol)...)
		if slices.Contains(spec.IPFamilies[:i], family) {
			errs = append(errs, field.Duplicate(at, family))
		}
	}
	if p := spec.IPFamilyPolicy; p != nil {
		errs = append(errs, oneOf(*p, path.Child("ipFamilyPolicy"),
			corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack, corev1.IPFamilyPolicySingleStack)...)
	}
	return append(errs, validateClusterIPs(obj, ips)...)
}

func validateClusterIPs(obj *corev1.Service, path *field.Path) field.ErrorList {
	ips, families := obj.Spec.ClusterIPs, obj.Spec.IPFamilies
	var errs field.ErrorList
	bad := false
	for i, text := range ips {
		if i == 0 && text == corev1.ClusterIPNone {
			if len(ips) > 1 {
				bad = true
				errs = append(errs, field.Invalid(path, ips, "'None' must be the first and only value"))
			}
			continue
		}
		found := utilvalidation.IsValidIPForLegacyField(path.Index(i), text, true, nil)
		bad = bad || len(found) > 0
		errs = append(errs, found...)
	}
	if len(ips) > 2 {
		errs = append(errs, field.Invalid(path, ips, "may only hold up to 2 values"))
	}
	if bad || isHeadless(obj) {
		return errs
	}
	seen := map[corev1.IPFamily]bool{}
	twice := false
	for i, text := range ips {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			continue
		}
		family := allocator.FamilyOf(addr)
		twice = twice || seen[family]
		seen[family] = true
		if i < len(families) && family != families[i] && slices.Contains([]corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}, families[i]) {
			errs = append(errs, field.Invalid(path.Index(i), text, fmt.Sprintf("expected an %s value as indicated by `ipFamilies[%v]`", families[i], i)))
		}
	}
	if twice {
		errs = append(errs, field.Invalid(path, ips, "may specify no more than one IP for each IP family"))
	}
	return errs
}
