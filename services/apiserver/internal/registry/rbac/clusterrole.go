package rbac

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// clusterRoles grant rights wherever they are bound.
func clusterRoles(g *guard) *registry.Resource {
	return registry.Define(registry.Definition[*rbacv1.ClusterRole]{
		GroupVersion: rbacv1.SchemeGroupVersion, Resource: "clusterroles", Kind: "ClusterRole", Singular: "clusterrole",
		New:       func() *rbacv1.ClusterRole { return &rbacv1.ClusterRole{} },
		NewList:   func() runtime.Object { return &rbacv1.ClusterRoleList{} },
		KeyPrefix: "/registry/clusterroles",
		Strategy: registry.Behaviour[*rbacv1.ClusterRole]{
			AllowCreateOnUpdate: true,
			ValidateName:        validateName,
			Validate:            func(_ context.Context, obj *rbacv1.ClusterRole) field.ErrorList { return validateClusterRole(obj, nil) },
			ValidateUpdate: func(_ context.Context, obj, old *rbacv1.ClusterRole) field.ErrorList {
				return validateClusterRole(obj, old)
			},
			Begin: func(ctx context.Context, obj, old *rbacv1.ClusterRole, _ bool) (func(bool), error) {
				if old != nil && onlyFreed(obj, old) {
					return nothing, nil
				}
				if err := g.mayWriteRole(ctx, rbacv1.Resource("clusterroles"), "", obj.Name, obj.Rules); err != nil {
					return nil, err
				}
				if obj.AggregationRule != nil && (old == nil || !equality.Semantic.DeepEqual(obj.AggregationRule, old.AggregationRule)) {
					return nothing, g.mayAggregate(ctx, obj.Name)
				}
				return nothing, nil
			},
		},
	})
}

func validateClusterRole(obj, old *rbacv1.ClusterRole) field.ErrorList {
	errs := validateRules(obj.Rules, false)
	if obj.AggregationRule == nil {
		return errs
	}
	path := field.NewPath("aggregationRule", "clusterRoleSelectors")
	if len(obj.AggregationRule.ClusterRoleSelectors) == 0 {
		return append(errs, field.Required(path, "at least one clusterRoleSelector required if aggregationRule is non-nil"))
	}
	for i := range obj.AggregationRule.ClusterRoleSelectors {
		selector := &obj.AggregationRule.ClusterRoleSelectors[i]
		// What was stored with an invalid value may keep it.
		lenient := old != nil && old.AggregationRule != nil && equality.Semantic.DeepEqual(old.AggregationRule, obj.AggregationRule)
		options := metavalidation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: lenient}
		errs = append(errs, metavalidation.ValidateLabelSelector(selector, options, path.Index(i))...)
	}
	return errs
}
