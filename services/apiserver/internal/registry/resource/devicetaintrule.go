package resource

import (
	"context"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
)

type taintRule = resourcev1.DeviceTaintRule

// DeviceTaintRules taint devices that they select.
func DeviceTaintRules() *registry.Resource {
	main := registry.Behaviour[*taintRule]{
		Default:          func(obj *taintRule) { defaultTaint(&obj.Spec.Taint) },
		PrepareForCreate: func(_ context.Context, obj *taintRule) { obj.Status = resourcev1.DeviceTaintRuleStatus{} },
		PrepareForUpdate: func(_ context.Context, obj, old *taintRule) {
			obj.Status = old.Status
			// A changed effect begins anew, unless the client says when it began.
			if obj.Spec.Taint.Effect != old.Spec.Taint.Effect && obj.Spec.Taint.TimeAdded.Equal(old.Spec.Taint.TimeAdded) {
				obj.Spec.Taint.TimeAdded = now()
			}
		},
		Validate:       func(_ context.Context, obj *taintRule) field.ErrorList { return validateTaintRule(obj) },
		ValidateUpdate: func(_ context.Context, obj, _ *taintRule) field.ErrorList { return validateTaintRule(obj) },
		SpecOf:         func(obj *taintRule) any { return &obj.Spec },
		ResetFields:    []string{"status"},
	}
	status := main
	status.PrepareForUpdate = func(_ context.Context, obj, old *taintRule) {
		obj.Spec = old.Spec
		metav1.ResetObjectMetaForStatus(obj, old)
	}
	status.ValidateUpdate = func(_ context.Context, obj, _ *taintRule) field.ErrorList {
		return validateConditions(obj.Status.Conditions, resourcev1.DeviceTaintRuleStatusMaxConditions, field.NewPath("status", "conditions"))
	}
	status.ResetFields = []string{"spec"}
	return registry.Define(registry.Definition[*taintRule]{
		GroupVersion: v1, Resource: "devicetaintrules", Kind: "DeviceTaintRule", Singular: "devicetaintrule",
		ReturnDeleted: true,
		New:           func() *taintRule { return &taintRule{} },
		NewList:       func() runtime.Object { return &resourcev1.DeviceTaintRuleList{} },
		KeyPrefix:     "/registry/devicetaintrules",
		Strategy:      main,
		Subresources:  []registry.Subresource{{Name: "status", Verbs: readWrite(), Update: registry.Erase(status)}},
	})
}

func defaultTaint(t *resourcev1.DeviceTaint) {
	if t.TimeAdded == nil {
		t.TimeAdded = now()
	}
}

func validateTaintRule(obj *taintRule) field.ErrorList {
	path := field.NewPath("spec")
	var errs field.ErrorList
	if s, at := obj.Spec.DeviceSelector, path.Child("deviceSelector"); s != nil {
		if s.Driver != nil {
			errs = append(errs, podspec.ValidateCSIDriverName(*s.Driver, at.Child("driver"))...)
		}
		if s.Pool != nil {
			errs = append(errs, validatePoolName(*s.Pool, at.Child("pool"))...)
		}
		if s.Device != nil {
			errs = append(errs, label(*s.Device, at.Child("device"))...)
		}
	}
	return append(errs, validateTaint(&obj.Spec.Taint, path.Child("taint"))...)
}

// validateTaint checks what the type does not declare.
func validateTaint(t *resourcev1.DeviceTaint, path *field.Path) field.ErrorList {
	errs := metav1validation.ValidateLabelName(t.Key, path.Child("key"))
	if t.Value != "" {
		errs = append(errs, invalid(path.Child("value"), t.Value, utilvalidation.IsValidLabelValue(t.Value))...)
	}
	return errs
}
