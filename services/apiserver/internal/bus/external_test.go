package bus_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	contract "github.com/sampan-io/sampan/proto/bus"
	"github.com/sampan-io/sampan/services/apiserver/internal/bus"
)

func mustNATS(t testing.TB, port int) *server.Server {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, NoLog: true, NoSigs: true})
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

// What is published on an external server names its predecessor even when that
// was published while the server was away.
func TestExternalServerMayComeAndGo(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	external := mustNATS(t, server.RANDOM_PORT)
	url := external.ClientURL()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- bus.RunExternal(ctx, url, bus.NewPublisher(f.store, topics(), f.log())) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
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
	mustNATS(t, port)
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
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if err := bus.RunExternal(ctx, "nats://"+freeAddress(t), bus.NewPublisher(f.store, topics(), f.log())); err != nil {
		t.Error(err)
	}
	if err := bus.RunExternal(ctx, "nats://:x", bus.NewPublisher(f.store, topics(), f.log())); err == nil {
		t.Error("a URL that is none is accepted")
	}
}
