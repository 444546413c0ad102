package authn

import (
	"errors"
	"net/http"
	"slices"
)

// Union asks authenticators in order, and takes the first user that one of them
// finds. Make one with NewUnion.
type Union struct {
	list []Authenticator
	last Authenticator
}

// NewUnion makes a union. The last one, which may be nil, is for requests without
// any credential (anonymous): it is not asked when a credential was found
// wanting, so that a bad token is an error and never a stranger.
func NewUnion(last Authenticator, list ...Authenticator) *Union {
	return &Union{list: list, last: last}
}

// Authenticate implements Authenticator. Every user but an anonymous one is made
// a member of system:authenticated, and the credential is taken out of the
// request's headers, so that no proxied backend sees it. Without a user the
// error, if any, joins what the authenticators said.
func (u *Union) Authenticate(r *http.Request) (*User, error) {
	var failures []error
	for _, authenticator := range u.list {
		user, err := authenticator.Authenticate(r)
		if err != nil {
			failures = append(failures, err)
			continue
		}
		if user != nil {
			r.Header.Del("Authorization")
			return authenticated(user), nil
		}
	}
	if len(failures) > 0 {
		return nil, errors.Join(failures...)
	}
	if u.last == nil {
		return nil, nil
	}
	return u.last.Authenticate(r)
}

func authenticated(user *User) *User {
	if user.Name == Anonymous || user.InGroup(AuthenticatedGroup) || user.InGroup(UnauthenticatedGroup) {
		return user
	}
	copied := *user
	copied.Groups = append(slices.Clone(user.Groups), AuthenticatedGroup)
	return &copied
}
