package filters_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
	"github.com/sampan-io/sampan/services/apiserver/internal/filters"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
)

// verbs allows those verbs on everything.
type verbs []string

func (v verbs) Authorize(_ context.Context, a authz.Attributes) (authz.Decision, string, error) {
	for _, verb := range v {
		if a.Verb == verb {
			return authz.Allow, "", nil
		}
	}
	return authz.NoOpinion, "", nil
}

func TestStreamsOverGetNeedTheRightToCreate(t *testing.T) {
	reached := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	for _, c := range []struct {
		rights      verbs
		subresource string
		upgrade     bool
		want        int
	}{
		{verbs{"get"}, "exec", true, http.StatusForbidden},
		{verbs{"get"}, "attach", true, http.StatusForbidden},
		{verbs{"get"}, "portforward", true, http.StatusForbidden},
		{verbs{"get"}, "proxy", true, http.StatusForbidden},
		{verbs{"get", "create"}, "exec", true, http.StatusOK},
		{verbs{"create"}, "exec", true, http.StatusForbidden},
		{verbs{"get"}, "proxy", false, http.StatusOK},
		{verbs{"get"}, "log", true, http.StatusOK},
	} {
		r := httptest.NewRequest(http.MethodGet, "/api/v1/namespaces/blue/pods/p/"+c.subresource, nil)
		if c.upgrade {
			r.Header.Set("Connection", "Upgrade")
			r.Header.Set("Upgrade", "websocket")
		}
		ctx := request.WithUser(r.Context(), &authn.User{Name: "alice"})
		ctx = request.WithInfo(ctx, &request.Info{IsResourceRequest: true, Verb: "get", APIVersion: "v1", Resource: "pods", Subresource: c.subresource, Namespace: "blue", Name: "p"})
		w := httptest.NewRecorder()
		filters.Authorization(c.rights)(reached).ServeHTTP(w, r.WithContext(ctx))
		if w.Code != c.want {
			t.Errorf("%v on %s, upgrade %v: %d, want %d", c.rights, c.subresource, c.upgrade, w.Code, c.want)
		}
	}
}
