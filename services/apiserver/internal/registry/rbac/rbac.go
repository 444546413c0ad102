// Package rbac has the kinds of rbac.authorization.k8s.io/v1.
//
// Whoever writes a role must hold the rules in it, or the verb escalate on it;
// whoever writes a binding must hold the rules of the role that it refers to, or
// the verb bind on that role. Writes of the server itself are not checked.
package rbac

import (
	"fmt"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// Rules tells which rules users hold and roles contain. *authz.RBAC implements it.
type Rules interface {
	RulesFor(user *authn.User, namespace string) []rbacv1.PolicyRule
	RoleRules(ref rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule, bool)
}

// Resources are the kinds, one a line.
func Resources(rules Rules, authorizer authz.Authorizer) []*registry.Resource {
	guard := &guard{rules: rules, authorizer: authorizer}
	return []*registry.Resource{
		clusterRoleBindings(guard),
		clusterRoles(guard),
		roleBindings(guard),
		roles(guard),
	}
}

// validateName lets names have colons and more: all that can stand in a path.
func validateName(name string, prefix bool) []string {
	var faults []string
	if !prefix && (name == "." || name == "..") {
		faults = append(faults, fmt.Sprintf("may not be '%s'", name))
	}
	for _, illegal := range []string{"/", "%"} {
		if strings.Contains(name, illegal) {
			faults = append(faults, fmt.Sprintf("may not contain '%s'", illegal))
		}
	}
	return faults
}
