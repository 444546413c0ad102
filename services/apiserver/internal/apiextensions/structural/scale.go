package structural

import (
	"fmt"
	"math"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Path is a simple JSON path, such as ".spec.replicas", as field names.
func Path(jsonPath string) []string { return strings.Split(strings.TrimPrefix(jsonPath, "."), ".") }

// validateScale checks the fields that the scale subresource shows.
func (s *Schema) validateScale(obj *unstructured.Unstructured) field.ErrorList {
	if s.scale == nil {
		return nil
	}
	return append(validateReplicas(obj, s.scale.SpecReplicasPath), s.validateScaleStatus(obj)...)
}

func (s *Schema) validateScaleStatus(obj *unstructured.Unstructured) field.ErrorList {
	if s.scale == nil {
		return nil
	}
	errs := validateReplicas(obj, s.scale.StatusReplicasPath)
	if path := s.scale.LabelSelectorPath; path != nil {
		if selector, _, err := unstructured.NestedString(obj.Object, Path(*path)...); err != nil {
			errs = append(errs, field.Invalid(field.NewPath(*path), selector, err.Error()))
		}
	}
	return errs
}

func validateReplicas(obj *unstructured.Unstructured, jsonPath string) field.ErrorList {
	path := field.NewPath(jsonPath)
	n, _, err := unstructured.NestedInt64(obj.Object, Path(jsonPath)...)
	switch {
	case err != nil:
		return field.ErrorList{field.Invalid(path, n, err.Error())}
	case n < 0:
		return field.ErrorList{field.Invalid(path, n, "should be a non-negative integer")}
	case n > math.MaxInt32:
		return field.ErrorList{field.Invalid(path, n, fmt.Sprintf("should be less than or equal to %v", math.MaxInt32))}
	}
	return nil
}
