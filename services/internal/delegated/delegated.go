// Package delegated guards the HTTP APIs of the services beside the API server:
// who calls is found out by client certificate or, through TokenReview, by bearer
// token, and what they may do is asked of the API server through
// SubjectAccessReview. Both answers are kept for a while.
package delegated

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/pflag"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/kubernetes"
)

// User is who calls.
type User struct {
	Name   string
	UID    string
	Groups []string
	Extra  map[string][]string
}

// Config says whom to ask and for how long to believe it.
type Config struct {
	// Client makes the reviews; its user needs create on tokenreviews and
	// subjectaccessreviews, as system:auth-delegator and system:node give.
	Client kubernetes.Interface
	// ClientCAFile has the certificates that sign clients'; empty accepts none. It is
	// read again when it changes.
	ClientCAFile string
	// TokenTTL is how long a token's review is believed; default 10 s.
	TokenTTL time.Duration
	// AllowedTTL and DeniedTTL are how long an access review is; default 10 s both.
	AllowedTTL, DeniedTTL time.Duration
	// Open are paths that need neither; one that ends in * covers all that begin so.
	Open []string
	Log  *slog.Logger
}

// Options are the flags of the services whose API is only about themselves.
type Options struct {
	ClientCAFile             string
	AuthenticationKubeconfig string
	AuthorizationKubeconfig  string
	Open                     []string
}

// AddFlags registers upstream's flags for it.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	if o.Open == nil {
		o.Open = []string{"/healthz", "/readyz", "/livez"}
	}
	fs.StringVar(&o.ClientCAFile, "client-ca-file", o.ClientCAFile, "certificates that sign those of clients, PEM")
	fs.StringVar(&o.AuthenticationKubeconfig, "authentication-kubeconfig", o.AuthenticationKubeconfig, "kubeconfig for reviewing tokens; empty uses --kubeconfig")
	fs.StringVar(&o.AuthorizationKubeconfig, "authorization-kubeconfig", o.AuthorizationKubeconfig, "kubeconfig for reviewing access; empty uses --kubeconfig")
	fs.StringSliceVar(&o.Open, "authorization-always-allow-paths", o.Open, "paths that anyone may get")
}

// Gate lets requests through to a handler.
type Gate struct {
	cfg    Config
	certs  *certificates
	tokens *cache[[32]byte, tokenAnswer]
	access *cache[string, bool]
}

// New makes a gate. It fails when the file of client certificates cannot be read.
func New(cfg Config) (*Gate, error) {
	const usual, entries = 10 * time.Second, 4096
	for _, ttl := range []*time.Duration{&cfg.TokenTTL, &cfg.AllowedTTL, &cfg.DeniedTTL} {
		if *ttl == 0 {
			*ttl = usual
		}
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	g := &Gate{cfg: cfg, tokens: newCache[[32]byte, tokenAnswer](entries), access: newCache[string, bool](entries)}
	if cfg.ClientCAFile != "" {
		g.certs = &certificates{file: cfg.ClientCAFile}
		if _, err := g.certs.pool(); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// Attributes is what a request asks to do. Either Resource or NonResource is set.
type Attributes struct {
	Resource    *authorizationv1.ResourceAttributes
	NonResource *authorizationv1.NonResourceAttributes
}

// PathAttributes are those of a request to a service whose API is only about
// itself: the method and the path.
func PathAttributes(r *http.Request) []Attributes {
	return []Attributes{{NonResource: &authorizationv1.NonResourceAttributes{Verb: strings.ToLower(r.Method), Path: r.URL.Path}}}
}

type userKey struct{}

// UserFrom is who made the request that ctx belongs to.
func UserFrom(ctx context.Context) (User, bool) {
	user, ok := ctx.Value(userKey{}).(User)
	return user, ok
}

// Wrap guards a handler. A request is let through when one of its attributes is
// allowed; they are tried in order.
func (g *Gate) Wrap(attributes func(r *http.Request) []Attributes, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.open(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		user, err := g.Authenticate(r)
		if err != nil {
			if !errors.Is(err, errNoCredentials) {
				g.cfg.Log.InfoContext(r.Context(), "Refusing a request", "path", r.URL.Path, "err", err)
			}
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		wanted := attributes(r)
		allowed, err := g.Authorize(r.Context(), user, wanted)
		if err != nil {
			g.cfg.Log.WarnContext(r.Context(), "Reviewing access", "user", user.Name, "path", r.URL.Path, "err", err)
			http.Error(w, "Authorization error: the API server could not be asked", http.StatusInternalServerError)
			return
		}
		if !allowed {
			http.Error(w, refusal(user, wanted), http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, user)))
	})
}

func (g *Gate) open(path string) bool {
	for _, open := range g.cfg.Open {
		prefix, wild := strings.CutSuffix(open, "*")
		if path == open || (wild && strings.HasPrefix(path, prefix)) {
			return true
		}
	}
	return false
}

func refusal(user User, wanted []Attributes) string {
	if len(wanted) == 0 {
		return "Forbidden"
	}
	if resource := wanted[0].Resource; resource != nil {
		var subresources []string
		for _, a := range wanted {
			subresources = append(subresources, a.Resource.Subresource)
		}
		return fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=%s, subresource(s)=%v)", user.Name, resource.Verb, resource.Resource, subresources)
	}
	return fmt.Sprintf("forbidden: User %q cannot %s path %q", user.Name, wanted[0].NonResource.Verb, wanted[0].NonResource.Path)
}
