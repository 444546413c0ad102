package core

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry/allocator"
)

// setFamilies completes ipFamilyPolicy and ipFamilies from each other, from the
// cluster IPs and from what the cluster has (its families, the primary first).
func setFamilies(obj, old *corev1.Service, cluster []corev1.IPFamily) field.ErrorList {
	spec := &obj.Spec
	if !hasClusterIPType(obj) || unchangedPreferDual(obj, old) {
		return nil
	}
	headless := spec.ClusterIP == corev1.ClusterIPNone && len(spec.Selector) == 0
	if spec.IPFamilyPolicy == nil {
		switch {
		case old != nil && old.Spec.IPFamilyPolicy != nil:
			spec.IPFamilyPolicy = ptr.To(*old.Spec.IPFamilyPolicy)
		case headless:
			spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyRequireDualStack)
		default:
			spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicySingleStack)
		}
	}
	errs := validateClusterIPFields(obj)
	if len(errs) > 0 {
		return errs
	}
	errs = append(errs, shrinkFamilies(obj, old)...)
	errs = append(errs, inferFamilies(obj, cluster)...)
	if len(errs) > 0 {
		return errs
	}
	if headless {
		if len(spec.IPFamilies) == 0 {
			spec.IPFamilies = []corev1.IPFamily{cluster[0]}
		}
		if len(spec.IPFamilies) == 1 && *spec.IPFamilyPolicy != corev1.IPFamilyPolicySingleStack {
			spec.IPFamilies = append(spec.IPFamilies, otherFamily(spec.IPFamilies[0]))
		}
		return nil
	}
	return fitFamilies(obj, cluster)
}

// fitFamilies refuses what the cluster does not have and adds what the policy
// asks for.
func fitFamilies(obj *corev1.Service, cluster []corev1.IPFamily) field.ErrorList {
	spec, path := &obj.Spec, field.NewPath("spec")
	var errs field.ErrorList
	if *spec.IPFamilyPolicy == corev1.IPFamilyPolicyRequireDualStack && len(cluster) < 2 {
		errs = append(errs, field.Invalid(path.Child("ipFamilyPolicy"), spec.IPFamilyPolicy, "this cluster is not configured for dual-stack services"))
	}
	for i, family := range spec.IPFamilies {
		if !slices.Contains(cluster, family) {
			errs = append(errs, field.Invalid(path.Child("ipFamilies").Index(i), family, "not configured on this cluster"))
		}
	}
	if len(errs) > 0 {
		return errs
	}
	if len(spec.IPFamilies) == 0 {
		spec.IPFamilies = []corev1.IPFamily{cluster[0]}
	}
	if *spec.IPFamilyPolicy != corev1.IPFamilyPolicySingleStack && len(spec.IPFamilies) == 1 && len(cluster) == 2 {
		spec.IPFamilies = append(spec.IPFamilies, otherFamily(spec.IPFamilies[0]))
	}
	return nil
}

// shrinkFamilies drops the second family of a Service that became single-stack,
// and wants that said before anything is given up.
func shrinkFamilies(obj, old *corev1.Service) field.ErrorList {
	spec, path := &obj.Spec, field.NewPath("spec", "ipFamilyPolicy")
	single := *spec.IPFamilyPolicy == corev1.IPFamilyPolicySingleStack
	var errs field.ErrorList
	if old != nil && single {
		if slices.Equal(old.Spec.ClusterIPs, spec.ClusterIPs) && len(spec.ClusterIPs) > 1 {
			spec.ClusterIPs = spec.ClusterIPs[:1]
		}
		if slices.Equal(old.Spec.IPFamilies, spec.IPFamilies) && len(spec.IPFamilies) > 1 {
			spec.IPFamilies = spec.IPFamilies[:1]
		}
	}
	if old != nil && !single {
		if n := len(spec.ClusterIPs); n != 0 && n == 1 && len(old.Spec.ClusterIPs) == 2 {
			errs = append(errs, field.Invalid(path, spec.IPFamilyPolicy, "must be 'SingleStack' to release the secondary cluster IP"))
		}
		if n := len(spec.IPFamilies); n == 1 && len(old.Spec.IPFamilies) == 2 {
			errs = append(errs, field.Invalid(path, spec.IPFamilyPolicy, "must be 'SingleStack' to release the secondary IP family"))
		}
	}
	if single {
		if len(spec.ClusterIPs) == 2 {
			errs = append(errs, field.Invalid(path, spec.IPFamilyPolicy, "must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified"))
		}
		if len(spec.IPFamilies) == 2 {
			errs = append(errs, field.Invalid(path, spec.IPFamilyPolicy, "must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified"))
		}
	}
	return errs
}

// inferFamilies reads families that are not named from the cluster IPs that
// are.
func inferFamilies(obj *corev1.Service, cluster []corev1.IPFamily) field.ErrorList {
	spec := &obj.Spec
	var errs field.ErrorList
	for i, text := range spec.ClusterIPs {
		if text == corev1.ClusterIPNone {
			break
		}
		addr, err := netip.ParseAddr(text)
		if err != nil || i < len(spec.IPFamilies) {
			continue
		}
		family := allocator.FamilyOf(addr)
		if !slices.Contains(cluster, family) {
			errs = append(errs, field.Invalid(field.NewPath("spec", "clusterIPs").Index(i), spec.ClusterIPs, fmt.Sprintf("%s is not configured on this cluster", family)))
			continue
		}
		spec.IPFamilies = append(spec.IPFamilies, family)
	}
	return errs
}

// unchangedPreferDual says that an update leaves a PreferDualStack Service's
// addresses alone: it is then neither widened nor narrowed with the cluster.
func unchangedPreferDual(obj, old *corev1.Service) bool {
	if old == nil || old.Spec.Type == corev1.ServiceTypeExternalName {
		return false
	}
	was, now := old.Spec.IPFamilyPolicy, obj.Spec.IPFamilyPolicy
	if now == nil {
		now = was
	}
	if was == nil || now == nil || *was != corev1.IPFamilyPolicyPreferDualStack || *now != *was {
		return false
	}
	obj.Spec.IPFamilyPolicy = now
	if !slices.Equal(obj.Spec.ClusterIPs, old.Spec.ClusterIPs) {
		return false
	}
	if len(obj.Spec.IPFamilies) == 0 {
		obj.Spec.IPFamilies = slices.Clone(old.Spec.IPFamilies)
	}
	return slices.Equal(obj.Spec.IPFamilies, old.Spec.IPFamilies)
}

func otherFamily(family corev1.IPFamily) corev1.IPFamily {
	if family == corev1.IPv4Protocol {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}
