package admissionregistration

import (
	"context"
	"strings"

	"github.com/google/cel-go/cel"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission/expression"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

type mutatingPolicy = admissionregistrationv1.MutatingAdmissionPolicy

func mutatingAdmissionPolicies(v validator, reads paramRights) *registry.Resource {
	return registry.Define(registry.Definition[*mutatingPolicy]{
		GroupVersion: v1, Resource: "mutatingadmissionpolicies", Kind: "MutatingAdmissionPolicy", Singular: "mutatingadmissionpolicy",
		Categories: categories(),
		New:        func() *mutatingPolicy { return &mutatingPolicy{} },
		NewList:    func() runtime.Object { return &admissionregistrationv1.MutatingAdmissionPolicyList{} },
		KeyPrefix:  "/registry/mutatingadmissionpolicies",
		Strategy: registry.Behaviour[*mutatingPolicy]{
			Default: func(obj *mutatingPolicy) {
				orDefault(&obj.Spec.FailurePolicy, admissionregistrationv1.Fail)
				defaultMatch(obj.Spec.MatchConstraints)
			},
			Validate: func(ctx context.Context, obj *mutatingPolicy) field.ErrorList {
				errs := v.mutatingPolicy(obj, nil)
				if len(errs) == 0 {
					errs = reads.kind(ctx, obj.Spec.ParamKind, nil)
				}
				return errs
			},
			ValidateUpdate: func(ctx context.Context, obj, old *mutatingPolicy) field.ErrorList {
				errs := v.mutatingPolicy(obj, old)
				if len(errs) == 0 {
					errs = reads.kind(ctx, obj.Spec.ParamKind, old.Spec.ParamKind)
				}
				return errs
			},
			SpecOf: func(obj *mutatingPolicy) any { return &obj.Spec },
		},
		Columns: policyColumns(table.Integer("Mutations", "Mutation indicates the number of mutations rules defined in this configuration")),
		Row: func(obj *mutatingPolicy) []any {
			return []any{obj.Name, int64(len(obj.Spec.Mutations)), paramKindCell(obj.Spec.ParamKind), table.Since(obj.CreationTimestamp)}
		},
	})
}

func (v validator) mutatingPolicy(obj, old *mutatingPolicy) field.ErrorList {
	spec, path, stored := &obj.Spec, field.NewPath("spec"), known{}
	if old != nil {
		for _, condition := range old.Spec.MatchConditions {
			stored[condition.Expression] = true
		}
		for _, variable := range old.Spec.Variables {
			stored[variable.Expression] = true
		}
		for i := range old.Spec.Mutations {
			_, source := mutationSource(&old.Spec.Mutations[i])
			stored[source] = true
		}
	}
	errs := requiredOneOf(spec.FailurePolicy, path.Child("failurePolicy"), failurePolicies()...)
	errs = append(errs, validateParamKind(spec.ParamKind, path.Child("paramKind"))...)
	errs = append(errs, validateConstraints(spec.MatchConstraints, path.Child("matchConstraints"))...)
	if spec.MatchConstraints != nil {
		errs = append(errs, validateMutableOperations(spec.MatchConstraints, path.Child("matchConstraints", "resourceRules", "operations"))...)
	}
	params := spec.ParamKind != nil
	errs = append(errs, v.matchConditions(spec.MatchConditions, params, stored, path.Child("matchConditions"))...)
	scope, err := v.environments.Scope(expression.Declarations{Params: params, Authorizer: true, Patches: true}, len(spec.Variables) > 0)
	if err != nil {
		return append(errs, field.InternalError(path, err))
	}
	errs = append(errs, v.variables(scope, spec.Variables, stored, path.Child("variables"))...)
	if len(spec.Mutations) == 0 {
		errs = append(errs, field.Required(path.Child("mutations"), "mutations must contain at least one item"))
	}
	for i := range spec.Mutations {
		errs = append(errs, v.mutation(scope, &spec.Mutations[i], stored, path.Child("mutations").Index(i))...)
	}
	if spec.ReinvocationPolicy == "" {
		return append(errs, field.Required(path.Child("reinvocationPolicy"), ""))
	}
	return append(errs, oneOf(spec.ReinvocationPolicy, path.Child("reinvocationPolicy"), reinvocationPolicies()...)...)
}

// mutationSource is the expression of a mutation, and whether the mutation has
// the part that its type needs.
func mutationSource(m *admissionregistrationv1.Mutation) (present bool, source string) {
	switch {
	case m.PatchType == admissionregistrationv1.PatchTypeJSONPatch && m.JSONPatch != nil:
		return true, m.JSONPatch.Expression
	case m.PatchType == admissionregistrationv1.PatchTypeApplyConfiguration && m.ApplyConfiguration != nil:
		return true, m.ApplyConfiguration.Expression
	}
	return false, ""
}

func (v validator) mutation(scope *expression.Scope, m *admissionregistrationv1.Mutation, stored known, path *field.Path) field.ErrorList {
	var own, other string
	var alien bool
	var returns *cel.Type
	switch m.PatchType {
	case "":
		return field.ErrorList{field.Required(path.Child("patchType"), "")}
	case admissionregistrationv1.PatchTypeJSONPatch:
		own, other, alien, returns = "jsonPatch", "applyConfiguration", m.ApplyConfiguration != nil, expression.JSONPatchType()
	case admissionregistrationv1.PatchTypeApplyConfiguration:
		own, other, alien, returns = "applyConfiguration", "jsonPatch", m.JSONPatch != nil, expression.ApplyConfigurationType()
	default:
		return oneOf(m.PatchType, path.Child("patchType"), admissionregistrationv1.PatchTypeApplyConfiguration, admissionregistrationv1.PatchTypeJSONPatch)
	}
	var errs field.ErrorList
	if alien {
		errs = append(errs, field.Invalid(path.Child(other), "{"+other+"}", "must not be specified when patchType is "+string(m.PatchType)))
	}
	present, source := mutationSource(m)
	if !present {
		return append(errs, field.Required(path.Child(own), "must be specified when patchType is "+string(m.PatchType)))
	}
	at := path.Child(own, "expression")
	if strings.TrimSpace(source) == "" {
		return append(errs, field.Required(at, "expression is not specified"))
	}
	_, err := scope.Compile(stored.mode(source), source, returns)
	return append(errs, celError(err, source, at)...)
}
