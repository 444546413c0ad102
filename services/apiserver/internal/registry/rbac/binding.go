package rbac

import (
	"context"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// roleBindings give subjects a role in one namespace.
func roleBindings(g *guard) *registry.Resource {
	return registry.Define(registry.Definition[*rbacv1.RoleBinding]{
		GroupVersion: rbacv1.SchemeGroupVersion, Resource: "rolebindings", Kind: "RoleBinding", Singular: "rolebinding", Namespaced: true,
		New:       func() *rbacv1.RoleBinding { return &rbacv1.RoleBinding{} },
		NewList:   func() runtime.Object { return &rbacv1.RoleBindingList{} },
		KeyPrefix: "/registry/rolebindings",
		Strategy: registry.Behaviour[*rbacv1.RoleBinding]{
			AllowCreateOnUpdate: true,
			ValidateName:        validateName,
			Default:             func(obj *rbacv1.RoleBinding) { setDefaults(&obj.RoleRef, obj.Subjects) },
			Validate: func(_ context.Context, obj *rbacv1.RoleBinding) field.ErrorList {
				return validateBinding(obj.RoleRef, obj.Subjects, true)
			},
			ValidateUpdate: func(_ context.Context, obj, old *rbacv1.RoleBinding) field.ErrorList {
				return append(validateBinding(obj.RoleRef, obj.Subjects, true), validateSameRef(obj.RoleRef, old.RoleRef)...)
			},
			Begin: func(ctx context.Context, obj, old *rbacv1.RoleBinding, _ bool) (func(bool), error) {
				if old != nil && onlyFreed(obj, old) {
					return nothing, nil
				}
				return nothing, g.mayBind(ctx, rbacv1.Resource("rolebindings"), obj.Namespace, obj.Name, obj.RoleRef)
			},
		},
		Columns: bindingColumns(),
		Row:     func(obj *rbacv1.RoleBinding) []any { return bindingRow(&obj.ObjectMeta, obj.RoleRef, obj.Subjects) },
	})
}

// clusterRoleBindings give subjects a ClusterRole in every namespace, and on what
// has none.
func clusterRoleBindings(g *guard) *registry.Resource {
	return registry.Define(registry.Definition[*rbacv1.ClusterRoleBinding]{
		GroupVersion: rbacv1.SchemeGroupVersion, Resource: "clusterrolebindings", Kind: "ClusterRoleBinding", Singular: "clusterrolebinding",
		New:       func() *rbacv1.ClusterRoleBinding { return &rbacv1.ClusterRoleBinding{} },
		NewList:   func() runtime.Object { return &rbacv1.ClusterRoleBindingList{} },
		KeyPrefix: "/registry/clusterrolebindings",
		Strategy: registry.Behaviour[*rbacv1.ClusterRoleBinding]{
			AllowCreateOnUpdate: true,
			ValidateName:        validateName,
			Default:             func(obj *rbacv1.ClusterRoleBinding) { setDefaults(&obj.RoleRef, obj.Subjects) },
			Validate: func(_ context.Context, obj *rbacv1.ClusterRoleBinding) field.ErrorList {
				return validateBinding(obj.RoleRef, obj.Subjects, false)
			},
			ValidateUpdate: func(_ context.Context, obj, old *rbacv1.ClusterRoleBinding) field.ErrorList {
				return append(validateBinding(obj.RoleRef, obj.Subjects, false), validateSameRef(obj.RoleRef, old.RoleRef)...)
			},
			Begin: func(ctx context.Context, obj, old *rbacv1.ClusterRoleBinding, _ bool) (func(bool), error) {
				if old != nil && onlyFreed(obj, old) {
					return nothing, nil
				}
				return nothing, g.mayBind(ctx, rbacv1.Resource("clusterrolebindings"), "", obj.Name, obj.RoleRef)
			},
		},
		Columns: bindingColumns(),
		Row: func(obj *rbacv1.ClusterRoleBinding) []any {
			return bindingRow(&obj.ObjectMeta, obj.RoleRef, obj.Subjects)
		},
	})
}

func setDefaults(ref *rbacv1.RoleRef, subjects []rbacv1.Subject) {
	if ref.APIGroup == "" {
		ref.APIGroup = rbacv1.GroupName
	}
	for i := range subjects {
		if s := &subjects[i]; s.APIGroup == "" && (s.Kind == rbacv1.UserKind || s.Kind == rbacv1.GroupKind) {
			s.APIGroup = rbacv1.GroupName
		}
	}
}

func bindingColumns() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		table.Name(),
		table.String("Role", rbacv1.RoleBinding{}.SwaggerDoc()["roleRef"]),
		table.Age(),
		table.Wide(table.String("Users", "Users in the roleBinding")),
		table.Wide(table.String("Groups", "Groups in the roleBinding")),
		table.Wide(table.String("ServiceAccounts", "ServiceAccounts in the roleBinding")),
	}
}

func bindingRow(meta *metav1.ObjectMeta, ref rbacv1.RoleRef, subjects []rbacv1.Subject) []any {
	var users, groups, accounts []string
	for _, s := range subjects {
		switch s.Kind {
		case rbacv1.UserKind:
			users = append(users, s.Name)
		case rbacv1.GroupKind:
			groups = append(groups, s.Name)
		case rbacv1.ServiceAccountKind:
			accounts = append(accounts, s.Namespace+"/"+s.Name)
		}
	}
	return []any{
		meta.Name, ref.Kind + "/" + ref.Name, table.Since(meta.CreationTimestamp),
		strings.Join(users, ", "), strings.Join(groups, ", "), strings.Join(accounts, ", "),
	}
}
