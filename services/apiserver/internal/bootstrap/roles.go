package bootstrap

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
)

func policyItems(policy *Policy) []item {
	var items []item
	for _, want := range policy.ClusterRoles {
		items = append(items, item{rbacv1.Resource("clusterroles"), want, repairer(&want.ObjectMeta, func(have *rbacv1.ClusterRole) (bool, error) {
			return repairClusterRole(have, want), nil
		})})
	}
	for _, want := range policy.Roles {
		items = append(items, item{rbacv1.Resource("roles"), want, repairer(&want.ObjectMeta, func(have *rbacv1.Role) (bool, error) {
			return addRules(&have.Rules, want.Rules), nil
		})})
	}
	for _, want := range policy.ClusterRoleBindings {
		items = append(items, item{rbacv1.Resource("clusterrolebindings"), want, repairer(&want.ObjectMeta, func(have *rbacv1.ClusterRoleBinding) (bool, error) {
			return repairBinding(have.RoleRef, want.RoleRef, &have.Subjects, want.Subjects)
		})})
	}
	for _, want := range policy.RoleBindings {
		items = append(items, item{rbacv1.Resource("rolebindings"), want, repairer(&want.ObjectMeta, func(have *rbacv1.RoleBinding) (bool, error) {
			return repairBinding(have.RoleRef, want.RoleRef, &have.Subjects, want.Subjects)
		})})
	}
	return items
}

// repairer repairs labels and annotations, then what repair does. An object whose
// annotation rbac.authorization.kubernetes.io/autoupdate is "false" belongs to
// the administrator and is left alone.
func repairer[T interface {
	runtime.Object
	metav1.Object
}](want *metav1.ObjectMeta, repair func(have T) (bool, error)) func(runtime.Object) (bool, error) {
	return func(obj runtime.Object) (bool, error) {
		have, ok := obj.(T)
		if !ok || have.GetAnnotations()[rbacv1.AutoUpdateAnnotationKey] == "false" {
			return false, nil
		}
		labels, changedLabels := merged(have.GetLabels(), want.Labels)
		annotations, changedAnnotations := merged(have.GetAnnotations(), want.Annotations)
		have.SetLabels(labels)
		have.SetAnnotations(annotations)
		changed, err := repair(have)
		return changed || changedLabels || changedAnnotations, err
	}
}

// merged is have with the keys of want that it lacks.
func merged(have, want map[string]string) (map[string]string, bool) {
	changed := false
	for key, value := range want {
		if _, ok := have[key]; !ok {
			if have == nil {
				have = map[string]string{}
			}
			have[key] = value
			changed = true
		}
	}
	return have, changed
}

// repairClusterRole adds rules, or for an aggregated role selectors: its rules are
// the aggregator's.
func repairClusterRole(have, want *rbacv1.ClusterRole) bool {
	if want.AggregationRule == nil {
		return addRules(&have.Rules, want.Rules)
	}
	if have.AggregationRule == nil {
		have.AggregationRule = want.AggregationRule.DeepCopy()
		return true
	}
	changed := false
	for _, selector := range want.AggregationRule.ClusterRoleSelectors {
		if !slices.ContainsFunc(have.AggregationRule.ClusterRoleSelectors, func(s metav1.LabelSelector) bool {
			return equality.Semantic.DeepEqual(s, selector)
		}) {
			have.AggregationRule.ClusterRoleSelectors = append(have.AggregationRule.ClusterRoleSelectors, selector)
			changed = true
		}
	}
	return changed
}

func addRules(have *[]rbacv1.PolicyRule, want []rbacv1.PolicyRule) bool {
	changed := false
	for _, rule := range want {
		if len(authz.Uncovered(*have, []rbacv1.PolicyRule{rule})) > 0 {
			*have = append(*have, *rule.DeepCopy())
			changed = true
		}
	}
	return changed
}

// repairBinding adds subjects. What a binding refers to cannot be changed: one to
// another role is replaced.
func repairBinding(haveRef, wantRef rbacv1.RoleRef, have *[]rbacv1.Subject, want []rbacv1.Subject) (bool, error) {
	if haveRef != wantRef {
		return false, errReplace
	}
	changed := false
	for _, subject := range want {
		if !slices.Contains(*have, subject) {
			*have = append(*have, subject)
			changed = true
		}
	}
	return changed, nil
}
