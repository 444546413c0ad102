package filters

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/sampan-io/sampan/services/apiserver/internal/audit"
	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
	"github.com/sampan-io/sampan/services/apiserver/internal/response"
)

// Authentication finds out who asks, and answers 401 when that cannot be told.
func Authentication(authenticator authn.Authenticator, auditor *audit.Auditor, log *slog.Logger, metrics *Metrics) Filter {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			user, err := authenticator.Authenticate(r)
			if user == nil {
				result := "failure"
				if err != nil {
					result = "error"
					log.Debug("Authentication failed", "path", r.URL.Path, "remote", r.RemoteAddr, "err", err)
				}
				metrics.authn.WithLabelValues(result).Inc()
				auditor.Refused(r)
				response.Error(w, r, apierrors.NewUnauthorized("Unauthorized"))
				return
			}
			metrics.authn.WithLabelValues("success").Inc()
			next.ServeHTTP(w, r.WithContext(request.WithUser(r.Context(), user)))
		})
	}
}

// Audit records the requests that the auditor's policy asks for.
func Audit(auditor *audit.Auditor, long func(*http.Request, *request.Info) bool) Filter {
	return func(next http.Handler) http.Handler {
		if auditor == nil {
			return next
		}
		return auditor.Handler(long, next)
	}
}

// Authorization answers 403 to what the user may not do.
func Authorization(authorizer authz.Authorizer) Filter {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx := r.Context()
			a := attributes(request.UserFrom(ctx), request.InfoFrom(ctx))
			reason, err := authorize(r, authorizer, a)
			if err == nil && opensStream(r, a) {
				a.Verb = "create"
				reason, err = authorize(r, authorizer, a)
			}
			noteDecision(ctx, reason, err)
			if err != nil {
				response.Error(w, r, err)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

// noteDecision tells the audit what was decided, and why.
func noteDecision(ctx context.Context, reason string, err error) {
	decision := "allow"
	if err != nil {
		decision = "forbid"
	}
	request.AddAnnotation(ctx, "authorization.k8s.io/decision", decision)
	request.AddAnnotation(ctx, "authorization.k8s.io/reason", reason)
}

// opensStream says whether a GET, by which WebSockets begin, reaches into a pod,
// node or service as a POST would. It needs the right to create, too: what reads
// alone must not run commands.
func opensStream(r *http.Request, a authz.Attributes) bool {
	if !a.ResourceRequest || a.APIGroup != "" || a.Verb != "get" || r.Header.Get("Upgrade") == "" {
		return false
	}
	switch a.Subresource {
	case "exec", "attach", "portforward", "proxy":
		return true
	}
	return false
}

func attributes(user *authn.User, info *request.Info) authz.Attributes {
	return authz.Attributes{
		User: user, ResourceRequest: info.IsResourceRequest, Verb: info.Verb, Namespace: info.Namespace,
		APIGroup: info.APIGroup, APIVersion: info.APIVersion, Resource: info.Resource, Subresource: info.Subresource,
		Name: info.Name, Path: info.Path, FieldSelector: info.FieldSelector, LabelSelector: info.LabelSelector,
	}
}

// authorize returns the authorizer's reason, and an error when the request must not
// go on.
func authorize(r *http.Request, authorizer authz.Authorizer, a authz.Attributes) (string, error) {
	decision, reason, err := authorizer.Authorize(r.Context(), a)
	if decision == authz.Allow {
		return reason, nil
	}
	if err != nil && reason == "" {
		return "", apierrors.NewInternalError(err)
	}
	return reason, response.Forbidden(a, reason)
}

// Headers by which a user asks to act as another.
const (
	impersonateUser        = "Impersonate-User"
	impersonateUID         = "Impersonate-Uid"
	impersonateGroup       = "Impersonate-Group"
	impersonateExtraPrefix = "Impersonate-Extra-"
)

// Impersonation lets a user who has the verb impersonate on all that the headers
// name act as another. The headers go no further.
func Impersonation(authorizer authz.Authorizer) Filter {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			wanted, err := impersonated(r.Header)
			if err != nil {
				response.Error(w, r, err)
				return
			}
			if wanted == nil {
				next.ServeHTTP(w, r)
				return
			}
			if err := mayImpersonate(r, authorizer, wanted); err != nil {
				response.Error(w, r, err)
				return
			}
			for name := range r.Header {
				if strings.HasPrefix(name, "Impersonate-") {
					r.Header.Del(name)
				}
			}
			wanted = withImpliedGroups(wanted)
			audit.RecordFrom(r.Context()).Impersonated(wanted)
			next.ServeHTTP(w, r.WithContext(request.WithUser(r.Context(), wanted)))
		})
	}
}

// impersonated is the user that headers ask for, nil when they ask for none.
func impersonated(header http.Header) (*authn.User, error) {
	user := &authn.User{Name: header.Get(impersonateUser), UID: header.Get(impersonateUID), Groups: header.Values(impersonateGroup)}
	for name, values := range header {
		if !strings.HasPrefix(name, impersonateExtraPrefix) {
			continue
		}
		key := strings.ToLower(strings.TrimPrefix(name, impersonateExtraPrefix))
		if unescaped, err := url.PathUnescape(key); err == nil {
			key = unescaped
		}
		if user.Extra == nil {
			user.Extra = map[string][]string{}
		}
		user.Extra[key] = values
	}
	if user.Name == "" {
		if user.UID != "" || len(user.Groups) > 0 || len(user.Extra) > 0 {
			return nil, apierrors.NewInternalError(fmt.Errorf("requested %v without impersonating a user", user.Groups))
		}
		return nil, nil
	}
	return user, nil
}

func mayImpersonate(r *http.Request, authorizer authz.Authorizer, wanted *authn.User) error {
	user := request.UserFrom(r.Context())
	ask := func(a authz.Attributes) error {
		a.User, a.Verb, a.ResourceRequest = user, "impersonate", true
		_, err := authorize(r, authorizer, a)
		return err
	}
	if namespace, name, ok := serviceAccount(wanted.Name); ok {
		if err := ask(authz.Attributes{APIVersion: "v1", Resource: "serviceaccounts", Namespace: namespace, Name: name}); err != nil {
			return err
		}
	} else if err := ask(authz.Attributes{APIVersion: "v1", Resource: "users", Name: wanted.Name}); err != nil {
		return err
	}
	for _, group := range wanted.Groups {
		if err := ask(authz.Attributes{APIVersion: "v1", Resource: "groups", Name: group}); err != nil {
			return err
		}
	}
	const group = "authentication.k8s.io"
	if wanted.UID != "" {
		if err := ask(authz.Attributes{APIGroup: group, APIVersion: "v1", Resource: "uids", Name: wanted.UID}); err != nil {
			return err
		}
	}
	for key, values := range wanted.Extra {
		for _, value := range values {
			if err := ask(authz.Attributes{APIGroup: group, APIVersion: "v1", Resource: "userextras", Subresource: key, Name: value}); err != nil {
				return err
			}
		}
	}
	return nil
}

const serviceAccountPrefix = "system:serviceaccount:"

func serviceAccount(user string) (namespace, name string, ok bool) {
	rest, ok := strings.CutPrefix(user, serviceAccountPrefix)
	if !ok {
		return "", "", false
	}
	namespace, name, ok = strings.Cut(rest, ":")
	return namespace, name, ok && namespace != "" && name != "" && !strings.Contains(name, ":")
}

// withImpliedGroups adds the groups that the user's name implies.
func withImpliedGroups(user *authn.User) *authn.User {
	if len(user.Groups) == 0 {
		if namespace, _, ok := serviceAccount(user.Name); ok {
			user.Groups = []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace}
		}
	}
	switch {
	case user.Name == authn.Anonymous:
		if !user.InGroup(authn.UnauthenticatedGroup) {
			user.Groups = append(user.Groups, authn.UnauthenticatedGroup)
		}
	case !user.InGroup(authn.AuthenticatedGroup) && !user.InGroup(authn.UnauthenticatedGroup):
		user.Groups = append(user.Groups, authn.AuthenticatedGroup)
	}
	return user
}
