package core

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
)

// validateNode reports taints below metadata, where upstream reports them.
func validateNode(obj *corev1.Node) field.ErrorList {
	errs := validateTaints(obj.Spec.Taints, field.NewPath("metadata", "taints"))
	errs = append(errs, validateNodeResources(obj)...)
	return append(errs, validatePodCIDRs(obj.Spec.PodCIDRs, field.NewPath("spec", "podCIDRs"))...)
}

func validateNodeResources(obj *corev1.Node) field.ErrorList {
	var errs field.ErrorList
	for child, list := range map[string]corev1.ResourceList{"capacity": obj.Status.Capacity, "allocatable": obj.Status.Allocatable} {
		for name, quantity := range list {
			errs = append(errs, podspec.ValidateQuantity(name, quantity, field.NewPath("status", child, string(name)))...)
		}
	}
	return errs
}

func validatePodCIDRs(cidrs []string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	v4, v6 := 0, 0
	for i, cidr := range cidrs {
		bad := utilvalidation.IsValidCIDR(path.Index(i), cidr)
		errs = append(errs, bad...)
		if len(bad) > 0 {
			continue
		}
		if isIPv6CIDR(cidr) {
			v6++
		} else {
			v4++
		}
	}
	if len(cidrs) > 2 || v4 > 1 || v6 > 1 {
		errs = append(errs, field.Invalid(path, cidrs, "may specify no more than one CIDR for each IP family"))
	}
	for i := range cidrs {
		if slices.Contains(cidrs[:i], cidrs[i]) {
			errs = append(errs, field.Duplicate(path.Index(i), cidrs[i]))
		}
	}
	return errs
}

func validateTaints(taints []corev1.Taint, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	type keyEffect struct {
		key    string
		effect corev1.TaintEffect
	}
	seen := map[keyEffect]bool{}
	for i, taint := range taints {
		at := path.Index(i)
		errs = append(errs, metav1validation.ValidateLabelName(taint.Key, at.Child("key"))...)
		if msgs := utilvalidation.IsValidLabelValue(taint.Value); len(msgs) > 0 {
			errs = append(errs, field.Invalid(at.Child("value"), taint.Value, strings.Join(msgs, ";")))
		}
		errs = append(errs, podspec.ValidateTaintEffect(taint.Effect, at.Child("effect"))...)
		id := keyEffect{taint.Key, taint.Effect}
		if seen[id] {
			duplicate := field.Duplicate(at, taint)
			duplicate.Detail = "taints must be unique by key and effect pair"
			errs = append(errs, duplicate)
			continue
		}
		seen[id] = true
	}
	return errs
}

// validateNodeUpdate lets the network's allocation and the provider's id be set
// once. Taints, unschedulable and the status may change.
func validateNodeUpdate(_ context.Context, obj, old *corev1.Node) field.ErrorList {
	spec := field.NewPath("spec")
	errs := validateNodeResources(obj)
	addresses := map[corev1.NodeAddress]bool{}
	for i, address := range obj.Status.Addresses {
		if addresses[address] {
			errs = append(errs, field.Duplicate(field.NewPath("status", "addresses").Index(i), address))
		}
		addresses[address] = true
	}
	if len(old.Spec.PodCIDRs) > 0 {
		if !slices.Equal(old.Spec.PodCIDRs, obj.Spec.PodCIDRs) {
			errs = append(errs, field.Forbidden(spec.Child("podCIDRs"), "node updates may not change podCIDR except from \"\" to valid"))
		}
	} else {
		errs = append(errs, validatePodCIDRs(obj.Spec.PodCIDRs, spec.Child("podCIDRs"))...)
	}
	if old.Spec.ProviderID != "" && old.Spec.ProviderID != obj.Spec.ProviderID {
		errs = append(errs, field.Forbidden(spec.Child("providerID"), "node updates may not change providerID except from \"\" to valid"))
	}
	errs = append(errs, validateTaints(obj.Spec.Taints, field.NewPath("metadata", "taints"))...)
	if obj.Spec.DoNotUseExternalID != old.Spec.DoNotUseExternalID {
		errs = append(errs, field.Forbidden(spec.Child("externalID"), "may not be updated"))
	}
	return errs
}

func warnOfNode(_ context.Context, obj, old *corev1.Node) []string {
	var warnings []string
	if obj.Spec.ConfigSource != nil && (old == nil || old.Spec.ConfigSource == nil) {
		warnings = append(warnings, "spec.configSource: deprecated in v1.22, support removal is planned in v1.26")
	}
	if obj.Spec.DoNotUseExternalID != "" && (old == nil || old.Spec.DoNotUseExternalID == "") {
		warnings = append(warnings, fmt.Sprintf("%s: deprecated in v1.7, ignored by node controllers", "spec.externalID"))
	}
	return warnings
}
