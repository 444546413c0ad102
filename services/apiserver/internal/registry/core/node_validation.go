package core

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
)

func validateNode(obj *corev1.Node) field.ErrorList {
	spec := field.NewPath("spec")
	errs := validateTaints(obj.Spec.Taints, spec.Child("taints"))
	errs = append(errs, validatePodCIDRs(obj.Spec.PodCIDRs, spec.Child("podCIDRs"))...)
	return append(errs, podspec.ValidateQuantities(obj.Status.Capacity, field.NewPath("status", "capacity"))...)
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
		for _, msg := range utilvalidation.IsQualifiedName(taint.Key) {
			errs = append(errs, field.Invalid(at.Child("key"), taint.Key, msg))
		}
		for _, msg := range utilvalidation.IsValidLabelValue(taint.Value) {
			errs = append(errs, field.Invalid(at.Child("value"), taint.Value, msg))
		}
		errs = append(errs, validateTaintEffect(taint.Effect, at.Child("effect"))...)
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

func validateTaintEffect(effect corev1.TaintEffect, path *field.Path) field.ErrorList {
	switch effect {
	case corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
		return nil
	case "":
		return field.ErrorList{field.Required(path, "")}
	default:
		return field.ErrorList{field.NotSupported(path, effect, []corev1.TaintEffect{
			corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute,
		})}
	}
}

// validateNodeUpdate lets the network's allocation and the provider's id be set
// once, and the rest of the spec but taints and unschedulable not at all.
func validateNodeUpdate(_ context.Context, obj, old *corev1.Node) field.ErrorList {
	spec := field.NewPath("spec")
	errs := validateNode(obj)
	errs = append(errs, podspec.ValidateQuantities(obj.Status.Allocatable, field.NewPath("status", "allocatable"))...)
	addresses := map[corev1.NodeAddress]bool{}
	for i, address := range obj.Status.Addresses {
		if addresses[address] {
			errs = append(errs, field.Duplicate(field.NewPath("status", "addresses").Index(i), address))
		}
		addresses[address] = true
	}
	if len(old.Spec.PodCIDRs) > 0 && !slices.Equal(old.Spec.PodCIDRs, obj.Spec.PodCIDRs) {
		errs = append(errs, field.Forbidden(spec.Child("podCIDRs"), "node updates may not change podCIDR except from \"\" to valid"))
	}
	if old.Spec.ProviderID != "" && old.Spec.ProviderID != obj.Spec.ProviderID {
		errs = append(errs, field.Forbidden(spec.Child("providerID"), "node updates may not change providerID except from \"\" to valid"))
	}
	if obj.Spec.ConfigSource != nil && !apiequality.Semantic.DeepEqual(obj.Spec.ConfigSource, old.Spec.ConfigSource) {
		errs = append(errs, field.Forbidden(spec.Child("configSource"), "node configSource is not supported"))
	}
	was := *old.DeepCopy()
	was.Spec.Taints, was.Spec.Unschedulable, was.Spec.ProviderID = obj.Spec.Taints, obj.Spec.Unschedulable, obj.Spec.ProviderID
	was.Spec.PodCIDR, was.Spec.PodCIDRs, was.Spec.ConfigSource = obj.Spec.PodCIDR, obj.Spec.PodCIDRs, obj.Spec.ConfigSource
	if !apiequality.Semantic.DeepEqual(was.Spec, obj.Spec) {
		errs = append(errs, field.Forbidden(spec, "node updates may only change labels, taints, or capacity"))
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
