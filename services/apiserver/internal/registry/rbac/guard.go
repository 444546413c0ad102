package rbac

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
)

// guard refuses to let users grant rights that they do not hold.
type guard struct {
	rules      Rules
	authorizer authz.Authorizer
}

// mayWriteRole checks the writer of a role with the rules.
func (g *guard) mayWriteRole(ctx context.Context, resource schema.GroupResource, namespace, name string, rules []rbacv1.PolicyRule) error {
	user := request.UserFrom(ctx)
	if user == nil || user.InGroup(authn.MastersGroup) || g.allowed(ctx, user, "escalate", resource.Resource, namespace, name) {
		return nil
	}
	if err := g.holds(user, namespace, rules); err != nil {
		return apierrors.NewForbidden(resource, name, err)
	}
	return nil
}

// mayAggregate checks the writer of an aggregated role, which may come to contain
// anything.
func (g *guard) mayAggregate(ctx context.Context, name string) error {
	user := request.UserFrom(ctx)
	if user == nil || user.InGroup(authn.MastersGroup) || g.allowed(ctx, user, "escalate", "clusterroles", "", name) {
		return nil
	}
	everything := []rbacv1.PolicyRule{
		{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}},
		{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}},
	}
	if g.holds(user, "", everything) != nil {
		return apierrors.NewForbidden(rbacv1.Resource("clusterroles"), name, errors.New("must have cluster-admin privileges to use an aggregationRule"))
	}
	return nil
}

// mayBind checks the writer of a binding.
func (g *guard) mayBind(ctx context.Context, resource schema.GroupResource, namespace, name string, ref rbacv1.RoleRef) error {
	user := request.UserFrom(ctx)
	role := "clusterroles"
	if ref.Kind == "Role" {
		role = "roles"
	}
	if user == nil || user.InGroup(authn.MastersGroup) || g.allowed(ctx, user, "bind", role, namespace, ref.Name) {
		return nil
	}
	rules, ok := g.rules.RoleRules(ref, namespace)
	if !ok {
		return apierrors.NewNotFound(rbacv1.Resource(role), ref.Name)
	}
	if err := g.holds(user, namespace, rules); err != nil {
		return apierrors.NewForbidden(resource, name, err)
	}
	return nil
}

func (g *guard) allowed(ctx context.Context, user *authn.User, verb, resource, namespace, name string) bool {
	decision, _, err := g.authorizer.Authorize(ctx, authz.Attributes{
		User: user, ResourceRequest: true, Verb: verb, APIGroup: rbacv1.GroupName, APIVersion: "*",
		Resource: resource, Namespace: namespace, Name: name,
	})
	return err == nil && decision == authz.Allow
}

// holds says, as an error, which of the rules the user does not hold.
func (g *guard) holds(user *authn.User, namespace string, rules []rbacv1.PolicyRule) error {
	missing := authz.Uncovered(g.rules.RulesFor(user, namespace), rules)
	if len(missing) == 0 {
		return nil
	}
	var lines []string
	for _, rule := range compact(missing) {
		lines = append(lines, describe(rule))
	}
	slices.Sort(lines)
	return fmt.Errorf("user %q (groups=%q) is attempting to grant RBAC permissions not currently held:\n%s",
		user.Name, user.Groups, strings.Join(slices.Compact(lines), "\n"))
}

// compact joins rules for a single resource (and name) that differ in their verb.
func compact(rules []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	var out []rbacv1.PolicyRule
	at := map[string]int{}
	for _, rule := range rules {
		if len(rule.NonResourceURLs) > 0 {
			out = append(out, rule)
			continue
		}
		key := fmt.Sprintf("%q %q %q", rule.APIGroups, rule.Resources, rule.ResourceNames)
		if i, ok := at[key]; ok {
			out[i].Verbs = append(slices.Clone(out[i].Verbs), rule.Verbs...)
			continue
		}
		at[key] = len(out)
		out = append(out, rule)
	}
	return out
}

// describe is a rule in the form in which clients know it from this message.
func describe(rule rbacv1.PolicyRule) string {
	var parts []string
	add := func(name string, list []string) {
		if len(list) > 0 {
			parts = append(parts, fmt.Sprintf("%s:%q", name, list))
		}
	}
	add("APIGroups", rule.APIGroups)
	add("Resources", rule.Resources)
	add("NonResourceURLs", rule.NonResourceURLs)
	add("ResourceNames", rule.ResourceNames)
	add("Verbs", rule.Verbs)
	return "{" + strings.Join(parts, ", ") + "}"
}

// onlyFreed says whether an update changed nothing but owner references and
// finalizers, which the garbage collector may do to any object.
func onlyFreed(obj, old registry.Object) bool {
	a, aok := obj.DeepCopyObject().(registry.Object)
	b, bok := old.DeepCopyObject().(registry.Object)
	if !aok || !bok {
		return false
	}
	for _, o := range []registry.Object{a, b} {
		o.SetOwnerReferences(nil)
		o.SetFinalizers(nil)
		o.SetManagedFields(nil)
		o.SetResourceVersion("")
	}
	return equality.Semantic.DeepEqual(runtime.Object(a), runtime.Object(b))
}
