package bus

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/nats-io/nats-server/v2/server"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/proto/bus"
	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
)

// Namespaces lists the namespaces that exist, for listeners that may watch a
// resource in some only.
type Namespaces func(ctx context.Context) ([]string, error)

// gate lets listeners in: who has a token for the bus may subscribe to what its
// user may watch, and publish nothing.
type gate struct {
	tokens     authn.TokenAuthenticator
	authorizer authz.Authorizer
	namespaces Namespaces
	topics     []Topic
	log        *slog.Logger
	internal   string // the publisher's own secret

	mu        sync.Mutex
	listeners map[uint64]listener // by connection
}

type listener struct {
	token   string
	granted string // what it was let in for
}

const checkTimeout = 5 * time.Second

// Check implements server.Authentication.
func (g *gate) Check(c server.ClientAuthentication) bool {
	token := c.GetOpts().Token
	if token == "" {
		token = c.GetOpts().Password
	}
	if token != "" && token == g.internal {
		c.RegisterUser(&server.User{Username: "publisher", Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: []string{"sampan.>"}},
			Subscribe: &server.SubjectPermission{Deny: []string{">"}},
		}})
		return true
	}
	user, allowed := g.admit(token)
	if user == nil || len(allowed) == 0 {
		return false
	}
	c.RegisterUser(&server.User{
		Username: user.Name, ConnectionDeadline: expiry(token),
		Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Deny: []string{">"}},
			Subscribe: &server.SubjectPermission{Allow: allowed},
		},
	})
	g.mu.Lock()
	defer g.mu.Unlock()
	g.listeners[c.GetID()] = listener{token, joined(allowed)}
	return true
}

// admit is the token's user and the subjects that it may subscribe to.
func (g *gate) admit(token string) (*authn.User, []string) {
	if token == "" {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	user, _, err := g.tokens.AuthenticateToken(ctx, token, []string{bus.TokenAudience})
	if err != nil || user == nil {
		g.log.Info("Bus refuses a token", "err", err)
		return nil, nil
	}
	return user, g.allowed(ctx, user)
}

func (g *gate) allowed(ctx context.Context, user *authn.User) []string {
	var out []string
	for _, topic := range g.topics {
		if g.mayWatch(ctx, user, topic.Resource, "") {
			out = append(out, bus.Pattern(topic.Resource, ""), bus.HeartbeatSubject(topic.Resource))
			continue
		}
		if !topic.Namespaced {
			continue
		}
		namespaces, err := g.namespaces(ctx)
		if err != nil {
			g.log.Warn("Namespaces not listed", "err", err)
			continue
		}
		some := false
		for _, namespace := range namespaces {
			if g.mayWatch(ctx, user, topic.Resource, namespace) {
				some = true
				out = append(out, bus.Pattern(topic.Resource, namespace))
			}
		}
		if some {
			out = append(out, bus.HeartbeatSubject(topic.Resource))
		}
	}
	return out
}

func (g *gate) mayWatch(ctx context.Context, user *authn.User, resource schema.GroupResource, namespace string) bool {
	decision, _, err := g.authorizer.Authorize(ctx, authz.Attributes{
		User: user, ResourceRequest: true, Verb: "watch", APIGroup: resource.Group, APIVersion: "*", Resource: resource.Resource, Namespace: namespace,
	})
	return err == nil && decision == authz.Allow
}

// expiry is when a token that has been checked ends.
func expiry(token string) time.Time {
	var claims jwt.RegisteredClaims
	if _, _, err := jwt.NewParser().ParseUnverified(token, &claims); err != nil || claims.ExpiresAt == nil {
		return time.Time{}
	}
	return claims.ExpiresAt.Time
}

func joined(list []string) string {
	out := ""
	for _, item := range list {
		out += item + "\n"
	}
	return out
}

// recheck closes the connections of listeners whose token or rights have gone or
// changed; who still may listen connects again at once.
func (g *gate) recheck(disconnect func(id uint64) error) {
	g.mu.Lock()
	listeners := make(map[uint64]listener, len(g.listeners))
	for id, l := range g.listeners {
		listeners[id] = l
	}
	g.mu.Unlock()
	for id, l := range listeners {
		user, allowed := g.admit(l.token)
		if user != nil && joined(allowed) == l.granted {
			continue
		}
		g.forget(id)
		if err := disconnect(id); err == nil {
			g.log.Info("Bus closed a connection whose rights have changed", "connection", id)
		}
	}
}

func (g *gate) forget(id uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.listeners, id)
}
