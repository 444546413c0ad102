// Package coordination has the kinds of coordination.k8s.io.
package coordination

import (
	"context"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// Leases say who holds something, and since when.
func Leases() *registry.Resource {
	return registry.Define(registry.Definition[*coordinationv1.Lease]{
		GroupVersion: coordinationv1.SchemeGroupVersion, Resource: "leases", Kind: "Lease", Singular: "lease",
		Namespaced: true,
		New:        func() *coordinationv1.Lease { return &coordinationv1.Lease{} },
		NewList:    func() runtime.Object { return &coordinationv1.LeaseList{} },
		KeyPrefix:  "/registry/leases",
		Strategy: registry.Behaviour[*coordinationv1.Lease]{
			Validate: func(_ context.Context, obj *coordinationv1.Lease) field.ErrorList { return validateLease(obj) },
			ValidateUpdate: func(_ context.Context, obj, _ *coordinationv1.Lease) field.ErrorList {
				return validateLease(obj)
			},
			AllowCreateOnUpdate:    true,
			RequireVersionOnUpdate: true,
		},
		Columns: []metav1.TableColumnDefinition{
			table.Name(), table.String("Holder", coordinationv1.LeaseSpec{}.SwaggerDoc()["holderIdentity"]), table.Age(),
		},
		Row: func(obj *coordinationv1.Lease) []any {
			return []any{obj.Name, table.Value(obj.Spec.HolderIdentity), table.Since(obj.CreationTimestamp)}
		},
	})
}

func validateLease(obj *coordinationv1.Lease) field.ErrorList {
	var errs field.ErrorList
	spec, path := &obj.Spec, field.NewPath("spec")
	if d := spec.LeaseDurationSeconds; d != nil && *d <= 0 {
		errs = append(errs, field.Invalid(path.Child("leaseDurationSeconds"), *d, "must be greater than 0"))
	}
	if n := spec.LeaseTransitions; n != nil && *n < 0 {
		errs = append(errs, field.Invalid(path.Child("leaseTransitions"), *n, "must be greater than or equal to 0"))
	}
	if spec.Strategy != nil {
		if *spec.Strategy == "" {
			errs = append(errs, field.Invalid(path.Child("strategy"), *spec.Strategy, "must not be empty"))
		} else {
			for _, msg := range utilvalidation.IsQualifiedName(string(*spec.Strategy)) {
				errs = append(errs, field.Invalid(path.Child("strategy"), *spec.Strategy, msg))
			}
		}
	}
	if spec.PreferredHolder != nil && (spec.Strategy == nil || *spec.Strategy == "") {
		errs = append(errs, field.Forbidden(path.Child("preferredHolder"), "may only be specified if `strategy` is defined"))
	}
	return errs
}
