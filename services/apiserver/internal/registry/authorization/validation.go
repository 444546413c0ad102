package authorization

import (
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateAction checks that exactly one action is asked about.
func validateAction(resource *authorizationv1.ResourceAttributes, path *authorizationv1.NonResourceAttributes) field.ErrorList {
	spec := field.NewPath("spec")
	switch {
	case resource != nil && path != nil:
		return field.ErrorList{field.Invalid(spec.Child("nonResourceAttributes"), path, "cannot be specified in combination with resourceAttributes")}
	case resource == nil && path == nil:
		return field.ErrorList{field.Invalid(spec.Child("resourceAttributes"), resource, "exactly one of nonResourceAttributes or resourceAttributes must be specified")}
	case resource != nil:
		return validateSelectors(resource, spec.Child("resourceAttributes"))
	}
	return nil
}

func validateSubject(spec *authorizationv1.SubjectAccessReviewSpec) field.ErrorList {
	errs := validateAction(spec.ResourceAttributes, spec.NonResourceAttributes)
	if spec.User == "" && len(spec.Groups) == 0 {
		errs = append(errs, field.Invalid(field.NewPath("spec", "user"), spec.User, "at least one of user or group must be specified"))
	}
	return errs
}

func validateLocal(review *authorizationv1.LocalSubjectAccessReview) field.ErrorList {
	errs := validateSubject(&review.Spec)
	spec := field.NewPath("spec")
	if review.Spec.ResourceAttributes != nil && review.Namespace != "" && review.Spec.ResourceAttributes.Namespace != review.Namespace {
		errs = append(errs, field.Invalid(spec.Child("resourceAttributes", "namespace"), review.Spec.ResourceAttributes.Namespace, "must match metadata.namespace"))
	}
	if review.Spec.NonResourceAttributes != nil {
		errs = append(errs, field.Invalid(spec.Child("nonResourceAttributes"), review.Spec.NonResourceAttributes, "disallowed on this kind of request"))
	}
	return errs
}

// validateSelectors checks that a selector is given in one form.
func validateSelectors(resource *authorizationv1.ResourceAttributes, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	check := func(path *field.Path, raw string, requirements int) {
		switch {
		case raw != "" && requirements > 0:
			errs = append(errs, field.Invalid(path.Child("rawSelector"), raw, "may not specified at the same time as requirements"))
		case raw == "" && requirements == 0:
			errs = append(errs, field.Required(path.Child("requirements"), "when rawSelector is not set"))
		}
	}
	if s := resource.FieldSelector; s != nil {
		check(path.Child("fieldSelector"), s.RawSelector, len(s.Requirements))
	}
	if s := resource.LabelSelector; s != nil {
		check(path.Child("labelSelector"), s.RawSelector, len(s.Requirements))
	}
	return errs
}

// fieldSelector is the selector in raw form. A requirement that a raw selector
// cannot say is left out, which can only make the question broader.
func fieldSelector(s *authorizationv1.FieldSelectorAttributes) string {
	if s == nil {
		return ""
	}
	if s.RawSelector != "" {
		return s.RawSelector
	}
	var terms []string
	for _, r := range s.Requirements {
		if len(r.Values) != 1 {
			continue
		}
		switch r.Operator {
		case metav1.FieldSelectorOpIn:
			terms = append(terms, r.Key+"="+r.Values[0])
		case metav1.FieldSelectorOpNotIn:
			terms = append(terms, r.Key+"!="+r.Values[0])
		}
	}
	return strings.Join(terms, ",")
}

func labelSelector(s *authorizationv1.LabelSelectorAttributes) string {
	if s == nil {
		return ""
	}
	if s.RawSelector != "" {
		return s.RawSelector
	}
	requirements := slices.Clone(s.Requirements)
	return metav1.FormatLabelSelector(&metav1.LabelSelector{MatchExpressions: requirements})
}
