// Package storagemigration has the kinds of storagemigration.k8s.io.
package storagemigration

import (
	"context"
	"strings"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

type migration = storagemigrationv1.StorageVersionMigration

// StorageVersionMigrations ask for all objects of a resource to be stored again, in
// the version that is stored now.
func StorageVersionMigrations() *registry.Resource {
	main := registry.Behaviour[*migration]{
		PrepareForCreate: func(_ context.Context, obj *migration) {
			obj.Status = storagemigrationv1.StorageVersionMigrationStatus{}
		},
		PrepareForUpdate: func(_ context.Context, obj, old *migration) { obj.Status = old.Status },
		Validate:         func(_ context.Context, obj *migration) field.ErrorList { return validate(obj) },
		ValidateUpdate: func(_ context.Context, obj, old *migration) field.ErrorList {
			return append(validate(obj), apivalidation.ValidateImmutableField(obj.Spec, old.Spec, field.NewPath("spec"))...)
		},
		SpecOf:      func(obj *migration) any { return &obj.Spec },
		ResetFields: []string{"status"},
	}
	status := main
	status.PrepareForUpdate = func(_ context.Context, obj, old *migration) {
		obj.Spec = old.Spec
		metav1.ResetObjectMetaForStatus(obj, old)
	}
	status.ValidateUpdate = func(_ context.Context, obj, old *migration) field.ErrorList { return validateStatus(obj, old) }
	status.ResetFields = []string{"metadata", "spec"}
	return registry.Define(registry.Definition[*migration]{
		GroupVersion: storagemigrationv1.SchemeGroupVersion, Resource: "storageversionmigrations", Kind: "StorageVersionMigration", Singular: "storageversionmigration",
		New:       func() *migration { return &migration{} },
		NewList:   func() runtime.Object { return &storagemigrationv1.StorageVersionMigrationList{} },
		KeyPrefix: "/registry/storageversionmigrations",
		Strategy:  main,
		Columns: []metav1.TableColumnDefinition{
			table.String("Name", metav1.ObjectMeta{}.SwaggerDoc()["name"]), table.String("Resource", "Fully qualified resource to migrate"),
		},
		Row: func(obj *migration) []any {
			return []any{obj.Name, schema.GroupResource(obj.Spec.Resource).String()}
		},
		Subresources: []registry.Subresource{
			{Name: "status", Verbs: []string{"get", "patch", "update"}, Update: registry.Erase(status)},
		},
	})
}

func validate(obj *migration) field.ErrorList {
	r, path := obj.Spec.Resource, field.NewPath("spec", "resource")
	var errs field.ErrorList
	if r.Resource == "" {
		errs = append(errs, field.Required(path.Child("resource"), "resource is required"))
	} else if msgs := utilvalidation.IsDNS1123Label(r.Resource); len(msgs) > 0 {
		errs = append(errs, field.Invalid(path.Child("resource"), r.Resource, strings.Join(msgs, ",")))
	}
	if r.Group != "" {
		if msgs := utilvalidation.IsDNS1123Subdomain(r.Group); len(msgs) > 0 {
			errs = append(errs, field.Invalid(path.Child("group"), r.Group, strings.Join(msgs, ",")))
		}
	}
	return errs
}

func validateStatus(obj, old *migration) field.ErrorList {
	path := field.NewPath("status")
	version, was := obj.Status.ResourceVersion, old.Status.ResourceVersion
	var errs field.ErrorList
	if version != "" {
		if _, err := resourceversion.CompareResourceVersion(version, version); err != nil {
			errs = append(errs, field.Invalid(path.Child("resourceVersion"), version, err.Error()))
		}
	}
	if was != "" && was != version {
		errs = append(errs, field.Invalid(path.Child("resourceVersion"), version, "field is immutable"))
	}
	at := path.Child("conditions")
	errs = append(errs, metav1validation.ValidateConditions(obj.Status.Conditions, at)...)
	is := func(m *migration, kind storagemigrationv1.MigrationConditionType) bool {
		return meta.IsStatusConditionTrue(m.Status.Conditions, string(kind))
	}
	running, succeeded, failed := is(obj, storagemigrationv1.MigrationRunning), is(obj, storagemigrationv1.MigrationSucceeded), is(obj, storagemigrationv1.MigrationFailed)
	refuse := func(wrong bool, detail string) {
		if wrong {
			errs = append(errs, field.Invalid(at, obj.Status.Conditions, detail))
		}
	}
	refuse(succeeded && failed, "Both success and failed conditions cannot be true at the same time")
	refuse(running && (succeeded || failed), "Running condition cannot be true when success or failed conditions are true")
	refuse(is(old, storagemigrationv1.MigrationSucceeded) && !succeeded, "Success condition cannot be set to false once it is true")
	refuse(is(old, storagemigrationv1.MigrationFailed) && !failed, "Failed condition cannot be set to false once it is true")
	return errs
}
