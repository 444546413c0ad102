package storage

import (
	"context"

	storagev1 "k8s.io/api/storage/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// VolumeAttributesClasses name properties of volumes that can change.
func VolumeAttributesClasses() *registry.Resource {
	return registry.Define(registry.Definition[*storagev1.VolumeAttributesClass]{
		GroupVersion: v1, Resource: "volumeattributesclasses", Kind: "VolumeAttributesClass", Singular: "volumeattributesclass", ShortNames: []string{"vac"},
		ReturnDeleted: true,
		New:           func() *storagev1.VolumeAttributesClass { return &storagev1.VolumeAttributesClass{} },
		NewList:       func() runtime.Object { return &storagev1.VolumeAttributesClassList{} },
		KeyPrefix:     "/registry/volumeattributesclasses",
		Strategy: registry.Behaviour[*storagev1.VolumeAttributesClass]{
			Validate: func(_ context.Context, obj *storagev1.VolumeAttributesClass) field.ErrorList {
				errs := podspec.ValidateCSIDriverName(obj.DriverName, field.NewPath("driverName"))
				if len(obj.Parameters) == 0 {
					return append(errs, field.Required(field.NewPath("parameters"), "must contain at least one key/value pair"))
				}
				return append(errs, validateParameters(obj.Parameters, field.NewPath("parameters"))...)
			},
			ValidateUpdate: func(_ context.Context, obj, old *storagev1.VolumeAttributesClass) field.ErrorList {
				errs := apivalidation.ValidateImmutableField(obj.DriverName, old.DriverName, field.NewPath("driverName"))
				return append(errs, apivalidation.ValidateImmutableField(obj.Parameters, old.Parameters, field.NewPath("parameters"))...)
			},
		},
		Columns: []metav1.TableColumnDefinition{
			table.Name(), table.String("DriverName", storagev1.VolumeAttributesClass{}.SwaggerDoc()["driverName"]), table.Age(),
		},
		Row: func(obj *storagev1.VolumeAttributesClass) []any {
			return []any{obj.Name, obj.DriverName, table.Since(obj.CreationTimestamp)}
		},
	})
}
