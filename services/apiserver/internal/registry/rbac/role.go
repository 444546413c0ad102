package rbac

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// roles grant rights in one namespace.
func roles(g *guard) *registry.Resource {
	return registry.Define(registry.Definition[*rbacv1.Role]{
		GroupVersion: rbacv1.SchemeGroupVersion, Resource: "roles", Kind: "Role", Singular: "role", Namespaced: true,
		New:       func() *rbacv1.Role { return &rbacv1.Role{} },
		NewList:   func() runtime.Object { return &rbacv1.RoleList{} },
		KeyPrefix: "/registry/roles",
		Strategy: registry.Behaviour[*rbacv1.Role]{
			AllowCreateOnUpdate: true,
			ValidateName:        validateName,
			Validate:            func(_ context.Context, obj *rbacv1.Role) field.ErrorList { return validateRules(obj.Rules, true) },
			ValidateUpdate:      func(_ context.Context, obj, _ *rbacv1.Role) field.ErrorList { return validateRules(obj.Rules, true) },
			Begin: func(ctx context.Context, obj, old *rbacv1.Role, _ bool) (func(bool), error) {
				if old != nil && onlyFreed(obj, old) {
					return nothing, nil
				}
				return nothing, g.mayWriteRole(ctx, rbacv1.Resource("roles"), obj.Namespace, obj.Name, obj.Rules)
			},
		},
	})
}

// nothing is what there is to undo or finish after a check.
func nothing(bool) {}
