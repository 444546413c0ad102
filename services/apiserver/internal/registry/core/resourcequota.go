package core

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// ResourceQuotas bound what a namespace may use in sum.
func ResourceQuotas() *registry.Resource {
	status := quotaBehaviour()
	status.PrepareForUpdate = func(_ context.Context, obj, old *corev1.ResourceQuota) { obj.Spec = old.Spec }
	status.ValidateUpdate = func(_ context.Context, obj, _ *corev1.ResourceQuota) field.ErrorList {
		return validateQuotaStatus(&obj.Status)
	}
	status.ResetFields = []string{"spec"}
	return registry.Define(registry.Definition[*corev1.ResourceQuota]{
		GroupVersion: v1, Resource: "resourcequotas", Kind: "ResourceQuota", Singular: "resourcequota", ShortNames: []string{"quota"},
		ReturnDeleted: true,
		Namespaced:    true,
		New:           func() *corev1.ResourceQuota { return &corev1.ResourceQuota{} },
		NewList:       func() runtime.Object { return &corev1.ResourceQuotaList{} },
		KeyPrefix:     "/registry/resourcequotas",
		Strategy:      quotaBehaviour(),
		Columns: []metav1.TableColumnDefinition{
			table.Name(),
			table.String("Request", "Request represents a minimum amount of cpu/memory that a container may consume."),
			table.String("Limit", "Limits control the maximum amount of cpu/memory that a container may use independent of contention on the node."),
			table.Age(),
		},
		Row: func(obj *corev1.ResourceQuota) []any {
			requests, limits := quotaCells(obj)
			return []any{obj.Name, requests, limits, table.Since(obj.CreationTimestamp)}
		},
		Subresources: []registry.Subresource{
			{Name: "status", Verbs: readWrite(), Update: registry.Erase(status)},
		},
	})
}

func quotaCells(obj *corev1.ResourceQuota) (requests, limits string) {
	var r, l []string
	for _, name := range slices.Sorted(maps.Keys(obj.Status.Hard)) {
		used, hard := obj.Status.Used[name], obj.Status.Hard[name]
		text := fmt.Sprintf("%s: %s/%s", name, used.String(), hard.String())
		if strings.HasPrefix(string(name), "limits.") {
			l = append(l, text)
		} else {
			r = append(r, text)
		}
	}
	return strings.Join(r, ", "), strings.Join(l, ", ")
}

func quotaBehaviour() registry.Behaviour[*corev1.ResourceQuota] {
	return registry.Behaviour[*corev1.ResourceQuota]{
		Default: func(obj *corev1.ResourceQuota) {
			for _, list := range []corev1.ResourceList{obj.Spec.Hard, obj.Status.Hard, obj.Status.Used} {
				podspec.RoundQuantities(list)
			}
		},
		PrepareForCreate: func(_ context.Context, obj *corev1.ResourceQuota) { obj.Status = corev1.ResourceQuotaStatus{} },
		PrepareForUpdate: func(_ context.Context, obj, old *corev1.ResourceQuota) { obj.Status = old.Status },
		Validate: func(_ context.Context, obj *corev1.ResourceQuota) field.ErrorList {
			return append(validateQuotaSpec(&obj.Spec), validateQuotaStatus(&obj.Status)...)
		},
		ValidateUpdate: func(_ context.Context, obj, old *corev1.ResourceQuota) field.ErrorList {
			errs := validateQuotaSpec(&obj.Spec)
			now, was := slices.Clone(obj.Spec.Scopes), slices.Clone(old.Spec.Scopes)
			slices.Sort(now)
			slices.Sort(was)
			if !slices.Equal(slices.Compact(now), slices.Compact(was)) {
				errs = append(errs, field.Invalid(field.NewPath("spec", "scopes"), obj.Spec.Scopes, "field is immutable"))
			}
			return errs
		},
		ResetFields: []string{"status"},
	}
}

func validateQuotaList(list corev1.ResourceList, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(list)) {
		errs = append(errs, podspec.QuotaResourceName(name, path.Key(string(name)))...)
		errs = append(errs, podspec.ValidateQuantity(name, list[name], path.Key(string(name)))...)
	}
	return errs
}

func validateQuotaStatus(status *corev1.ResourceQuotaStatus) field.ErrorList {
	errs := validateQuotaList(status.Hard, field.NewPath("status", "hard"))
	return append(errs, validateQuotaList(status.Used, field.NewPath("status", "used"))...)
}

func validateQuotaSpec(spec *corev1.ResourceQuotaSpec) field.ErrorList {
	path := field.NewPath("spec")
	errs := validateQuotaList(spec.Hard, path.Child("hard"))
	scopes := map[corev1.ResourceQuotaScope]bool{}
	at := path.Child("scopes")
	for _, scope := range spec.Scopes {
		errs = append(errs, validateScope(scope, spec.Hard, spec.Scopes, at, at)...)
		scopes[scope] = true
	}
	errs = append(errs, validateScopePairs(scopes, spec.Scopes, at)...)
	if spec.ScopeSelector == nil {
		return errs
	}
	at = path.Child("scopeSelector", "matchExpressions")
	selected := map[corev1.ResourceQuotaScope]bool{}
	for _, r := range spec.ScopeSelector.MatchExpressions {
		errs = append(errs, validateScope(r.ScopeName, spec.Hard, spec.ScopeSelector, at.Child("scopeName"), at)...)
		errs = append(errs, validateScopeRequirement(r, at)...)
		selected[r.ScopeName] = true
	}
	return append(errs, validateScopePairs(selected, spec.Scopes, at)...)
}

// podResources are the quota resources that scopes of pods narrow.
func podResources() []corev1.ResourceName {
	return []corev1.ResourceName{
		corev1.ResourcePods, corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage,
		corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceRequestsEphemeralStorage,
		corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, corev1.ResourceLimitsEphemeralStorage,
	}
}

func validateScope(scope corev1.ResourceQuotaScope, hard corev1.ResourceList, all any, at, list *field.Path) field.ErrorList {
	var errs field.ErrorList
	var fits []corev1.ResourceName
	switch scope {
	case corev1.ResourceQuotaScopeBestEffort:
		fits = []corev1.ResourceName{corev1.ResourcePods}
	case corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating, corev1.ResourceQuotaScopeNotBestEffort,
		corev1.ResourceQuotaScopePriorityClass, corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		fits = podResources()
	case corev1.ResourceQuotaScopeVolumeAttributesClass:
		fits = []corev1.ResourceName{corev1.ResourcePersistentVolumeClaims, corev1.ResourceRequestsStorage}
	default:
		shown := all
		if at != list {
			shown = scope
		}
		errs = append(errs, field.Invalid(at, shown, "unsupported scope"))
		return errs
	}
	for _, name := range slices.Sorted(maps.Keys(hard)) {
		if podspec.IsQuotaResource(name) && !slices.Contains(fits, name) {
			errs = append(errs, field.Invalid(list, all, "unsupported scope applied to resource"))
		}
	}
	return errs
}

func validateScopeRequirement(r corev1.ScopedResourceSelectorRequirement, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch r.ScopeName {
	case corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeNotBestEffort, corev1.ResourceQuotaScopeTerminating,
		corev1.ResourceQuotaScopeNotTerminating, corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		if r.Operator != corev1.ScopeSelectorOpExists {
			errs = append(errs, field.Invalid(path.Child("operator"), r.Operator, "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity"))
		}
	}
	switch r.Operator {
	case corev1.ScopeSelectorOpIn, corev1.ScopeSelectorOpNotIn:
		if len(r.Values) == 0 {
			errs = append(errs, field.Required(path.Child("values"), "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"))
		}
	case corev1.ScopeSelectorOpExists, corev1.ScopeSelectorOpDoesNotExist:
		if len(r.Values) != 0 {
			errs = append(errs, field.Invalid(path.Child("values"), r.Values, "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"))
		}
	default:
		errs = append(errs, field.Invalid(path.Child("operator"), r.Operator, "not a valid selector operator"))
	}
	return errs
}

func validateScopePairs(scopes map[corev1.ResourceQuotaScope]bool, shown []corev1.ResourceQuotaScope, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, pair := range [][2]corev1.ResourceQuotaScope{
		{corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeNotBestEffort},
		{corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating},
	} {
		if scopes[pair[0]] && scopes[pair[1]] {
			errs = append(errs, field.Invalid(path, shown, "conflicting scopes"))
		}
	}
	return errs
}
