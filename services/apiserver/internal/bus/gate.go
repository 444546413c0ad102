package bus

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

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

// Access says who may listen.
type Access struct {
	Tokens Tokens
	// Authorizer says who may watch a resource, and so listen to it.
	Authorizer authz.Authorizer
	// Changed is closed at the next change of anyone's rights.
	Changed    func() <-chan struct{}
	Namespaces Namespaces
	Topics     []Topic
	Log        *slog.Logger
}

const (
	checkTimeout = 5 * time.Second
	// recheckEvery is how long a token may be good for after its account has gone.
	recheckEvery = 10 * time.Second
	// recheckPause gathers changes of rights that come together.
	recheckPause = 200 * time.Millisecond
)

// gate lets listeners in: who has a token for the bus may subscribe to what its
// user may watch, and publish nothing.
type gate struct {
	Access

	mu        sync.Mutex
	listeners map[connection]listener

	refused, revoked atomic.Int64
}

// connection is a listener's to a NATS server.
type connection struct {
	server string // id of an external server, empty for the embedded one
	id     uint64
}

type listener struct {
	token   string
	granted []string // the subjects it was let in for
	until   time.Time
}

func newGate(access Access) *gate {
	return &gate{Access: access, listeners: map[connection]listener{}}
}

// admit says which subjects whoever shows a token at remote may subscribe to, if
// any, and as whom.
func (g *gate) admit(ctx context.Context, token, remote string) (user tokens.Verified, granted []string) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	verified, err := g.verify(ctx, token)
	if err == nil {
		granted = g.allowed(ctx, verified.User)
	}
	if len(granted) == 0 {
		g.refused.Add(1)
		g.Log.Info("Bus refuses a connection", "remote", remote, "user", nameOf(verified.User), "err", err)
	}
	return verified, granted
}

// remember has a connection checked again whenever rights change, until then.
func (g *gate) remember(c connection, l listener) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.listeners[c] = l
}

func nameOf(user *authn.User) string {
	if user == nil {
		return ""
	}
	return user.Name
}

func (g *gate) verify(ctx context.Context, token string) (tokens.Verified, error) {
	return g.Tokens.Verify(ctx, token, []string{bus.TokenAudience})
}

// allowed are the subjects that a user may subscribe to.
func (g *gate) allowed(ctx context.Context, user *authn.User) []string {
	var out []string
	for _, topic := range g.Topics {
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
		namespaces, err := g.Namespaces(ctx)
		if err != nil {
			g.Log.Warn("Namespaces are not listed", "err", err)
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
	decision, _, err := g.Authorizer.Authorize(ctx, authz.Attributes{
		User: user, ResourceRequest: true, Verb: "watch", APIGroup: resource.Group, APIVersion: "*", Resource: resource.Resource, Namespace: namespace,
	})
	return err == nil && decision == authz.Allow
}

// connections are a server's.
type connections interface {
	exists(connection) bool
	disconnect(connection) error
}

// watch checks the listeners' rights when any have changed, and now and then,
// until ctx ends.
func (g *gate) watch(ctx context.Context, open connections) {
	for {
		var changed <-chan struct{}
		if g.Changed != nil {
			changed = g.Changed()
		}
		g.recheck(ctx, open)
		select {
		case <-ctx.Done():
			return
		case <-time.After(recheckEvery):
		case <-changed:
			select {
			case <-ctx.Done():
				return
			case <-time.After(recheckPause):
			}
		}
	}
}

// recheck closes the connections of listeners whose token or rights have gone or
// changed; who still may listen connects again at once.
func (g *gate) recheck(ctx context.Context, open connections) {
	g.mu.Lock()
	listeners := maps.Clone(g.listeners)
	g.mu.Unlock()
	granted := map[string][]string{} // by user: most listeners are of a few
	for id, l := range listeners {
		if !open.exists(id) || time.Now().After(l.until) {
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
			g.Log.Info("Bus closes a connection whose token or rights have changed", "connection", id.id, "user", nameOf(verified.User), "err", err)
		}
	}
}

func (g *gate) forget(id connection) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.listeners, id)
}

func (g *gate) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.listeners)
}
