package authn

import (
	"net/http"
	"strings"
)

// HealthPaths are the paths that anyone may ask: health and the version.
func HealthPaths() []string { return []string{"/healthz", "/livez", "/readyz", "/version"} }

// AnonymousPaths authenticates requests without a credential to some paths as
// system:anonymous, and no others.
type AnonymousPaths struct {
	paths []string
	user  *User
}

// NewAnonymous accepts anonymous requests to paths and to what lies below them.
func NewAnonymous(paths []string) *AnonymousPaths {
	return &AnonymousPaths{paths: paths, user: &User{Name: Anonymous, Groups: []string{UnauthenticatedGroup}}}
}

// Authenticate implements Authenticator.
func (a *AnonymousPaths) Authenticate(r *http.Request) (*User, error) {
	for _, path := range a.paths {
		if rest, ok := strings.CutPrefix(r.URL.Path, path); ok && (rest == "" || rest[0] == '/') {
			return a.user, nil
		}
	}
	return nil, nil
}
