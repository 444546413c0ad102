package crd

import (
	"context"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/scheme"
)

func behaviour() registry.Behaviour[*apiextensionsv1.CustomResourceDefinition] {
	return registry.Behaviour[*apiextensionsv1.CustomResourceDefinition]{
		Default: func(obj *apiextensionsv1.CustomResourceDefinition) { scheme.Scheme.Default(obj) },
		PrepareForCreate: func(_ context.Context, obj *apiextensionsv1.CustomResourceDefinition) {
			obj.Status = apiextensionsv1.CustomResourceDefinitionStatus{}
			addStoredVersion(obj)
		},
		PrepareForUpdate: func(_ context.Context, obj, old *apiextensionsv1.CustomResourceDefinition) {
			obj.Status = *old.Status.DeepCopy()
			addStoredVersion(obj)
		},
		SpecOf:                 func(obj *apiextensionsv1.CustomResourceDefinition) any { return obj.Spec },
		Validate:               validate,
		ValidateUpdate:         validateWith(validation.ValidateCustomResourceDefinitionUpdate),
		Warnings:               warnings,
		RequireVersionOnUpdate: true,
		ResetFields:            []string{"status"},
		// Until its deletion has begun a definition is held, so that it is marked
		// first: then the cleanup's finalizer holds it.
		Held:        func(obj *apiextensionsv1.CustomResourceDefinition) bool { return obj.DeletionTimestamp == nil },
		MarkDeleted: markDeleted,
	}
}

func statusBehaviour() registry.Behaviour[*apiextensionsv1.CustomResourceDefinition] {
	return registry.Behaviour[*apiextensionsv1.CustomResourceDefinition]{
		PrepareForUpdate: func(_ context.Context, obj, old *apiextensionsv1.CustomResourceDefinition) {
			obj.Spec = *old.Spec.DeepCopy()
		},
		ValidateUpdate: validateWith(validation.ValidateUpdateCustomResourceDefinitionStatus),
		ResetFields:    []string{"spec"},
	}
}

// addStoredVersion notes that objects are stored in the storage version from now
// on. Whoever has migrated them all takes the older ones out.
func addStoredVersion(obj *apiextensionsv1.CustomResourceDefinition) {
	version, err := apihelpers.GetCRDStorageVersion(obj)
	if err == nil && !slices.Contains(obj.Status.StoredVersions, version) {
		obj.Status.StoredVersions = append(obj.Status.StoredVersions, version)
	}
}

func markDeleted(obj *apiextensionsv1.CustomResourceDefinition) {
	if !apihelpers.CRDHasFinalizer(obj, apiextensionsv1.CustomResourceCleanupFinalizer) {
		obj.Finalizers = append(obj.Finalizers, apiextensionsv1.CustomResourceCleanupFinalizer)
	}
	apihelpers.SetCRDCondition(obj, apiextensionsv1.CustomResourceDefinitionCondition{
		Type: apiextensionsv1.Terminating, Status: apiextensionsv1.ConditionTrue, LastTransitionTime: metav1.Now(),
		Reason: "InstanceDeletionPending", Message: "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
	})
}

// internal is the form that upstream's validation works on.
func internal(obj *apiextensionsv1.CustomResourceDefinition) (*apiextensions.CustomResourceDefinition, field.ErrorList) {
	out := &apiextensions.CustomResourceDefinition{}
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(obj.DeepCopy(), out, nil); err != nil {
		return nil, field.ErrorList{field.InternalError(field.NewPath("spec"), err)}
	}
	return out, nil
}

func validate(ctx context.Context, obj *apiextensionsv1.CustomResourceDefinition) field.ErrorList {
	if errs := bounded(obj); len(errs) > 0 {
		return errs
	}
	in, errs := internal(obj)
	if len(errs) > 0 {
		return errs
	}
	return validation.ValidateCustomResourceDefinition(ctx, in)
}

type updateValidation func(ctx context.Context, obj, old *apiextensions.CustomResourceDefinition) field.ErrorList

func validateWith(check updateValidation) func(ctx context.Context, obj, old *apiextensionsv1.CustomResourceDefinition) field.ErrorList {
	return func(ctx context.Context, obj, old *apiextensionsv1.CustomResourceDefinition) field.ErrorList {
		if errs := bounded(obj); len(errs) > 0 {
			return errs
		}
		in, errs := internal(obj)
		if len(errs) > 0 {
			return errs
		}
		was, errs := internal(old)
		if len(errs) > 0 {
			return errs
		}
		return check(ctx, in, was)
	}
}
