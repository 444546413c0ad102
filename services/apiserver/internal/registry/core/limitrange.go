package core

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
)

// LimitRanges bound what single pods, containers and claims of a namespace may
// ask for.
func LimitRanges() *registry.Resource {
	return registry.Define(registry.Definition[*corev1.LimitRange]{
		GroupVersion: v1, Resource: "limitranges", Kind: "LimitRange", Singular: "limitrange", ShortNames: []string{"limits"},
		Namespaced: true,
		New:        func() *corev1.LimitRange { return &corev1.LimitRange{} },
		NewList:    func() runtime.Object { return &corev1.LimitRangeList{} },
		KeyPrefix:  "/registry/limitranges",
		Strategy: registry.Behaviour[*corev1.LimitRange]{
			Default: defaultLimitRange,
			PrepareForCreate: func(_ context.Context, obj *corev1.LimitRange) {
				if obj.Name == "" && obj.GenerateName == "" {
					obj.Name = uuid.NewString()
				}
			},
			Validate:            func(_ context.Context, obj *corev1.LimitRange) field.ErrorList { return validateLimitRange(obj) },
			ValidateUpdate:      func(_ context.Context, obj, _ *corev1.LimitRange) field.ErrorList { return validateLimitRange(obj) },
			AllowCreateOnUpdate: true,
		},
	})
}

func defaultLimitRange(obj *corev1.LimitRange) {
	for i := range obj.Spec.Limits {
		item := &obj.Spec.Limits[i]
		if item.Type == corev1.LimitTypeContainer {
			fillResources(&item.Default, item.Max)
			fillResources(&item.DefaultRequest, item.Default)
			fillResources(&item.DefaultRequest, item.Min)
		}
		for _, list := range []corev1.ResourceList{item.Max, item.Min, item.Default, item.DefaultRequest, item.MaxLimitRequestRatio} {
			podspec.RoundQuantities(list)
		}
	}
}

// fillResources adds what list lacks of from.
func fillResources(list *corev1.ResourceList, from corev1.ResourceList) {
	if *list == nil {
		*list = corev1.ResourceList{}
	}
	for name, quantity := range from {
		if _, set := (*list)[name]; !set {
			(*list)[name] = quantity.DeepCopy()
		}
	}
}

func validateLimitRange(obj *corev1.LimitRange) field.ErrorList {
	var errs field.ErrorList
	types := map[corev1.LimitType]bool{}
	for i := range obj.Spec.Limits {
		item, at := &obj.Spec.Limits[i], field.NewPath("spec", "limits").Index(i)
		errs = append(errs, validateLimitType(item.Type, at.Child("type"))...)
		if types[item.Type] {
			errs = append(errs, field.Duplicate(at.Child("type"), item.Type))
		}
		types[item.Type] = true
		errs = append(errs, validateLimitNames(item, at)...)
		if item.Type == corev1.LimitTypePersistentVolumeClaim {
			_, least := item.Min[corev1.ResourceStorage]
			_, most := item.Max[corev1.ResourceStorage]
			if !least && !most {
				errs = append(errs, field.Required(at.Child("limits"), "either minimum or maximum storage value is required, but neither was provided"))
			}
		}
		errs = append(errs, validateLimitItem(item, at)...)
	}
	return errs
}

func validateLimitType(kind corev1.LimitType, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range utilvalidation.IsQualifiedName(string(kind)) {
		errs = append(errs, field.Invalid(path, kind, msg))
	}
	if len(errs) > 0 || strings.Contains(string(kind), "/") {
		return errs
	}
	switch kind {
	case corev1.LimitTypePod, corev1.LimitTypeContainer, corev1.LimitTypePersistentVolumeClaim:
		return nil
	}
	return field.ErrorList{field.Invalid(path, kind, "must be a standard limit type or fully qualified")}
}

func validateLimitNames(item *corev1.LimitRangeItem, path *field.Path) field.ErrorList {
	check := podspec.ResourceName
	if item.Type == corev1.LimitTypePod || item.Type == corev1.LimitTypeContainer {
		check = podspec.ContainerResourceName
	}
	var errs field.ErrorList
	for _, part := range []struct {
		name string
		list corev1.ResourceList
	}{
		{"max", item.Max}, {"min", item.Min}, {"default", item.Default}, {"defaultRequest", item.DefaultRequest},
		{"maxLimitRequestRatio", item.MaxLimitRequestRatio},
	} {
		if item.Type == corev1.LimitTypePod && strings.HasPrefix(part.name, "default") {
			if len(part.list) > 0 {
				errs = append(errs, field.Forbidden(path.Child(part.name), "may not be specified when `type` is 'Pod'"))
			}
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(part.list)) {
			errs = append(errs, check(name, path.Child(part.name).Key(string(name)))...)
		}
	}
	return errs
}

// validateLimitItem checks the numbers of one item against each other.
func validateLimitItem(item *corev1.LimitRangeItem, path *field.Path) field.ErrorList {
	names := map[corev1.ResourceName]bool{}
	for _, list := range []corev1.ResourceList{item.Max, item.Min, item.Default, item.DefaultRequest, item.MaxLimitRequestRatio} {
		for name := range list {
			names[name] = true
		}
	}
	defaults, requests := item.Default, item.DefaultRequest
	if item.Type == corev1.LimitTypePod {
		defaults, requests = nil, nil
	}
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(names)) {
		compare := func(low, high corev1.ResourceList, at, format string, shown corev1.ResourceList) {
			l, lset := low[name]
			h, hset := high[name]
			if lset && hset && l.Cmp(h) > 0 {
				errs = append(errs, field.Invalid(path.Child(at).Key(string(name)), shown[name], fmt.Sprintf(format, l.String(), h.String())))
			}
		}
		compare(item.Min, item.Max, "min", "min value %s is greater than max value %s", item.Min)
		compare(item.Min, requests, "defaultRequest", "min value %s is greater than default request value %s", requests)
		compare(requests, item.Max, "defaultRequest", "default request value %s is greater than max value %s", requests)
		compare(requests, defaults, "defaultRequest", "default request value %s is greater than default limit value %s", requests)
		compare(item.Min, defaults, "default", "min value %s is greater than default value %s", item.Min)
		compare(defaults, item.Max, "default", "default value %s is greater than max value %s", item.Max)
		errs = append(errs, validateRatio(item, name, path.Child("maxLimitRequestRatio").Key(string(name)))...)
		d, dset := defaults[name]
		r, rset := requests[name]
		if dset && rset && !podspec.Overcommits(name) && d.Cmp(r) != 0 {
			errs = append(errs, field.Invalid(path.Child("defaultRequest").Key(string(name)), r, fmt.Sprintf("default value %s must equal to defaultRequest value %s in %s", d.String(), r.String(), name)))
		}
	}
	return errs
}

func validateRatio(item *corev1.LimitRangeItem, name corev1.ResourceName, path *field.Path) field.ErrorList {
	ratio, set := item.MaxLimitRequestRatio[name]
	if !set {
		return nil
	}
	var errs field.ErrorList
	if ratio.Cmp(*resource.NewQuantity(1, resource.DecimalSI)) < 0 {
		errs = append(errs, field.Invalid(path, ratio, fmt.Sprintf("ratio %s is less than 1", ratio.String())))
	}
	least, lset := item.Min[name]
	most, mset := item.Max[name]
	if lset && mset && least.Sign() > 0 {
		if widest := most.AsApproximateFloat64() / least.AsApproximateFloat64(); ratio.AsApproximateFloat64() > widest {
			errs = append(errs, field.Invalid(path, ratio, fmt.Sprintf("ratio %s is greater than max/min = %f", ratio.String(), widest)))
		}
	}
	return errs
}
