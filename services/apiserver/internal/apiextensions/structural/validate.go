package structural

import (
	"context"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	structurallisttype "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	schemaobjectmeta "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	apiservervalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/common"
)

// Validate checks a new object, its metadata aside.
func (s *Schema) Validate(ctx context.Context, obj *unstructured.Unstructured) field.ErrorList {
	if errs := s.validateKind(obj); len(errs) > 0 {
		return errs
	}
	v, err := s.validators()
	if err != nil {
		return internalError(err)
	}
	errs := apiservervalidation.ValidateCustomResource(nil, obj.Object, v.whole)
	errs = append(errs, s.validateScale(obj)...)
	errs = append(errs, schemaobjectmeta.Validate(ctx, nil, obj.Object, s.shape, false)...)
	errs = append(errs, structurallisttype.ValidateListSetsAndMaps(nil, s.shape, obj.Object)...)
	return s.validateRules(ctx, errs, obj, nil)
}

// ValidateUpdate checks a changed object. What was wrong before and has not
// changed is let be.
func (s *Schema) ValidateUpdate(ctx context.Context, obj, old *unstructured.Unstructured) field.ErrorList {
	if errs := s.validateKind(obj); len(errs) > 0 {
		return errs
	}
	v, err := s.validators()
	if err != nil {
		return internalError(err)
	}
	related := s.relate(obj, old)
	errs := apiservervalidation.ValidateCustomResourceUpdate(nil, obj.Object, old.Object, v.whole, apiservervalidation.WithRatcheting(related))
	errs = append(errs, s.validateScale(obj)...)
	errs = append(errs, schemaobjectmeta.Validate(ctx, nil, obj.Object, s.shape, false)...)
	errs = append(errs, s.validateLists(obj, old)...)
	return s.validateRules(ctx, errs, obj, old, cel.WithRatcheting(related))
}

// ValidateStatusUpdate checks an object whose status has changed, the status
// alone.
func (s *Schema) ValidateStatusUpdate(ctx context.Context, obj, old *unstructured.Unstructured) field.ErrorList {
	if errs := s.validateKind(obj); len(errs) > 0 {
		return errs
	}
	v, err := s.validators()
	if err != nil {
		return internalError(err)
	}
	related := s.relate(obj, old)
	var options []apiservervalidation.ValidationOption
	if s.shape != nil {
		options = append(options, apiservervalidation.WithRatcheting(related.Key("status")))
	}
	var errs field.ErrorList
	if status, ok := obj.Object["status"]; ok {
		errs = apiservervalidation.ValidateCustomResourceUpdate(field.NewPath("status"), status, old.Object["status"], v.status, options...)
	}
	errs = append(errs, s.validateScaleStatus(obj)...)
	errs = append(errs, s.validateLists(obj, old)...)
	return s.validateRules(ctx, errs, obj, old, cel.WithRatcheting(related))
}

func (s *Schema) relate(obj, old *unstructured.Unstructured) *common.CorrelatedObject {
	return common.NewCorrelatedObject(obj.Object, old.Object, &model.Structural{Structural: s.shape})
}

// validateLists checks that lists which are sets or maps have nothing twice,
// unless they had before.
func (s *Schema) validateLists(obj, old *unstructured.Unstructured) field.ErrorList {
	errs := structurallisttype.ValidateListSetsAndMaps(nil, s.shape, obj.Object)
	if len(errs) > 0 && len(structurallisttype.ValidateListSetsAndMaps(nil, s.shape, old.Object)) > 0 {
		return nil
	}
	return errs
}

// validateRules runs the schema's CEL rules, unless what they would read is of
// wrong types or sizes.
func (s *Schema) validateRules(ctx context.Context, errs field.ErrorList, obj, old *unstructured.Unstructured, options ...cel.Option) field.ErrorList {
	rules := s.rules()
	if rules == nil {
		return errs
	}
	for _, err := range errs {
		switch err.Type {
		case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid:
			return append(errs, field.Invalid(nil, nil, "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation"))
		}
	}
	var before any
	if old != nil {
		before = old.Object
	}
	found, _ := rules.Validate(ctx, nil, s.shape, obj.Object, before, celconfig.RuntimeCELCostBudget, options...)
	return append(errs, found...)
}

func (s *Schema) validateKind(obj *unstructured.Unstructured) field.ErrorList {
	var errs field.ErrorList
	if obj.GetKind() != s.kind.Kind {
		errs = append(errs, field.Invalid(field.NewPath("kind"), obj.GetKind(), "must be "+s.kind.Kind))
	}
	if version := s.kind.GroupVersion().String(); obj.GetAPIVersion() != version {
		errs = append(errs, field.Invalid(field.NewPath("apiVersion"), obj.GetAPIVersion(), "must be "+version))
	}
	return errs
}

func internalError(err error) field.ErrorList {
	return field.ErrorList{field.InternalError(nil, err)}
}
