package admissionregistration

import (
	"context"
	"reflect"
	"strconv"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/util/jsonpath"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission/expression"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

type validatingPolicy = admissionregistrationv1.ValidatingAdmissionPolicy

func itoa(i int) string { return strconv.Itoa(i) }

func validatingAdmissionPolicies(v validator, reads paramRights) *registry.Resource {
	return registry.Define(registry.Definition[*validatingPolicy]{
		GroupVersion: v1, Resource: "validatingadmissionpolicies", Kind: "ValidatingAdmissionPolicy", Singular: "validatingadmissionpolicy",
		Categories: categories(),
		New:        func() *validatingPolicy { return &validatingPolicy{} },
		NewList:    func() runtime.Object { return &admissionregistrationv1.ValidatingAdmissionPolicyList{} },
		KeyPrefix:  "/registry/validatingadmissionpolicies",
		Strategy: registry.Behaviour[*validatingPolicy]{
			Default: defaultValidatingPolicy,
			PrepareForCreate: func(_ context.Context, obj *validatingPolicy) {
				obj.Status = admissionregistrationv1.ValidatingAdmissionPolicyStatus{}
			},
			PrepareForUpdate: func(_ context.Context, obj, old *validatingPolicy) { obj.Status = old.Status },
			Validate: func(ctx context.Context, obj *validatingPolicy) field.ErrorList {
				errs := v.validatingPolicy(obj, nil)
				if len(errs) == 0 {
					errs = reads.kind(ctx, obj.Spec.ParamKind, nil)
				}
				return errs
			},
			ValidateUpdate: func(ctx context.Context, obj, old *validatingPolicy) field.ErrorList {
				errs := v.validatingPolicy(obj, old)
				if len(errs) == 0 {
					errs = reads.kind(ctx, obj.Spec.ParamKind, old.Spec.ParamKind)
				}
				return errs
			},
			SpecOf:      func(obj *validatingPolicy) any { return &obj.Spec },
			ResetFields: []string{"status"},
		},
		Columns: policyColumns(table.Integer("Validations", "Validations indicates the number of validation rules defined in this configuration")),
		Row: func(obj *validatingPolicy) []any {
			return []any{obj.Name, int64(len(obj.Spec.Validations)), paramKindCell(obj.Spec.ParamKind), table.Since(obj.CreationTimestamp)}
		},
		Subresources: []registry.Subresource{{Name: "status", Verbs: []string{"get", "patch", "update"}, Update: registry.Erase(validatingStatus())}},
	})
}

func validatingStatus() registry.Behaviour[*validatingPolicy] {
	return registry.Behaviour[*validatingPolicy]{
		Default: defaultValidatingPolicy,
		PrepareForUpdate: func(_ context.Context, obj, old *validatingPolicy) {
			obj.Spec = old.Spec
			metav1.ResetObjectMetaForStatus(&obj.ObjectMeta, &old.ObjectMeta)
		},
		ValidateUpdate: func(_ context.Context, obj, _ *validatingPolicy) field.ErrorList {
			return validatePolicyStatus(&obj.Status, field.NewPath("status"))
		},
		ResetFields: []string{"metadata", "spec"},
	}
}

func defaultValidatingPolicy(obj *validatingPolicy) {
	orDefault(&obj.Spec.FailurePolicy, admissionregistrationv1.Fail)
	defaultMatch(obj.Spec.MatchConstraints)
}

// storedExpressions are those of the policy that is stored; old is nil for a new
// one.
func storedExpressions(old *validatingPolicy) known {
	k := known{}
	if old == nil {
		return k
	}
	for _, condition := range old.Spec.MatchConditions {
		k[condition.Expression] = true
	}
	for _, variable := range old.Spec.Variables {
		k[variable.Expression] = true
	}
	for _, validation := range old.Spec.Validations {
		k[validation.Expression], k[validation.MessageExpression] = true, true
	}
	for _, annotation := range old.Spec.AuditAnnotations {
		k[annotation.ValueExpression] = true
	}
	return k
}

func (v validator) validatingPolicy(obj, old *validatingPolicy) field.ErrorList {
	spec, path, stored := &obj.Spec, field.NewPath("spec"), storedExpressions(old)
	errs := requiredOneOf(spec.FailurePolicy, path.Child("failurePolicy"), failurePolicies()...)
	errs = append(errs, validateParamKind(spec.ParamKind, path.Child("paramKind"))...)
	errs = append(errs, validateConstraints(spec.MatchConstraints, path.Child("matchConstraints"))...)
	params := spec.ParamKind != nil
	if old == nil || !reflect.DeepEqual(spec.ParamKind, old.Spec.ParamKind) || !reflect.DeepEqual(spec.MatchConditions, old.Spec.MatchConditions) {
		errs = append(errs, v.matchConditions(spec.MatchConditions, params, stored, path.Child("matchConditions"))...)
	}
	if len(spec.Validations) == 0 && len(spec.AuditAnnotations) == 0 {
		for _, name := range []string{"validations", "auditAnnotations"} {
			errs = append(errs, field.Required(path.Child(name), "validations or auditAnnotations must contain at least one item"))
		}
	}
	scope, err := v.environments.Scope(expression.Declarations{Params: params, Authorizer: true}, len(spec.Variables) > 0)
	if err != nil {
		return append(errs, field.InternalError(path, err))
	}
	errs = append(errs, v.variables(scope, spec.Variables, stored, path.Child("variables"))...)
	messages, err := v.environments.Sibling(scope, expression.Declarations{Params: params})
	if err != nil {
		return append(errs, field.InternalError(path, err))
	}
	for i := range spec.Validations {
		errs = append(errs, v.validation(scope, messages, &spec.Validations[i], stored, path.Child("validations").Index(i))...)
	}
	return append(errs, v.auditAnnotations(scope, obj.Name, spec.AuditAnnotations, stored, path.Child("auditAnnotations"))...)
}

func validateReason(validation *admissionregistrationv1.Validation, path *field.Path) field.ErrorList {
	return optionalOneOf(validation.Reason, path, metav1.StatusReasonForbidden, metav1.StatusReasonInvalid,
		metav1.StatusReasonRequestEntityTooLarge, metav1.StatusReasonUnauthorized)
}

// validateConstraints checks a policy's matchConstraints, which must name
// resources.
func validateConstraints(m *admissionregistrationv1.MatchResources, path *field.Path) field.ErrorList {
	if m == nil {
		return field.ErrorList{field.Required(path, "")}
	}
	errs := validateMatchResources(m, path)
	if len(m.ResourceRules) == 0 {
		errs = append(errs, field.Required(path.Child("resourceRules"), ""))
	}
	return errs
}

func validateParamKind(kind *admissionregistrationv1.ParamKind, path *field.Path) field.ErrorList {
	if kind == nil {
		return nil
	}
	var errs field.ErrorList
	at := path.Child("apiVersion")
	version, err := schema.ParseGroupVersion(kind.APIVersion)
	switch {
	case kind.APIVersion == "":
		errs = append(errs, field.Required(at, ""))
	case err != nil:
		errs = append(errs, field.Invalid(at, kind.APIVersion, err.Error()))
	default:
		if messages := utilvalidation.IsDNS1123Subdomain(version.Group); version.Group != "" && len(messages) > 0 {
			errs = append(errs, field.Invalid(at, version.Group, strings.Join(messages, ",")))
		}
		if version.Version == "" {
			errs = append(errs, field.Invalid(at, kind.APIVersion, "version must be specified"))
		} else if messages := utilvalidation.IsDNS1035Label(version.Version); len(messages) > 0 {
			errs = append(errs, field.Invalid(at, version.Version, strings.Join(messages, ",")))
		}
	}
	if kind.Kind == "" {
		errs = append(errs, field.Required(path.Child("kind"), ""))
	} else if messages := utilvalidation.IsDNS1035Label(strings.ToLower(kind.Kind)); len(messages) > 0 {
		errs = append(errs, field.Invalid(path.Child("kind"), kind.Kind, "may have mixed case, but should otherwise match: "+strings.Join(messages, ",")))
	}
	return errs
}

func validatePolicyStatus(status *admissionregistrationv1.ValidatingAdmissionPolicyStatus, path *field.Path) field.ErrorList {
	errs := metav1validation.ValidateConditions(status.Conditions, path.Child("conditions"))
	if status.TypeChecking == nil {
		return errs
	}
	for i, warning := range status.TypeChecking.ExpressionWarnings {
		at := path.Child("typeChecking", "expressionWarnings").Index(i)
		if warning.Warning == "" {
			errs = append(errs, field.Required(at.Child("warning"), ""))
		}
		ref := strings.TrimSpace(warning.FieldRef)
		if ref == "" {
			errs = append(errs, field.Required(at.Child("fieldRef"), ""))
		} else if err := jsonpath.New("spec").Parse("{" + ref + "}"); err != nil {
			errs = append(errs, field.Invalid(at.Child("fieldRef"), ref, "invalid JSONPath: "+err.Error()))
		}
	}
	return errs
}

func validatePolicyName(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	for _, message := range apivalidation.NameIsDNSSubdomain(name, false) {
		errs = append(errs, field.Invalid(path, name, message))
	}
	return errs
}
