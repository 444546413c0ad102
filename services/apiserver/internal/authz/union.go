package authz

import (
	"context"
	"errors"
	"fmt"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
)

// Union asks authorizers in order; the first that allows or denies decides.
type Union []Authorizer

// Authorize implements Authorizer. An authorizer that fails has no opinion; the
// errors are returned when nobody decides.
func (u Union) Authorize(ctx context.Context, a Attributes) (Decision, string, error) {
	var reasons []string
	var failures []error
	for _, authorizer := range u {
		decision, reason, err := authorizer.Authorize(ctx, a)
		if err != nil {
			failures = append(failures, err)
		}
		if decision != NoOpinion {
			return decision, reason, err
		}
		if reason != "" {
			reasons = append(reasons, reason)
		}
	}
	return NoOpinion, strings.Join(reasons, "\n"), errors.Join(failures...)
}

// RuleLister tells which rules a user holds in a namespace, so far as they can be
// told in advance.
type RuleLister interface {
	// Rules are shared and must not be changed. An error says why they are not all.
	Rules(user *authn.User, namespace string) ([]rbacv1.PolicyRule, error)
}

// Rules implements RuleLister with those of its authorizers that do.
func (u Union) Rules(user *authn.User, namespace string) ([]rbacv1.PolicyRule, error) {
	var rules []rbacv1.PolicyRule
	var failures []error
	for _, authorizer := range u {
		if lister, ok := authorizer.(RuleLister); ok {
			more, err := lister.Rules(user, namespace)
			rules = append(rules, more...)
			failures = append(failures, err)
		}
	}
	return rules, errors.Join(failures...)
}

// everything are the rules of who may do everything.
func everything() []rbacv1.PolicyRule {
	all := []string{rbacv1.VerbAll}
	return []rbacv1.PolicyRule{{Verbs: all, APIGroups: all, Resources: all}, {Verbs: all, NonResourceURLs: all}}
}

// Masters allows everything to members of system:masters. It comes first, so that
// an administrator can repair what the other authorizers depend on.
type Masters struct{}

// Authorize implements Authorizer.
func (Masters) Authorize(_ context.Context, a Attributes) (Decision, string, error) {
	if a.User != nil && a.User.InGroup(authn.MastersGroup) {
		return Allow, "", nil
	}
	return NoOpinion, "", nil
}

// Rules implements RuleLister.
func (Masters) Rules(user *authn.User, _ string) ([]rbacv1.PolicyRule, error) {
	if user.InGroup(authn.MastersGroup) {
		return everything(), nil
	}
	return nil, nil
}

// AlwaysAllow allows everything to everybody.
type AlwaysAllow struct{}

// Authorize implements Authorizer.
func (AlwaysAllow) Authorize(context.Context, Attributes) (Decision, string, error) {
	return Allow, "", nil
}

// Rules implements RuleLister.
func (AlwaysAllow) Rules(*authn.User, string) ([]rbacv1.PolicyRule, error) { return everything(), nil }

// AlwaysDeny has no opinion on anything, and so denies.
type AlwaysDeny struct{}

// Authorize implements Authorizer.
func (AlwaysDeny) Authorize(context.Context, Attributes) (Decision, string, error) {
	return NoOpinion, "Everything is forbidden.", nil
}

// FromModes makes the authorizer of --authorization-mode: system:masters, then
// the modes in order. It refuses unknown, repeated and absent modes.
func FromModes(modes []string, rbac *RBAC, node *Node) (Union, error) {
	if len(modes) == 0 {
		return nil, errors.New("--authorization-mode: at least one mode is needed")
	}
	known := map[string]Authorizer{"Node": node, "RBAC": rbac, "AlwaysAllow": AlwaysAllow{}, "AlwaysDeny": AlwaysDeny{}}
	union := Union{Masters{}}
	for _, mode := range modes {
		authorizer, ok := known[mode]
		if !ok {
			return nil, fmt.Errorf("--authorization-mode: mode %q is unknown or given twice (supported: Node, RBAC, AlwaysAllow, AlwaysDeny)", mode)
		}
		delete(known, mode)
		union = append(union, authorizer)
	}
	return union, nil
}
