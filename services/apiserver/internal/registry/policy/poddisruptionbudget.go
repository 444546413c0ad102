// Package policy has the kinds of the policy group.
package policy

import (
	"context"
	"strings"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// PodDisruptionBudgets bound how many pods of a set may be evicted at once.
func PodDisruptionBudgets() *registry.Resource {
	status := budgetBehaviour()
	status.PrepareForUpdate = func(_ context.Context, obj, old *policyv1.PodDisruptionBudget) { obj.Spec = old.Spec }
	status.ValidateUpdate = validateBudgetStatus
	status.ResetFields = []string{"spec"}
	status.SpecOf, status.Warnings = nil, nil
	return registry.Define(registry.Definition[*policyv1.PodDisruptionBudget]{
		GroupVersion: policyv1.SchemeGroupVersion, Resource: "poddisruptionbudgets", Kind: "PodDisruptionBudget", Singular: "poddisruptionbudget",
		ShortNames: []string{"pdb"}, Namespaced: true,
		New:       func() *policyv1.PodDisruptionBudget { return &policyv1.PodDisruptionBudget{} },
		NewList:   func() runtime.Object { return &policyv1.PodDisruptionBudgetList{} },
		KeyPrefix: "/registry/poddisruptionbudgets",
		Strategy:  budgetBehaviour(),
		Columns: []metav1.TableColumnDefinition{
			table.Name(),
			table.String("Min Available", "The minimum number of pods that must be available."),
			table.String("Max Unavailable", "The maximum number of pods that may be unavailable."),
			table.Integer("Allowed Disruptions", "Calculated number of pods that may be disrupted at this time."),
			table.Age(),
		},
		Row: func(obj *policyv1.PodDisruptionBudget) []any {
			return []any{
				obj.Name, orNotApplicable(obj.Spec.MinAvailable), orNotApplicable(obj.Spec.MaxUnavailable),
				int64(obj.Status.DisruptionsAllowed), table.Since(obj.CreationTimestamp),
			}
		},
		Subresources: []registry.Subresource{
			{Name: "status", Verbs: []string{"get", "patch", "update"}, Update: registry.Erase(status)},
		},
	})
}

func orNotApplicable(v *intstr.IntOrString) string {
	if v == nil {
		return "N/A"
	}
	return v.String()
}

func budgetBehaviour() registry.Behaviour[*policyv1.PodDisruptionBudget] {
	return registry.Behaviour[*policyv1.PodDisruptionBudget]{
		PrepareForCreate: func(_ context.Context, obj *policyv1.PodDisruptionBudget) {
			obj.Status = policyv1.PodDisruptionBudgetStatus{}
		},
		PrepareForUpdate: func(_ context.Context, obj, old *policyv1.PodDisruptionBudget) { obj.Status = old.Status },
		Validate: func(_ context.Context, obj *policyv1.PodDisruptionBudget) field.ErrorList {
			return validateBudget(obj)
		},
		ValidateUpdate: func(_ context.Context, obj, _ *policyv1.PodDisruptionBudget) field.ErrorList {
			return validateBudget(obj)
		},
		SpecOf:                 func(obj *policyv1.PodDisruptionBudget) any { return &obj.Spec },
		RequireVersionOnUpdate: true,
		ResetFields:            []string{"status"},
	}
}

func validateBudget(obj *policyv1.PodDisruptionBudget) field.ErrorList {
	spec, path := &obj.Spec, field.NewPath("spec")
	var errs field.ErrorList
	if spec.MinAvailable != nil && spec.MaxUnavailable != nil {
		errs = append(errs, field.Invalid(path, *spec, "minAvailable and maxUnavailable cannot be both set"))
	}
	if spec.MinAvailable != nil {
		errs = append(errs, validateAmount(*spec.MinAvailable, path.Child("minAvailable"))...)
	}
	if spec.MaxUnavailable != nil {
		errs = append(errs, validateAmount(*spec.MaxUnavailable, path.Child("maxUnavailable"))...)
	}
	errs = append(errs, metav1validation.ValidateLabelSelector(spec.Selector, metav1validation.LabelSelectorValidationOptions{}, path.Child("selector"))...)
	if p := spec.UnhealthyPodEvictionPolicy; p != nil && *p != policyv1.IfHealthyBudget && *p != policyv1.AlwaysAllow {
		errs = append(errs, field.NotSupported(path.Child("unhealthyPodEvictionPolicy"), *p, []policyv1.UnhealthyPodEvictionPolicyType{policyv1.AlwaysAllow, policyv1.IfHealthyBudget}))
	}
	return errs
}

// validateAmount wants a number of pods or a percentage of them, up to all.
func validateAmount(v intstr.IntOrString, path *field.Path) field.ErrorList {
	if v.Type == intstr.Int {
		if v.IntVal < 0 {
			return field.ErrorList{field.Invalid(path, int64(v.IntVal), "must be greater than or equal to 0")}
		}
		return nil
	}
	var errs field.ErrorList
	for _, msg := range utilvalidation.IsValidPercent(v.StrVal) {
		errs = append(errs, field.Invalid(path, v, msg))
	}
	digits := strings.TrimLeft(strings.TrimSuffix(v.StrVal, "%"), "0")
	if len(errs) == 0 && (len(digits) > 3 || (len(digits) == 3 && digits > "100")) {
		errs = append(errs, field.Invalid(path, v, "must not be greater than 100%"))
	}
	return errs
}

func validateBudgetStatus(_ context.Context, obj, _ *policyv1.PodDisruptionBudget) field.ErrorList {
	s, path := &obj.Status, field.NewPath("status")
	errs := metav1validation.ValidateConditions(s.Conditions, path.Child("conditions"))
	for _, f := range []struct {
		name  string
		value int32
	}{
		{"disruptionsAllowed", s.DisruptionsAllowed}, {"currentHealthy", s.CurrentHealthy},
		{"desiredHealthy", s.DesiredHealthy}, {"expectedPods", s.ExpectedPods},
	} {
		if f.value < 0 {
			errs = append(errs, field.Invalid(path.Child(f.name), int64(f.value), "must be greater than or equal to 0"))
		}
	}
	return errs
}
