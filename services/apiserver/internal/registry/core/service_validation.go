package core

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry/allocator"
)

func validateService(obj, _ *corev1.Service) field.ErrorList {
	spec, path := &obj.Spec, field.NewPath("spec")
	var errs field.ErrorList
	headless := spec.ClusterIP == corev1.ClusterIPNone
	if len(spec.Ports) == 0 && !headless && spec.Type != corev1.ServiceTypeExternalName {
		errs = append(errs, field.Required(path.Child("ports"), ""))
	}
	return append(errs, validateClusterIPFields(obj)...)
}

func validateServiceUpdate(obj, old *corev1.Service) field.ErrorList {
	return validateService(obj, old)
}

func validateServiceStatus(context.Context, *corev1.Service, *corev1.Service) field.ErrorList {
	return nil
}

func warnOfService(context.Context, *corev1.Service, *corev1.Service) []string { return nil }

// validateClusterIPFields checks clusterIPs, ipFamilies and ipFamilyPolicy as
// far as they can be before addresses are given out.
func validateClusterIPFields(obj *corev1.Service) field.ErrorList {
	spec, path := &obj.Spec, field.NewPath("spec")
	var errs field.ErrorList
	if spec.Type == corev1.ServiceTypeExternalName {
		if len(spec.ClusterIPs) > 0 {
			errs = append(errs, field.Forbidden(path.Child("clusterIPs"), "may not be set when `type` is 'ExternalName'"))
		}
		if len(spec.IPFamilies) > 0 {
			errs = append(errs, field.Forbidden(path.Child("ipFamilies"), "may not be set when `type` is 'ExternalName'"))
		}
		if spec.IPFamilyPolicy != nil {
			errs = append(errs, field.Forbidden(path.Child("ipFamilyPolicy"), "may not be set when `type` is 'ExternalName'"))
		}
		return errs
	}
	if spec.ClusterIP != "" && len(spec.ClusterIPs) == 0 {
		errs = append(errs, field.Required(path.Child("clusterIPs"), ""))
	} else if len(spec.ClusterIPs) > 0 && spec.ClusterIPs[0] != spec.ClusterIP && spec.ClusterIP != "" {
		errs = append(errs, field.Invalid(path.Child("clusterIPs").Index(0), spec.ClusterIPs[0], "first value must match `clusterIP`"))
	}
	errs = append(errs, validateFamilies(spec.IPFamilies, path.Child("ipFamilies"))...)
	errs = append(errs, validateClusterIPs(obj, path.Child("clusterIPs"))...)
	return errs
}

func validateFamilies(families []corev1.IPFamily, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	supported := []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	for i, family := range families {
		if !slices.Contains(supported, family) {
			errs = append(errs, field.NotSupported(path.Index(i), family, supported))
		} else if slices.Contains(families[:i], family) {
			errs = append(errs, field.Duplicate(path.Index(i), family))
		}
	}
	return errs
}

func validateClusterIPs(obj *corev1.Service, path *field.Path) field.ErrorList {
	ips, families := obj.Spec.ClusterIPs, obj.Spec.IPFamilies
	var errs field.ErrorList
	for i, text := range ips {
		if i == 0 && text == corev1.ClusterIPNone {
			if len(ips) > 1 {
				errs = append(errs, field.Invalid(path, ips, "'None' must be the first and only value"))
			}
			return errs
		}
		addr, err := netip.ParseAddr(text)
		if err != nil {
			errs = append(errs, field.Invalid(path.Index(i), text, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"))
			continue
		}
		if i < len(families) && allocator.FamilyOf(addr) != families[i] {
			errs = append(errs, field.Invalid(path.Index(i), text, fmt.Sprintf("expected an %s value as indicated by `ipFamilies[%v]`", families[i], i)))
		}
	}
	if len(ips) > 2 {
		errs = append(errs, field.Invalid(path, ips, "may only hold up to 2 values"))
	}
	if len(errs) == 0 && len(ips) == 2 {
		a, b := netip.MustParseAddr(ips[0]), netip.MustParseAddr(ips[1])
		if allocator.FamilyOf(a) == allocator.FamilyOf(b) {
			errs = append(errs, field.Invalid(path, ips, "may specify no more than one IP for each IP family"))
		}
	}
	return errs
}
