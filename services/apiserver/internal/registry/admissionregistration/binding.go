package admissionregistration

import (
	"context"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

type (
	validatingBinding = admissionregistrationv1.ValidatingAdmissionPolicyBinding
	mutatingBinding   = admissionregistrationv1.MutatingAdmissionPolicyBinding
)

func validatingAdmissionPolicyBindings(reads paramRights) *registry.Resource {
	validate := func(ctx context.Context, obj, old *validatingBinding) field.ErrorList {
		errs := validateBinding(obj.Spec.PolicyName, obj.Spec.ParamRef, obj.Spec.MatchResources)
		errs = append(errs, validateActions(obj.Spec.ValidationActions, field.NewPath("spec", "validationActions"))...)
		if len(errs) > 0 {
			return errs
		}
		var was *admissionregistrationv1.ParamRef
		if old != nil && old.Spec.PolicyName == obj.Spec.PolicyName {
			was = old.Spec.ParamRef
		}
		return reads.reference(ctx, "validatingadmissionpolicies", obj.Spec.PolicyName, obj.Spec.ParamRef, was)
	}
	return registry.Define(registry.Definition[*validatingBinding]{
		GroupVersion: v1, Resource: "validatingadmissionpolicybindings", Kind: "ValidatingAdmissionPolicyBinding", Singular: "validatingadmissionpolicybinding",
		Categories: categories(),
		New:        func() *validatingBinding { return &validatingBinding{} },
		NewList:    func() runtime.Object { return &admissionregistrationv1.ValidatingAdmissionPolicyBindingList{} },
		KeyPrefix:  "/registry/validatingadmissionpolicybindings",
		Strategy: registry.Behaviour[*validatingBinding]{
			Default:        func(obj *validatingBinding) { defaultMatch(obj.Spec.MatchResources) },
			Validate:       func(ctx context.Context, obj *validatingBinding) field.ErrorList { return validate(ctx, obj, nil) },
			ValidateUpdate: validate,
			SpecOf:         func(obj *validatingBinding) any { return &obj.Spec },
		},
		Columns: bindingColumns(),
		Row: func(obj *validatingBinding) []any {
			return []any{obj.Name, obj.Spec.PolicyName, paramRefCell(obj.Spec.ParamRef), table.Since(obj.CreationTimestamp)}
		},
	})
}

func mutatingAdmissionPolicyBindings(reads paramRights) *registry.Resource {
	validate := func(ctx context.Context, obj, old *mutatingBinding) field.ErrorList {
		errs := validateBinding(obj.Spec.PolicyName, obj.Spec.ParamRef, obj.Spec.MatchResources)
		if m := obj.Spec.MatchResources; m != nil {
			errs = append(errs, validateMutableOperations(m, field.NewPath("spec", "matchResources", "resourceRules", "operations"))...)
		}
		if len(errs) > 0 {
			return errs
		}
		var was *admissionregistrationv1.ParamRef
		if old != nil && old.Spec.PolicyName == obj.Spec.PolicyName {
			was = old.Spec.ParamRef
		}
		return reads.reference(ctx, "mutatingadmissionpolicies", obj.Spec.PolicyName, obj.Spec.ParamRef, was)
	}
	return registry.Define(registry.Definition[*mutatingBinding]{
		GroupVersion: v1, Resource: "mutatingadmissionpolicybindings", Kind: "MutatingAdmissionPolicyBinding", Singular: "mutatingadmissionpolicybinding",
		Categories: categories(),
		New:        func() *mutatingBinding { return &mutatingBinding{} },
		NewList:    func() runtime.Object { return &admissionregistrationv1.MutatingAdmissionPolicyBindingList{} },
		KeyPrefix:  "/registry/mutatingadmissionpolicybindings",
		Strategy: registry.Behaviour[*mutatingBinding]{
			Default:        func(obj *mutatingBinding) { defaultMatch(obj.Spec.MatchResources) },
			Validate:       func(ctx context.Context, obj *mutatingBinding) field.ErrorList { return validate(ctx, obj, nil) },
			ValidateUpdate: validate,
			SpecOf:         func(obj *mutatingBinding) any { return &obj.Spec },
		},
		Columns: bindingColumns(),
		Row: func(obj *mutatingBinding) []any {
			return []any{obj.Name, obj.Spec.PolicyName, paramRefCell(obj.Spec.ParamRef), table.Since(obj.CreationTimestamp)}
		},
	})
}

func validateBinding(policy string, ref *admissionregistrationv1.ParamRef, match *admissionregistrationv1.MatchResources) field.ErrorList {
	path := field.NewPath("spec")
	errs := validatePolicyName(policy, path.Child("policyName"))
	errs = append(errs, validateParamRef(ref, path.Child("paramRef"))...)
	return append(errs, validateMatchResources(match, path.Child("matchResources"))...)
}

func validateParamRef(ref *admissionregistrationv1.ParamRef, path *field.Path) field.ErrorList {
	if ref == nil {
		return nil
	}
	var errs field.ErrorList
	if ref.Name != "" {
		for _, message := range content.IsPathSegmentName(ref.Name) {
			errs = append(errs, field.Invalid(path.Child("name"), ref.Name, message))
		}
	}
	if ref.Selector != nil {
		errs = append(errs, validateSelector(ref.Selector, false, path.Child("selector"))...)
	}
	switch {
	case ref.Name != "" && ref.Selector != nil:
		for _, name := range []string{"name", "selector"} {
			errs = append(errs, field.Forbidden(path.Child(name), "name and selector are mutually exclusive"))
		}
	case ref.Name == "" && ref.Selector == nil:
		errs = append(errs, field.Required(path, "one of name or selector must be specified"))
	}
	if action := ref.ParameterNotFoundAction; action == nil || *action == "" {
		return append(errs, field.Required(path.Child("parameterNotFoundAction"), ""))
	}
	return append(errs, oneOf(*ref.ParameterNotFoundAction, path.Child("parameterNotFoundAction"),
		admissionregistrationv1.AllowAction, admissionregistrationv1.DenyAction)...)
}

func validateActions(actions []admissionregistrationv1.ValidationAction, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[admissionregistrationv1.ValidationAction]bool{}
	for i, action := range actions {
		errs = append(errs, oneOf(action, path.Index(i), admissionregistrationv1.Audit, admissionregistrationv1.Deny, admissionregistrationv1.Warn)...)
		if seen[action] {
			errs = append(errs, field.Duplicate(path.Index(i), action))
		}
		seen[action] = true
	}
	if seen[admissionregistrationv1.Deny] && seen[admissionregistrationv1.Warn] {
		errs = append(errs, field.Invalid(path, actions, "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)"))
	}
	if len(seen) == 0 {
		errs = append(errs, field.Required(path, "at least one validation action is required"))
	}
	return errs
}
