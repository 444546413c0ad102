package storage

import (
	"context"

	storagev1 "k8s.io/api/storage/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// CSIStorageCapacities say how much storage there is where.
func CSIStorageCapacities() *registry.Resource {
	doc := storagev1.CSIStorageCapacity{}.SwaggerDoc()
	return registry.Define(registry.Definition[*storagev1.CSIStorageCapacity]{
		GroupVersion: v1, Resource: "csistoragecapacities", Kind: "CSIStorageCapacity", Singular: "csistoragecapacity", Namespaced: true,
		New:       func() *storagev1.CSIStorageCapacity { return &storagev1.CSIStorageCapacity{} },
		NewList:   func() runtime.Object { return &storagev1.CSIStorageCapacityList{} },
		KeyPrefix: "/registry/csistoragecapacities",
		Strategy: registry.Behaviour[*storagev1.CSIStorageCapacity]{
			Validate: func(_ context.Context, obj *storagev1.CSIStorageCapacity) field.ErrorList {
				return validateCapacity(obj)
			},
			ValidateUpdate: func(_ context.Context, obj, old *storagev1.CSIStorageCapacity) field.ErrorList {
				errs := validateCapacity(obj)
				errs = append(errs, apivalidation.ValidateImmutableField(obj.NodeTopology, old.NodeTopology, field.NewPath("nodeTopology"))...)
				return append(errs, apivalidation.ValidateImmutableField(obj.StorageClassName, old.StorageClassName, field.NewPath("storageClassName"))...)
			},
			RequireVersionOnUpdate: true,
		},
		Columns: []metav1.TableColumnDefinition{
			table.Name(), table.String("StorageClassName", doc["storageClassName"]), table.String("Capacity", doc["capacity"]),
		},
		Row: func(obj *storagev1.CSIStorageCapacity) []any {
			capacity := "<unset>"
			if obj.Capacity != nil {
				capacity = obj.Capacity.String()
			}
			return []any{obj.Name, obj.StorageClassName, capacity}
		},
	})
}

func validateCapacity(obj *storagev1.CSIStorageCapacity) field.ErrorList {
	errs := invalid(field.NewPath("storageClassName"), obj.StorageClassName, apivalidation.NameIsDNSSubdomain(obj.StorageClassName, false))
	errs = append(errs, metav1validation.ValidateLabelSelector(obj.NodeTopology, metav1validation.LabelSelectorValidationOptions{}, field.NewPath("nodeTopology"))...)
	if obj.Capacity != nil && obj.Capacity.Sign() < 0 {
		errs = append(errs, field.Invalid(field.NewPath("capacity"), obj.Capacity.String(), "must be greater than or equal to 0"))
	}
	if obj.MaximumVolumeSize != nil && obj.MaximumVolumeSize.Sign() < 0 {
		errs = append(errs, field.Invalid(field.NewPath("maximumVolumeSize"), obj.MaximumVolumeSize.String(), "must be greater than or equal to 0"))
	}
	return errs
}
