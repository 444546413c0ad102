// Package authz says whether a user may do what a request asks.
package authz

import (
	"context"

	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
)

// Attributes is one action to be authorized.
type Attributes struct {
	User            *authn.User
	ResourceRequest bool
	Verb            string
	Namespace       string
	APIGroup        string
	APIVersion      string
	Resource        string
	Subresource     string
	Name            string
	Path            string // of a non-resource request
	FieldSelector   string // raw; "" is none
	LabelSelector   string
}

// Decision is an authorizer's verdict.
type Decision uint8

// The decisions. NoOpinion lets the next authorizer speak; at the end of the
// list it denies.
const (
	NoOpinion Decision = iota
	Allow
	Deny
)

// Authorizer decides on an action. Reason is for the user's eyes.
type Authorizer interface {
	Authorize(ctx context.Context, a Attributes) (decision Decision, reason string, err error)
}
