package bus_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime/schema"

	contract "github.com/sampan-io/sampan/proto/bus"
	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
	"github.com/sampan-io/sampan/services/apiserver/internal/bus"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage/bolt"
	"github.com/sampan-io/sampan/services/apiserver/internal/tokens"
)

const patience = 20 * time.Second

func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for !condition() {
		select {
		case <-deadline:
			t.Fatalf("not within %v: %s", patience, what)
		case <-time.After(time.Millisecond):
		}
	}
}

func services() schema.GroupResource { return schema.GroupResource{Resource: "services"} }
func nodes() schema.GroupResource    { return schema.GroupResource{Resource: "nodes"} }

func topics() []bus.Topic {
	return []bus.Topic{
		{Resource: services(), KeyPrefix: "/registry/services/specs/", Namespaced: true, MediaType: "application/vnd.kubernetes.protobuf", APIVersion: "v1"},
		{Resource: nodes(), KeyPrefix: "/registry/minions/", MediaType: "application/vnd.kubernetes.protobuf", APIVersion: "v1"},
	}
}

// fakeRights are tokens, and what their users may watch.
type fakeRights struct {
	mu      sync.Mutex
	tokens  map[string]tokens.Verified
	watches map[string][]string // user → "resource" or "resource/namespace"
	changed chan struct{}
}

func newFakeRights() *fakeRights {
	return &fakeRights{tokens: map[string]tokens.Verified{}, watches: map[string][]string{}, changed: make(chan struct{})}
}

func (f *fakeRights) grant(token, user string, lifetime time.Duration, watches ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tokens[token] = tokens.Verified{User: &authn.User{Name: user}, Audiences: []string{contract.TokenAudience}, Expires: time.Now().Add(lifetime)}
	f.watches[user] = watches
	f.tell()
}

func (f *fakeRights) revoke(token string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.tokens, token)
	f.tell()
}

// tell says that rights have changed. Caller must hold mu.
func (f *fakeRights) tell() {
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeRights) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

func (f *fakeRights) Verify(_ context.Context, token string, audiences []string) (tokens.Verified, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	verified, ok := f.tokens[token]
	if !ok || !slices.Equal(audiences, []string{contract.TokenAudience}) {
		return tokens.Verified{}, errors.New("not a token for the bus")
	}
	return verified, nil
}

func (f *fakeRights) Authorize(_ context.Context, a authz.Attributes) (authz.Decision, string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	what := a.Resource
	if a.Namespace != "" {
		what += "/" + a.Namespace
	}
	if a.Verb == "watch" && slices.Contains(f.watches[a.User.Name], what) {
		return authz.Allow, "", nil
	}
	return authz.NoOpinion, "", nil
}

// fixture is a bus over a real store.
type fixture struct {
	t      testing.TB
	path   string
	store  storage.Interface
	rights *fakeRights
	server *bus.Server
	stop   func()
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	f := &fixture{t: t, path: filepath.Join(t.TempDir(), "store.db"), rights: newFakeRights()}
	f.start()
	t.Cleanup(func() { f.stop() })
	return f
}

// await returns when the publisher follows the store.
func (f *fixture) await() {
	f.t.Helper()
	f.rights.grant("await", "await", time.Hour, "nodes")
	conn, _ := f.mustDial("await")
	defer conn.Close()
	var beat contract.Heartbeat
	mustReceive(f.t, mustSubscribe(f.t, conn, contract.HeartbeatSubject(nodes(), "")), &beat)
}

// start opens the store and publishes from it.
func (f *fixture) start() {
	f.t.Helper()
	store, err := bolt.Open(bolt.Options{Path: f.path, NoSync: true})
	if err != nil {
		f.t.Fatalf("store: %v", err)
	}
	server, err := bus.NewServer(f.config())
	if err != nil {
		f.t.Fatalf("bus: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx, bus.NewPublisher(store, topics(), f.log())) }()
	f.store, f.server = store, server
	f.stop = func() {
		f.stop = func() {}
		cancel()
		if err := errors.Join(<-ended, store.Close()); err != nil {
			f.t.Errorf("bus ended with: %v", err)
		}
	}
}

func (f *fixture) log() *slog.Logger { return slog.New(slog.DiscardHandler) }

func (f *fixture) config() bus.Config {
	return bus.Config{Address: "127.0.0.1:0", Access: f.access()}
}

func (f *fixture) access() bus.Access {
	return bus.Access{
		Tokens: f.rights, Authorizer: f.rights, Changed: f.rights.Changed, Topics: topics(), Log: f.log(),
		Namespaces: func(context.Context) ([]string, error) { return []string{"b", "a"}, nil },
	}
}

// dial connects with a token, without a second try.
func (f *fixture) dial(token string) (*nats.Conn, <-chan error, error) {
	f.t.Helper()
	problems := make(chan error, 100)
	conn, err := nats.Connect("nats://"+f.server.Address(), nats.Token(token), nats.NoReconnect(),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { problems <- err }))
	if err == nil {
		f.t.Cleanup(conn.Close)
	}
	return conn, problems, err
}

func (f *fixture) mustDial(token string) (*nats.Conn, <-chan error) {
	f.t.Helper()
	conn, problems, err := f.dial(token)
	if err != nil {
		f.t.Fatalf("connecting: %v", err)
	}
	return conn, problems
}

func mustSubscribe(t testing.TB, conn *nats.Conn, subject string) *nats.Subscription {
	t.Helper()
	subscription, err := conn.SubscribeSync(subject)
	if err == nil {
		err = conn.Flush()
	}
	if err != nil {
		t.Fatalf("subscribing to %s: %v", subject, err)
	}
	return subscription
}

func mustReceive(t testing.TB, subscription *nats.Subscription, into proto.Message) string {
	t.Helper()
	m, err := subscription.NextMsg(patience)
	if err != nil {
		t.Fatalf("no message on %s: %v", subscription.Subject, err)
	}
	if err := proto.Unmarshal(m.Data, into); err != nil {
		t.Fatalf("message of %s: %v", m.Subject, err)
	}
	return m.Subject
}

func mustCreate(t testing.TB, store storage.Interface, key, value string) int64 {
	t.Helper()
	kv, err := store.Create(context.Background(), storage.Put{Key: key, Value: []byte(value)})
	if err != nil {
		t.Fatalf("creating %s: %v", key, err)
	}
	return kv.Revision
}
