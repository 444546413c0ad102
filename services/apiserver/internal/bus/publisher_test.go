package bus_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	contract "github.com/sampan-io/sampan/proto/bus"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
)

func assertEvent(t testing.TB, got *contract.Event, kind contract.Event_Type, name string, revision, previous, inNamespace int64, object string) {
	t.Helper()
	if got.Type != kind || got.Name != name || got.Revision != revision || got.PreviousOfResource != previous || got.PreviousOfNamespace != inNamespace || string(got.Object) != object {
		t.Errorf("got %v\nwant %s of %s at %d after %d (%d in its namespace) with %q", got, kind, name, revision, previous, inNamespace, object)
	}
	if got.MediaType != "application/vnd.kubernetes.protobuf" || got.ApiVersion != "v1" {
		t.Errorf("object is %s in %s", got.ApiVersion, got.MediaType)
	}
}

func TestMessagesNameTheirPredecessorsAcrossRestarts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.await()
	ctx := context.Background()
	f.rights.grant("s", "all", time.Hour, "services", "nodes")
	conn, _ := f.mustDial("s")
	changes := mustSubscribe(t, conn, contract.Pattern(services(), ""))
	first := mustCreate(t, f.store, "/registry/services/specs/a/s.1", "v1")
	mustCreate(t, f.store, "/registry/configmaps/a/c", "v")
	second := mustCreate(t, f.store, "/registry/services/specs/b/s", "w1")
	updated, err := f.store.Update(ctx, storage.Put{Key: "/registry/services/specs/a/s.1", Value: []byte("v2")}, first)
	if err != nil {
		t.Fatal(err)
	}
	var event contract.Event
	if subject := mustReceive(t, changes, &event); subject != "sampan.watch.v1.core.services.a.s%2E1" {
		t.Errorf("subject is %s", subject)
	}
	assertEvent(t, &event, contract.Event_ADDED, "s.1", first, 0, 0, "v1")
	mustReceive(t, changes, &event)
	assertEvent(t, &event, contract.Event_ADDED, "s", second, first, 0, "w1")
	mustReceive(t, changes, &event)
	assertEvent(t, &event, contract.Event_MODIFIED, "s.1", updated.Revision, second, first, "v2")

	f.stop()
	f.start()
	f.await()
	conn, _ = f.mustDial("s")
	changes = mustSubscribe(t, conn, contract.Pattern(services(), ""))
	beats := mustSubscribe(t, conn, contract.HeartbeatSubject(services(), ""))
	node := mustSubscribe(t, conn, contract.Pattern(nodes(), ""))
	var beat contract.Heartbeat
	mustReceive(t, beats, &beat) // publishes again
	if beat.Last != updated.Revision {
		t.Errorf("heartbeat names %d as the last, not %d", beat.Last, updated.Revision)
	}
	deleted, err := f.store.Delete(ctx, "/registry/services/specs/b/s", second)
	if err != nil {
		t.Fatal(err)
	}
	mustReceive(t, changes, &event)
	assertEvent(t, &event, contract.Event_DELETED, "s", deleted.Revision, updated.Revision, second, "w1")
	created := mustCreate(t, f.store, "/registry/minions/n", "n1")
	mustReceive(t, node, &event)
	assertEvent(t, &event, contract.Event_ADDED, "n", created, 0, 0, "n1")
}

func TestAfterCompactionNothingBeforeItCountsAsKnown(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.await()
	f.rights.grant("s", "all", time.Hour, "services")
	mustCreate(t, f.store, "/registry/services/specs/a/s", "v")
	last := mustCreate(t, f.store, "/registry/configmaps/a/c", "v")
	if err := f.store.Compact(context.Background(), last); err != nil {
		t.Fatal(err)
	}
	f.stop()
	f.start()
	f.await()
	conn, _ := f.mustDial("s")
	changes := mustSubscribe(t, conn, contract.Pattern(services(), ""))
	beats := mustSubscribe(t, conn, contract.HeartbeatSubject(services(), ""))
	var beat contract.Heartbeat
	mustReceive(t, beats, &beat)
	compacted := f.store.CompactedRevision()
	if compacted == 0 || beat.Last != compacted || beat.Revision != last {
		t.Errorf("heartbeat is %v, compacted is %d", &beat, compacted)
	}
	created := mustCreate(t, f.store, "/registry/services/specs/a/t", "v")
	var event contract.Event
	mustReceive(t, changes, &event)
	assertEvent(t, &event, contract.Event_ADDED, "t", created, compacted, compacted, "v")
}

func TestHeartbeatsSayHowFarTheBusIs(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.await()
	f.rights.grant("s", "all", time.Hour, "services")
	f.rights.grant("a", "one", time.Hour, "services/a")
	first := mustCreate(t, f.store, "/registry/services/specs/a/s", "v")
	second := mustCreate(t, f.store, "/registry/services/specs/b/s", "v")
	third := mustCreate(t, f.store, "/registry/configmaps/a/c", "v")
	all, _ := f.mustDial("s")
	one, _ := f.mustDial("a")
	ofAll := mustSubscribe(t, all, contract.HeartbeatSubject(services(), ""))
	ofOne := mustSubscribe(t, one, contract.HeartbeatSubject(services(), "a"))
	var beat contract.Heartbeat
	if mustReceive(t, ofAll, &beat); beat.Revision != third || beat.Last != second {
		t.Errorf("heartbeat of all is %v", &beat)
	}
	if mustReceive(t, ofOne, &beat); beat.Revision != third || beat.Last != first {
		t.Errorf("heartbeat of a namespace is %v", &beat)
	}
}

func TestObjectsAboveTheLimitAreLeftOut(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.await()
	f.rights.grant("s", "all", time.Hour, "services")
	conn, _ := f.mustDial("s")
	changes := mustSubscribe(t, conn, contract.Pattern(services(), ""))
	revision := mustCreate(t, f.store, "/registry/services/specs/a/s", strings.Repeat("x", 1<<20))
	var event contract.Event
	mustReceive(t, changes, &event)
	assertEvent(t, &event, contract.Event_ADDED, "s", revision, 0, 0, "")
}

func TestManyChangesComeInOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.await()
	f.rights.grant("s", "all", time.Hour, "services")
	conn, _ := f.mustDial("s")
	changes := mustSubscribe(t, conn, contract.Pattern(services(), ""))
	const writers, each = 8, 100
	var writing sync.WaitGroup
	defer writing.Wait()
	for writer := range writers {
		writing.Go(func() {
			for i := range each {
				key := fmt.Sprintf("/registry/services/specs/a/%d-%d", writer, i)
				if _, err := f.store.Create(context.Background(), storage.Put{Key: key, Value: []byte("v")}); err != nil {
					t.Errorf("creating %s: %v", key, err)
				}
			}
		})
	}
	var last int64
	for range writers * each {
		var event contract.Event
		mustReceive(t, changes, &event)
		if event.PreviousOfResource != last || event.Revision <= last {
			t.Fatalf("after %d came %d, which names %d", last, event.Revision, event.PreviousOfResource)
		}
		last = event.Revision
	}
}
