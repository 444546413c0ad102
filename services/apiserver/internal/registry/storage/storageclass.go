package storage

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// StorageClasses name ways to make volumes.
func StorageClasses() *registry.Resource {
	doc := storagev1.StorageClass{}.SwaggerDoc()
	return registry.Define(registry.Definition[*storagev1.StorageClass]{
		GroupVersion: v1, Resource: "storageclasses", Kind: "StorageClass", Singular: "storageclass", ShortNames: []string{"sc"},
		ReturnDeleted: true,
		New:           func() *storagev1.StorageClass { return &storagev1.StorageClass{} },
		NewList:       func() runtime.Object { return &storagev1.StorageClassList{} },
		KeyPrefix:     "/registry/storageclasses",
		Strategy: registry.Behaviour[*storagev1.StorageClass]{
			Default: func(obj *storagev1.StorageClass) {
				if obj.ReclaimPolicy == nil {
					obj.ReclaimPolicy = ptr.To(corev1.PersistentVolumeReclaimDelete)
				}
				if obj.VolumeBindingMode == nil {
					obj.VolumeBindingMode = ptr.To(storagev1.VolumeBindingImmediate)
				}
			},
			Validate: func(_ context.Context, obj *storagev1.StorageClass) field.ErrorList { return validateClass(obj) },
			ValidateUpdate: func(_ context.Context, obj, old *storagev1.StorageClass) field.ErrorList {
				return validateClassUpdate(obj, old)
			},
		},
		Columns: []metav1.TableColumnDefinition{
			table.Name(),
			table.String("Provisioner", doc["provisioner"]),
			table.String("ReclaimPolicy", doc["reclaimPolicy"]),
			table.String("VolumeBindingMode", doc["volumeBindingMode"]),
			table.String("AllowVolumeExpansion", doc["allowVolumeExpansion"]),
			table.Age(),
		},
		Row: func(obj *storagev1.StorageClass) []any {
			name := obj.Name
			if obj.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" || obj.Annotations["storageclass.beta.kubernetes.io/is-default-class"] == "true" {
				name += " (default)"
			}
			reclaim, binding := string(corev1.PersistentVolumeReclaimDelete), string(storagev1.VolumeBindingImmediate)
			if obj.ReclaimPolicy != nil {
				reclaim = string(*obj.ReclaimPolicy)
			}
			if obj.VolumeBindingMode != nil {
				binding = string(*obj.VolumeBindingMode)
			}
			return []any{name, obj.Provisioner, reclaim, binding, table.Value(obj.AllowVolumeExpansion), table.Since(obj.CreationTimestamp)}
		},
	})
}

func validateClass(obj *storagev1.StorageClass) field.ErrorList {
	var errs field.ErrorList
	if obj.Provisioner == "" {
		errs = append(errs, field.Required(field.NewPath("provisioner"), ""))
	} else {
		errs = append(errs, invalid(field.NewPath("provisioner"), obj.Provisioner, utilvalidation.IsQualifiedName(strings.ToLower(obj.Provisioner)))...)
	}
	errs = append(errs, validateParameters(obj.Parameters, field.NewPath("parameters"))...)
	if p := obj.ReclaimPolicy; p != nil {
		errs = append(errs, oneOf(*p, field.NewPath("reclaimPolicy"), corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRetain)...)
	}
	if m := obj.VolumeBindingMode; m == nil {
		errs = append(errs, field.Required(field.NewPath("volumeBindingMode"), ""))
	} else {
		errs = append(errs, oneOf(*m, field.NewPath("volumeBindingMode"), storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer)...)
	}
	return append(errs, validateTopologies(obj.AllowedTopologies, field.NewPath("allowedTopologies"))...)
}

func validateTopologies(terms []corev1.TopologySelectorTerm, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, term := range terms {
		for _, other := range terms[:i] {
			if apiequality.Semantic.DeepEqual(term, other) {
				errs = append(errs, field.Duplicate(path.Index(i).Child("matchLabelExpressions"), ""))
				break
			}
		}
		keys := map[string]bool{}
		for j, r := range term.MatchLabelExpressions {
			at := path.Index(i).Child("matchLabelExpressions").Index(j)
			if len(r.Values) == 0 {
				errs = append(errs, field.Required(at.Child("values"), ""))
			}
			seen := map[string]bool{}
			for k, value := range r.Values {
				if seen[value] {
					errs = append(errs, field.Duplicate(at.Child("values").Index(k), value))
				}
				seen[value] = true
			}
			errs = append(errs, metav1validation.ValidateLabelName(r.Key, at.Child("key"))...)
			if keys[r.Key] {
				errs = append(errs, field.Duplicate(at.Child("key"), r.Key))
			}
			keys[r.Key] = true
		}
	}
	return errs
}

func validateClassUpdate(obj, old *storagev1.StorageClass) field.ErrorList {
	var errs field.ErrorList
	for _, f := range []struct {
		name     string
		now, was any
	}{{"parameters", obj.Parameters, old.Parameters}, {"provisioner", obj.Provisioner, old.Provisioner}, {"reclaimPolicy", obj.ReclaimPolicy, old.ReclaimPolicy}} {
		if !apiequality.Semantic.DeepEqual(f.now, f.was) {
			errs = append(errs, field.Forbidden(field.NewPath(f.name), "updates to "+f.name+" are forbidden."))
		}
	}
	return append(errs, apivalidation.ValidateImmutableField(obj.VolumeBindingMode, old.VolumeBindingMode, field.NewPath("volumeBindingMode"))...)
}
