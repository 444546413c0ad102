package storage

import (
	"context"

	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// maxNodeID bounds a driver's name for a node, in bytes.
const maxNodeID = 192

// CSINodes say which drivers run on a node.
func CSINodes() *registry.Resource {
	return registry.Define(registry.Definition[*storagev1.CSINode]{
		GroupVersion: v1, Resource: "csinodes", Kind: "CSINode", Singular: "csinode",
		ReturnDeleted: true,
		New:           func() *storagev1.CSINode { return &storagev1.CSINode{} },
		NewList:       func() runtime.Object { return &storagev1.CSINodeList{} },
		KeyPrefix:     "/registry/csinodes",
		Strategy: registry.Behaviour[*storagev1.CSINode]{
			Validate: func(_ context.Context, obj *storagev1.CSINode) field.ErrorList { return validateCSINode(obj) },
			ValidateUpdate: func(_ context.Context, obj, old *storagev1.CSINode) field.ErrorList {
				return validateCSINodeUpdate(obj, old)
			},
			RequireVersionOnUpdate: true,
		},
		Columns: []metav1.TableColumnDefinition{
			table.Name(), table.Integer("Drivers", "Drivers indicates the number of CSI drivers registered on the node"), table.Age(),
		},
		Row: func(obj *storagev1.CSINode) []any {
			return []any{obj.Name, int64(len(obj.Spec.Drivers)), table.Since(obj.CreationTimestamp)}
		},
	})
}

func validateCSINode(obj *storagev1.CSINode) field.ErrorList {
	path := field.NewPath("spec", "drivers")
	var errs field.ErrorList
	names := map[string]bool{}
	for i, driver := range obj.Spec.Drivers {
		at := path.Index(i)
		errs = append(errs, podspec.ValidateCSIDriverName(driver.Name, at.Child("name"))...)
		if names[driver.Name] {
			errs = append(errs, field.Duplicate(path.Child("name"), driver.Name))
		}
		names[driver.Name] = true
		switch {
		case driver.NodeID == "":
			errs = append(errs, field.Required(at.Child("nodeID"), ""))
		case len(driver.NodeID) > maxNodeID:
			errs = append(errs, field.TooLong(at.Child("nodeID"), "", maxNodeID))
		}
		if a := driver.Allocatable; a != nil && a.Count != nil {
			errs = append(errs, apivalidation.ValidateNonnegativeField(int64(*a.Count), at.Child("allocatable", "count"))...)
		}
		keys := map[string]bool{}
		for _, key := range driver.TopologyKeys {
			if key == "" {
				errs = append(errs, field.Required(at.Child("topologyKeys"), ""))
			}
			if keys[key] {
				errs = append(errs, field.Duplicate(at.Child("topologyKeys"), key))
			}
			keys[key] = true
			errs = append(errs, invalid(at.Child("topologyKeys"), key, utilvalidation.IsQualifiedName(key))...)
		}
	}
	return errs
}

// validateCSINodeUpdate lets drivers come and go, and the number of volumes of
// one change, but nothing else of one that stays.
func validateCSINodeUpdate(obj, old *storagev1.CSINode) field.ErrorList {
	errs := validateCSINode(obj)
	for _, was := range old.Spec.Drivers {
		for _, is := range obj.Spec.Drivers {
			is.Allocatable = was.Allocatable
			if is.Name == was.Name && !apiequality.Semantic.DeepEqual(is, was) {
				errs = append(errs, field.Invalid(field.NewPath("CSINodeDriver"), is, "field is immutable"))
			}
		}
	}
	return errs
}
