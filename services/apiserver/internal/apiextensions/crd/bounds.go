package crd

import (
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxDepth bounds how deep a schema nests. Each level of objects costs stack and
// time in every walk over the schema; the deepest that are in use have some
// dozens of levels.
const maxDepth = 500

// bounded refuses schemas that nest too deep to be walked.
func bounded(obj *apiextensionsv1.CustomResourceDefinition) field.ErrorList {
	var errs field.ErrorList
	for i := range obj.Spec.Versions {
		version := &obj.Spec.Versions[i]
		if version.Schema != nil && tooDeep(version.Schema.OpenAPIV3Schema, maxDepth) {
			path := field.NewPath("spec", "versions").Index(i).Child("schema", "openAPIV3Schema")
			errs = append(errs, field.Invalid(path, "", fmt.Sprintf("must not nest deeper than %d levels", maxDepth)))
		}
	}
	return errs
}

func tooDeep(s *apiextensionsv1.JSONSchemaProps, left int) bool {
	if s == nil {
		return false
	}
	if left == 0 {
		return true
	}
	left--
	for _, list := range [][]apiextensionsv1.JSONSchemaProps{s.AllOf, s.AnyOf, s.OneOf} {
		for i := range list {
			if tooDeep(&list[i], left) {
				return true
			}
		}
	}
	for _, property := range s.Properties {
		if tooDeep(&property, left) {
			return true
		}
	}
	if s.Items != nil && tooDeep(s.Items.Schema, left) {
		return true
	}
	return tooDeep(s.Not, left) || s.AdditionalProperties != nil && tooDeep(s.AdditionalProperties.Schema, left)
}
