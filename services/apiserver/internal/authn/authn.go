// Package authn says who sends a request.
package authn

import (
	"net/http"
	"slices"
)

// Names that the API gives a meaning to.
const (
	Anonymous            = "system:anonymous"
	AuthenticatedGroup   = "system:authenticated"
	UnauthenticatedGroup = "system:unauthenticated"
	MastersGroup         = "system:masters"
	NodesGroup           = "system:nodes"
	NodeUserPrefix       = "system:node:"
	APIServerUser        = "system:apiserver"
)

// User is an authenticated identity. It is shared and must not be changed.
type User struct {
	Name   string
	UID    string
	Groups []string
	Extra  map[string][]string
}

// InGroup says whether the user is a member of group.
func (u *User) InGroup(group string) bool { return slices.Contains(u.Groups, group) }

// Authenticator finds the user of a request. A nil user without an error means
// that the request carries no credential of this kind; an error means that it
// carries one that is not valid.
type Authenticator interface {
	Authenticate(r *http.Request) (*User, error)
}
