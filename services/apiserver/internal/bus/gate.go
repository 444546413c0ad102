package bus

import (
	"context"
	"crypto/subtle"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/proto/bus"
	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
	"github.com/sampan-io/sampan/services/apiserver/internal/tokens"
)

// Tokens verifies service-account tokens. It is implemented by
// *tokens.Authenticator.
type Tokens interface {
	Verify(ctx context.Context, token string, audiences []string) (tokens.Verified, error)
}

// Namespaces lists the namespaces that exist, for listeners that may watch a
// resource in some only.
type Namespaces func(ctx context.Context) ([]string, error)

// gate lets listeners in: who has a token for the bus may subscribe to what its
// user may watch, and publish nothing.
type gate struct {
	tokens     Tokens
	authorizer authz.Authorizer
	namespaces Namespaces
	topics     []Topic
	log        *slog.Logger
	internal   string // the publisher's own secret

	mu        sync.Mutex
	listeners map[uint64]listener // by connection

	refused, revoked atomic.Int64
}

type listener struct {
	token   string
	granted []string // the subjects it was let in for
}

const checkTimeout = 5 * time.Second

// Check implements server.Authentication.
func (g *gate) Check(c server.ClientAuthentication) bool {
	token := c.GetOpts().Token
	if token == "" {
		token = c.GetOpts().Password // of clients that know users and passwords only
	}
	if subtle.ConstantTimeCompare([]byte(token), []byte(g.internal)) == 1 {
		c.RegisterUser(&server.User{Username: "publisher", Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: []string{"sampan.>"}},
			Subscribe: &server.SubjectPermission{Deny: []string{">"}},
		}})
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	verified, err := g.verify(ctx, token)
	var granted []string
	if err == nil {
		granted = g.allowed(ctx, verified.User)
	}
	if len(granted) == 0 {
		g.refused.Add(1)
		g.log.Info("Bus refuses a connection", "remote", c.RemoteAddress(), "user", nameOf(verified.User), "err", err)
		return false
	}
	c.RegisterUser(&server.User{
		Username: verified.User.Name, ConnectionDeadline: verified.Expires,
		Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Deny: []string{">"}},
			Subscribe: &server.SubjectPermission{Allow: granted},
		},
	})
	g.mu.Lock()
	defer g.mu.Unlock()
	g.listeners[c.GetID()] = listener{token, granted}
	return true
}

func nameOf(user *authn.User) string {
	if user == nil {
		return ""
	}
	return user.Name
}

func (g *gate) verify(ctx context.Context, token string) (tokens.Verified, error) {
	return g.tokens.Verify(ctx, token, []string{bus.TokenAudience})
}

// allowed are the subjects that a user may subscribe to.
func (g *gate) allowed(ctx context.Context, user *authn.User) []string {
	var out []string
	for _, topic := range g.topics {
		if g.mayWatch(ctx, user, topic.Resource, "") {
			// The heartbeats of namespaces, too: who may watch all may listen to one.
			beats := bus.HeartbeatSubject(topic.Resource, "")
			out = append(out, bus.Pattern(topic.Resource, ""), beats)
			if topic.Namespaced {
				out = append(out, beats+".*")
			}
			continue
		}
		if !topic.Namespaced {
			continue
		}
		namespaces, err := g.namespaces(ctx)
		if err != nil {
			g.log.Warn("Namespaces are not listed", "err", err)
			continue
		}
		slices.Sort(namespaces)
		for _, namespace := range namespaces {
			if g.mayWatch(ctx, user, topic.Resource, namespace) {
				out = append(out, bus.Pattern(topic.Resource, namespace), bus.HeartbeatSubject(topic.Resource, namespace))
			}
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

// connections are an embedded server's.
type connections interface {
	exists(id uint64) bool
	disconnect(id uint64) error
}

// recheck closes the connections of listeners whose token or rights have gone or
// changed; who still may listen connects again at once.
func (g *gate) recheck(ctx context.Context, open connections) {
	g.mu.Lock()
	listeners := maps.Clone(g.listeners)
	g.mu.Unlock()
	granted := map[string][]string{} // by user: most listeners are of a few
	for id, l := range listeners {
		if !open.exists(id) {
			g.forget(id)
			continue
		}
		verified, err := g.verify(ctx, l.token)
		if err == nil {
			name := verified.User.Name
			if _, known := granted[name]; !known {
				granted[name] = g.allowed(ctx, verified.User)
			}
			if slices.Equal(granted[name], l.granted) {
				continue
			}
		}
		g.forget(id)
		if open.disconnect(id) == nil {
			g.revoked.Add(1)
			g.log.Info("Bus closes a connection whose token or rights have changed", "connection", id, "user", nameOf(verified.User), "err", err)
		}
	}
}

func (g *gate) forget(id uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.listeners, id)
}

func (g *gate) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.listeners)
}
