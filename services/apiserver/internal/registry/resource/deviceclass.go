package resource

import (
	"context"

	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// DeviceClasses name sets of devices and their settings.
func DeviceClasses() *registry.Resource {
	return registry.Define(registry.Definition[*resourcev1.DeviceClass]{
		GroupVersion: v1, Resource: "deviceclasses", Kind: "DeviceClass", Singular: "deviceclass",
		ReturnDeleted: true,
		New:           func() *resourcev1.DeviceClass { return &resourcev1.DeviceClass{} },
		NewList:       func() runtime.Object { return &resourcev1.DeviceClassList{} },
		KeyPrefix:     "/registry/deviceclasses",
		Strategy: registry.Behaviour[*resourcev1.DeviceClass]{
			Validate: func(_ context.Context, obj *resourcev1.DeviceClass) field.ErrorList {
				return validateClass(&obj.Spec, nil)
			},
			ValidateUpdate: func(_ context.Context, obj, old *resourcev1.DeviceClass) field.ErrorList {
				return validateClass(&obj.Spec, &old.Spec)
			},
			SpecOf: func(obj *resourcev1.DeviceClass) any { return &obj.Spec },
		},
		Columns: []metav1.TableColumnDefinition{table.Name(), table.Age()},
		Row:     func(obj *resourcev1.DeviceClass) []any { return []any{obj.Name, table.Since(obj.CreationTimestamp)} },
	})
}

// validateClass checks a class; what an update leaves as it is stays valid.
func validateClass(spec, old *resourcev1.DeviceClassSpec) field.ErrorList {
	path := field.NewPath("spec")
	sameSelectors := old != nil && apiequality.Semantic.DeepEqual(spec.Selectors, old.Selectors)
	sameConfig := old != nil && apiequality.Semantic.DeepEqual(spec.Config, old.Config)
	errs := validateSelectors(spec.Selectors, path.Child("selectors"), sameSelectors)
	return append(errs, each(spec.Config, resourcev1.DeviceConfigMaxSize, path.Child("config"), func(c *resourcev1.DeviceClassConfiguration, at *field.Path) field.ErrorList {
		return validateConfiguration(&c.DeviceConfiguration, at, sameConfig)
	})...)
}
