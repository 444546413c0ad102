package admissionregistration

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// oneOf refuses a value that is none of those that are known; they are sorted, as
// they are named in the answer.
func oneOf[T ~string](value T, path *field.Path, known ...T) field.ErrorList {
	if slices.Contains(known, value) {
		return nil
	}
	slices.Sort(known)
	return field.ErrorList{field.NotSupported(path, value, known)}
}

// requiredOneOf is oneOf for a value that must be there.
func requiredOneOf[T ~string](value *T, path *field.Path, known ...T) field.ErrorList {
	if value == nil {
		return field.ErrorList{field.Required(path, "")}
	}
	return oneOf(*value, path, known...)
}

// optionalOneOf is oneOf for a value that may be absent.
func optionalOneOf[T ~string](value *T, path *field.Path, known ...T) field.ErrorList {
	if value == nil {
		return nil
	}
	return oneOf(*value, path, known...)
}

func failurePolicies() []admissionregistrationv1.FailurePolicyType {
	return []admissionregistrationv1.FailurePolicyType{admissionregistrationv1.Fail, admissionregistrationv1.Ignore}
}

func matchPolicies() []admissionregistrationv1.MatchPolicyType {
	return []admissionregistrationv1.MatchPolicyType{admissionregistrationv1.Equivalent, admissionregistrationv1.Exact}
}

func reinvocationPolicies() []admissionregistrationv1.ReinvocationPolicyType {
	return []admissionregistrationv1.ReinvocationPolicyType{admissionregistrationv1.IfNeededReinvocationPolicy, admissionregistrationv1.NeverReinvocationPolicy}
}

func hasWildcard[T ~string](values []T) bool { return slices.Contains(values, "*") }

func validateSelector(selector *metav1.LabelSelector, lenient bool, path *field.Path) field.ErrorList {
	return metav1validation.ValidateLabelSelector(selector, metav1validation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: lenient}, path)
}

func validateRuleWithOperations(r *admissionregistrationv1.RuleWithOperations, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	operations := path.Child("operations")
	if len(r.Operations) == 0 {
		errs = append(errs, field.Required(operations, ""))
	}
	if len(r.Operations) > 1 && hasWildcard(r.Operations) {
		errs = append(errs, field.Invalid(operations, r.Operations, "if '*' is present, must not specify other operations"))
	}
	for i, operation := range r.Operations {
		errs = append(errs, oneOf(operation, operations.Index(i), admissionregistrationv1.OperationAll, admissionregistrationv1.Create,
			admissionregistrationv1.Update, admissionregistrationv1.Delete, admissionregistrationv1.Connect)...)
	}
	return append(errs, validateRule(&r.Rule, path)...)
}

func validateRule(rule *admissionregistrationv1.Rule, path *field.Path) field.ErrorList {
	errs := validateWildcardList(rule.APIGroups, "API groups", path.Child("apiGroups"))
	errs = append(errs, validateWildcardList(rule.APIVersions, "API versions", path.Child("apiVersions"))...)
	for i, version := range rule.APIVersions {
		if version == "" {
			errs = append(errs, field.Required(path.Child("apiVersions").Index(i), ""))
		}
	}
	errs = append(errs, validateResources(rule.Resources, path.Child("resources"))...)
	return append(errs, optionalOneOf(rule.Scope, path.Child("scope"),
		admissionregistrationv1.AllScopes, admissionregistrationv1.ClusterScope, admissionregistrationv1.NamespacedScope)...)
}

func validateWildcardList(values []string, what string, path *field.Path) field.ErrorList {
	switch {
	case len(values) == 0:
		return field.ErrorList{field.Required(path, "")}
	case len(values) > 1 && hasWildcard(values):
		return field.ErrorList{field.Invalid(path, values, "if '*' is present, must not specify other "+what)}
	}
	return nil
}

func validateResources(resources []string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(resources) == 0 {
		errs = append(errs, field.Required(path, ""))
	}
	ofResource, ofSubresource := map[string]bool{}, map[string]bool{} // "x/*" and "*/x"
	named := false                                                    // a resource without subresource
	for i, resource := range resources {
		if resource == "" {
			errs = append(errs, field.Required(path.Index(i), ""))
			continue
		}
		parent, sub, found := strings.Cut(resource, "/")
		if !found {
			named = named || resource != "*"
			continue
		}
		if ofResource[parent] {
			errs = append(errs, field.Invalid(path.Index(i), resource, fmt.Sprintf("if '%s/*' is present, must not specify %s", parent, resource)))
		}
		if ofSubresource[sub] {
			errs = append(errs, field.Invalid(path.Index(i), resource, fmt.Sprintf("if '*/%s' is present, must not specify %s", sub, resource)))
		}
		ofResource[parent] = ofResource[parent] || sub == "*"
		ofSubresource[sub] = ofSubresource[sub] || parent == "*"
	}
	if len(resources) > 1 && slices.Contains(resources, "*/*") {
		errs = append(errs, field.Invalid(path, resources, "if '*/*' is present, must not specify other resources"))
	}
	if hasWildcard(resources) && named {
		errs = append(errs, field.Invalid(path, resources, "if '*' is present, must not specify other resources without subresources"))
	}
	return errs
}

func validateMatchResources(m *admissionregistrationv1.MatchResources, path *field.Path) field.ErrorList {
	if m == nil {
		return nil
	}
	errs := requiredOneOf(m.MatchPolicy, path.Child("matchPolicy"), matchPolicies()...)
	selectors := map[string]*metav1.LabelSelector{"namespaceSelector": m.NamespaceSelector, "objectSelector": m.ObjectSelector}
	for _, name := range slices.Sorted(maps.Keys(selectors)) {
		if selectors[name] == nil {
			errs = append(errs, field.Required(path.Child(name), ""))
			continue
		}
		errs = append(errs, validateSelector(selectors[name], false, path.Child(name))...)
	}
	for i := range m.ResourceRules {
		errs = append(errs, validateNamedRule(&m.ResourceRules[i], path.Child("resourceRules").Index(i))...)
	}
	for i := range m.ExcludeResourceRules {
		errs = append(errs, validateNamedRule(&m.ExcludeResourceRules[i], path.Child("excludeResourceRules").Index(i))...)
	}
	return errs
}

func validateNamedRule(rule *admissionregistrationv1.NamedRuleWithOperations, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{}
	for i, name := range rule.ResourceNames {
		at := path.Child("resourceNames").Index(i)
		for _, message := range content.IsPathSegmentName(name) {
			errs = append(errs, field.Invalid(at, name, message))
		}
		if seen[name] {
			errs = append(errs, field.Duplicate(at, name))
		}
		seen[name] = true
	}
	return append(errs, validateRuleWithOperations(&rule.RuleWithOperations, path)...)
}

// validateMutableOperations refuses rules that a mutation cannot serve.
func validateMutableOperations(m *admissionregistrationv1.MatchResources, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, rule := range m.ResourceRules {
		for _, operation := range rule.Operations {
			errs = append(errs, oneOf(operation, path, admissionregistrationv1.OperationAll, admissionregistrationv1.Connect,
				admissionregistrationv1.Create, admissionregistrationv1.Update)...)
		}
	}
	return errs
}
