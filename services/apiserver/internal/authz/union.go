package authz

import (
	"context"
	"errors"
	"fmt"
	"strings"

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

// AlwaysAllow allows everything to everybody.
type AlwaysAllow struct{}

// Authorize implements Authorizer.
func (AlwaysAllow) Authorize(context.Context, Attributes) (Decision, string, error) {
	return Allow, "", nil
}

// AlwaysDeny has no opinion on anything, and so denies.
type AlwaysDeny struct{}

// Authorize implements Authorizer.
func (AlwaysDeny) Authorize(context.Context, Attributes) (Decision, string, error) {
	return NoOpinion, "Everything is forbidden.", nil
}

// FromModes makes the authorizer of --authorization-mode: system:masters, then
// the modes in order. It refuses unknown, repeated and absent modes.
func FromModes(modes []string, rbac *RBAC, node *Node) (Authorizer, error) {
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
