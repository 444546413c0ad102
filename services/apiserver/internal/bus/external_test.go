package bus_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	contract "github.com/sampan-io/sampan/proto/bus"
	"github.com/sampan-io/sampan/services/apiserver/internal/bus"
	"github.com/sampan-io/sampan/services/internal/pki"
)

func mustNATS(t testing.TB, options *server.Options, port int) *server.Server {
	t.Helper()
	options.NoLog, options.NoSigs, options.Port = true, true, port
	s, err := server.NewServer(options)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(patience) {
		t.Fatal("NATS does not start")
	}
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	return s
}

func open() *server.Options { return &server.Options{Host: "127.0.0.1"} }

// run publishes on an external server until the test ends, or stop is called.
func (f *fixture) run(config bus.ExternalConfig) (stop func()) {
	f.t.Helper()
	config.Access = f.access()
	external, err := bus.NewExternal(config)
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- external.Run(ctx, bus.NewPublisher(f.store, topics(), f.log())) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			f.t.Error(err)
		}
	})
	f.t.Cleanup(stop)
	return stop
}

// What is published on an external server names its predecessor even when that
// was published while the server was away.
func TestExternalServerMayComeAndGo(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	external := mustNATS(t, open(), server.RANDOM_PORT)
	url := external.ClientURL()
	defer f.run(bus.ExternalConfig{URL: url})()
	listen := func() (changes, beats *nats.Subscription) {
		conn, err := nats.Connect(url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		return mustSubscribe(t, conn, contract.Pattern(services(), "")), mustSubscribe(t, conn, contract.HeartbeatSubject(services(), ""))
	}
	changes, beats := listen()
	var beat contract.Heartbeat
	mustReceive(t, beats, &beat)
	first := mustCreate(t, f.store, "/registry/services/specs/a/s", "v")
	var event contract.Event
	mustReceive(t, changes, &event)
	assertEvent(t, &event, contract.Event_ADDED, "s", first, 0, 0, "v")

	port := external.Addr().(*net.TCPAddr).Port
	external.Shutdown()
	external.WaitForShutdown()
	second := mustCreate(t, f.store, "/registry/services/specs/a/t", "v")
	mustNATS(t, open(), port)
	changes, beats = listen()
	for beat.Last < second {
		mustReceive(t, beats, &beat)
	}
	third := mustCreate(t, f.store, "/registry/services/specs/a/u", "v")
	for event.Revision < third {
		mustReceive(t, changes, &event)
	}
	assertEvent(t, &event, contract.Event_ADDED, "u", third, second, second, "v")
}

func TestExternalServerMayBeAwayAtTheStart(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.run(bus.ExternalConfig{URL: "nats://" + freeAddress(t)})()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	external, err := bus.NewExternal(bus.ExternalConfig{URL: "nats://:x", Access: f.access()})
	if err == nil {
		err = external.Run(ctx, bus.NewPublisher(f.store, topics(), f.log()))
	}
	if err == nil {
		t.Error("a URL that is none is accepted")
	}
}

// gated is an external server with the project's configuration, over TLS.
type gated struct {
	*fixture
	options *server.Options
	nats    *server.Server
	config  bus.ExternalConfig
}

func mustKey(t testing.TB, create func() (nkeys.KeyPair, error)) (nkeys.KeyPair, string) {
	t.Helper()
	pair, err := create()
	if err != nil {
		t.Fatal(err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return pair, public
}

func newGated(t testing.TB) *gated {
	t.Helper()
	g := &gated{fixture: newFixture(t)}
	var user, issuer string
	g.config.User, user = mustKey(t, nkeys.CreateUser)
	g.config.Issuer, issuer = mustKey(t, nkeys.CreateAccount)
	g.config.Account = "BUS"
	dir := t.TempDir()
	authority, err := pki.NewAuthority("test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Issue(pki.Request{CommonName: "bus", Server: true, IPs: []net.IP{net.ParseIP("127.0.0.1")}})
	if err != nil {
		t.Fatal(err)
	}
	if err := pair.Write(filepath.Join(dir, "bus", "serving.crt"), filepath.Join(dir, "bus", "serving.key")); err != nil {
		t.Fatal(err)
	}
	g.config.TLS = &tls.Config{RootCAs: authority.Pool(), MinVersion: tls.VersionTLS12}
	// As deploy/bus/nats.conf is mounted, below a folder of this test's.
	text, err := os.ReadFile("../../../../deploy/bus/nats.conf")
	if err != nil {
		t.Fatal(err)
	}
	conf := filepath.Join(dir, "nats", "nats.conf")
	for path, content := range map[string]string{
		conf:                                   strings.NewReplacer("../sampan/bus/", "../bus/", "/etc/sampan/bus/", dir+"/bus/", "0.0.0.0", "127.0.0.1").Replace(string(text)),
		filepath.Join(dir, "bus", "keys.conf"): "PUBLISHER = " + user + "\nISSUER = " + issuer + "\n",
	} {
		if err := pki.WriteFile(path, []byte(content), pki.PublicMode); err != nil {
			t.Fatal(err)
		}
	}
	if g.options, err = server.ProcessConfigFile(conf); err != nil {
		t.Fatal(err)
	}
	g.nats = mustNATS(t, g.options, server.RANDOM_PORT)
	g.config.URL = "tls://" + g.nats.Addr().String()
	return g
}

// dial connects with a token, without a second try.
func (g *gated) dial(token string, more ...nats.Option) (*nats.Conn, error) {
	g.t.Helper()
	conn, err := nats.Connect(g.config.URL, append(more, nats.Token(token), nats.Secure(g.config.TLS), nats.NoReconnect())...)
	if err == nil {
		g.t.Cleanup(conn.Close)
	}
	return conn, err
}

func (g *gated) await(token string) *nats.Conn {
	g.t.Helper()
	var conn *nats.Conn
	eventually(g.t, "the gate answers", func() (ok bool) {
		var err error
		conn, err = g.dial(token)
		return err == nil
	})
	return conn
}

func TestExternalServerLetsInWhomThisServerSays(t *testing.T) {
	t.Parallel()
	g := newGated(t)
	g.rights.grant("s", "all", time.Hour, "services")
	g.rights.grant("nothing", "idle", time.Hour)
	defer g.run(g.config)()
	conn := g.await("s")
	for name, token := range map[string]string{"none": "", "unknown": "x", "without any right": "nothing"} {
		if _, err := g.dial(token); !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	other, public := mustKey(t, nkeys.CreateUser)
	if _, err := g.dial("", nats.Nkey(public, other.Sign)); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("another's key: got %v", err)
	}
	problems := make(chan error, 10)
	conn.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { problems <- err })
	changes := mustSubscribe(t, conn, contract.Pattern(services(), ""))
	if len(problems) > 0 {
		t.Errorf("refused: %v", <-problems)
	}
	for _, subject := range []string{"sampan.>", ">", contract.Pattern(nodes(), ""), "$SYS.>", "$SYS.REQ.USER.AUTH", "$SYS.ACCOUNT.BUS.DISCONNECT"} {
		mustSubscribe(t, conn, subject)
		select {
		case <-problems:
		case <-time.After(patience):
			t.Errorf("%s is not refused", subject)
		}
	}
	for _, subject := range []string{contract.Subject(services(), "a", "s"), "$SYS.REQ.SERVER." + g.nats.ID() + ".KICK"} {
		if err := errors.Join(conn.Publish(subject, []byte(`{"cid":1}`)), conn.Flush()); err != nil {
			t.Fatal(err)
		}
		select {
		case <-problems:
		case <-time.After(patience):
			t.Errorf("publishing to %s is not refused", subject)
		}
	}
	revision := mustCreate(t, g.store, "/registry/services/specs/a/s", "v")
	var event contract.Event
	mustReceive(t, changes, &event)
	assertEvent(t, &event, contract.Event_ADDED, "s", revision, 0, 0, "v")
}

func TestExternalServerClosesConnectionsWhoseRightHasGone(t *testing.T) {
	t.Parallel()
	g := newGated(t)
	g.rights.grant("s", "all", time.Hour, "services")
	g.rights.grant("t", "other", time.Hour, "services")
	g.rights.grant("short", "third", 3*time.Second, "services")
	defer g.run(g.config)()
	revoked, kept, expiring := g.await("s"), g.await("t"), g.await("short")
	g.rights.revoke("s")
	eventually(t, "the connection is closed", revoked.IsClosed)
	eventually(t, "the connection is closed when its token expires", expiring.IsClosed)
	if kept.IsClosed() {
		t.Error("the connection of another is closed, too")
	}
	if _, err := g.dial("s"); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("the revoked token: got %v", err)
	}
}

// Who was let in goes on while the server that lets in is away; it is back for
// whoever comes then.
func TestExternalServerGoesOnWithoutThisServer(t *testing.T) {
	t.Parallel()
	g := newGated(t)
	g.rights.grant("s", "all", time.Hour, "services")
	g.options.AuthTimeout = 0.2
	stop := g.run(g.config)
	conn := g.await("s")
	changes := mustSubscribe(t, conn, contract.Pattern(services(), ""))
	stop()
	if _, err := g.dial("s"); err == nil {
		t.Error("a listener is let in while nobody says who may")
	}
	defer g.run(g.config)()
	g.await("s")
	revision := mustCreate(t, g.store, "/registry/services/specs/a/s", "v")
	var event contract.Event
	mustReceive(t, changes, &event)
	if event.Revision != revision || conn.IsClosed() {
		t.Errorf("got %v", &event)
	}
}

func TestKeysOfAnotherKindAreRefused(t *testing.T) {
	t.Parallel()
	user, _ := mustKey(t, nkeys.CreateUser)
	account, _ := mustKey(t, nkeys.CreateAccount)
	for name, config := range map[string]bus.ExternalConfig{"user": {User: account}, "issuer": {Issuer: user}} {
		if _, err := bus.NewExternal(config); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
