package bus_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/sampan-io/sampan/proto/bus"
)

// patience bounds waits for what must happen.
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

// mustWatch watches from now on, and returns when the bus feeds the watch alone.
func mustWatch(t testing.TB, c *fakeCluster, conn *bus.Conn, namespace string) watch.Interface {
	t.Helper()
	c.mu.Lock()
	now := strconv.FormatInt(c.revision, 10)
	c.mu.Unlock()
	w, err := conn.ListerWatcher(services(), namespace, api{c, namespace}).Watch(metav1.ListOptions{ResourceVersion: now}) //nolint:staticcheck // SA1019: the interface's method
	if err != nil {
		t.Fatalf("watching: %v", err)
	}
	t.Cleanup(w.Stop)
	eventually(t, "the bus feeds the watch", func() bool {
		c.beat()
		stats := conn.Stats()
		return stats.Connected && stats.Following == 0 && c.watchesSoFar() > 0
	})
	return w
}

// assertEvents reads as many events as are wanted, and compares revisions.
func assertEvents(t testing.TB, w watch.Interface, want ...int64) {
	t.Helper()
	for i, revision := range want {
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				t.Fatalf("watch ended before revision %d (%d of %d)", revision, i+1, len(want))
			}
			service, ok := e.Object.(*corev1.Service)
			if !ok {
				t.Fatalf("event %s has %T: %v", e.Type, e.Object, e.Object)
			}
			if got := revisionOf(service); got != revision {
				t.Fatalf("event %d of %d is of revision %d, not %d", i+1, len(want), got, revision)
			}
			if service.Labels["at"] != service.ResourceVersion {
				t.Fatalf("revision %s has the object of revision %s", service.ResourceVersion, service.Labels["at"])
			}
		case <-time.After(patience):
			t.Fatalf("no event of revision %d (%d of %d)", revision, i+1, len(want))
		}
	}
}

func assertNoEvent(t testing.TB, c *fakeCluster, w watch.Interface) {
	t.Helper()
	// Whatever is under way has been taken in when a later change arrives.
	assertEvents(t, w, c.write(watch.Added, "a", "marker"))
	if len(w.ResultChan()) > 0 {
		t.Fatal("an event too many")
	}
}

// loser loses messages of changes while it has some to lose.
type loser struct{ left atomic.Int64 }

func (l *loser) received(subject string) bool {
	return !strings.HasPrefix(subject, "sampan.watch.") || l.left.Add(-1) < 0
}

func TestWatchDeliversInOrderWithoutTheAPIServer(t *testing.T) {
	t.Parallel()
	c := newFakeCluster(t)
	conn := c.connect(nil)
	w := mustWatch(t, c, conn, "")
	before := c.watchesSoFar()
	var want []int64
	for i := range 300 {
		kind := []watch.EventType{watch.Added, watch.Modified, watch.Deleted}[i%3]
		want = append(want, c.write(kind, "a", fmt.Sprintf("s.%d", i/3)))
		if i%7 == 0 {
			c.elsewhere()
			c.beat()
		}
	}
	assertEvents(t, w, want...)
	if after := c.watchesSoFar(); after != before {
		t.Errorf("the API server was asked for %d watches", after-before)
	}
	if stats := conn.Stats(); stats.Events != 300 || stats.Repairs != 0 {
		t.Errorf("stats are %+v", stats)
	}
}

func TestWatchKeepsTypesOfEvents(t *testing.T) {
	t.Parallel()
	c := newFakeCluster(t)
	w := mustWatch(t, c, c.connect(nil), "")
	for _, kind := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted} {
		c.write(kind, "a", "s")
		if e := <-w.ResultChan(); e.Type != kind || e.Object.(*corev1.Service).Name != "s" || e.Object.(*corev1.Service).Kind != "" {
			t.Errorf("%s came as %s %+v", kind, e.Type, e.Object)
		}
	}
}

func TestFirstMessageLostIsNoticedByTheSecond(t *testing.T) {
	t.Parallel()
	c := newFakeCluster(t)
	var lose loser
	conn := c.connect(lose.received)
	w := mustWatch(t, c, conn, "")
	lose.left.Store(1)
	first := c.write(watch.Added, "a", "s")
	second := c.write(watch.Modified, "a", "s")
	assertEvents(t, w, first, second)
	if stats := conn.Stats(); stats.Repairs != 1 {
		t.Errorf("stats are %+v", stats)
	}
	eventually(t, "the bus feeds the watch again", func() bool { return conn.Stats().Following == 0 })
	assertNoEvent(t, c, w)
}

func TestLastMessageLostIsNoticedByAHeartbeat(t *testing.T) {
	t.Parallel()
	c := newFakeCluster(t)
	var lose loser
	conn := c.connect(lose.received)
	w := mustWatch(t, c, conn, "")
	assertEvents(t, w, c.write(watch.Added, "a", "s"))
	lose.left.Store(1)
	last := c.write(watch.Deleted, "a", "s")
	c.beat()
	assertEvents(t, w, last)
	eventually(t, "the bus feeds the watch again", func() bool { return conn.Stats().Following == 0 })
	assertNoEvent(t, c, w)
}

func TestOnlyMessageOfAResourceLostIsNoticed(t *testing.T) {
	t.Parallel()
	c := newFakeCluster(t)
	var lose loser
	lose.left.Store(1)
	w := mustWatch(t, c, c.connect(lose.received), "")
	only := c.write(watch.Added, "a", "s")
	c.beat()
	assertEvents(t, w, only)
}

func TestHeartbeatThatOvertakesChangesLosesNone(t *testing.T) {
	t.Parallel()
	c := newFakeCluster(t)
	conn := c.connect(nil)
	w := mustWatch(t, c, conn, "")
	c.set(func() { c.silent = true })
	first, second := c.write(watch.Added, "a", "s"), c.write(watch.Modified, "a", "s")
	c.set(func() { c.silent = false })
	c.beat()
	third := c.write(watch.Modified, "a", "s")
	assertEvents(t, w, first, second, third)
	assertNoEvent(t, c, w)
}

func TestDuplicatesAreDropped(t *testing.T) {
	t.Parallel()
	c := newFakeCluster(t)
	c.set(func() { c.twice = true })
	conn := c.connect(nil)
	w := mustWatch(t, c, conn, "")
	var want []int64
	for range 20 {
		want = append(want, c.write(watch.Modified, "a", "s"))
	}
	assertEvents(t, w, want...)
	assertNoEvent(t, c, w)
}

func TestObjectsTooLargeComeFromTheAPIServer(t *testing.T) {
	t.Parallel()
	c := newFakeCluster(t)
	w := mustWatch(t, c, c.connect(nil), "")
	first := c.write(watch.Added, "a", "s")
	c.set(func() { c.large = true })
	second := c.write(watch.Modified, "a", "s")
	c.set(func() { c.large = false })
	assertEvents(t, w, first, second, c.write(watch.Modified, "a", "s"))
}

func TestNamespaceIsWatchedAlone(t *testing.T) {
	t.Parallel()
	c := newFakeCluster(t)
	var lose loser
	conn := c.connect(lose.received)
	w := mustWatch(t, c, conn, "a")
	first := c.write(watch.Added, "a", "s")
	c.write(watch.Added, "b", "s")
	c.write(watch.Added, "b", "t")
	second := c.write(watch.Modified, "a", "s")
	assertEvents(t, w, first, second)
	if stats := conn.Stats(); stats.Repairs != 0 {
		t.Errorf("changes elsewhere made %d repairs", stats.Repairs)
	}
	lose.left.Store(1)
	third := c.write(watch.Modified, "a", "s")
	c.write(watch.Modified, "b", "s")
	c.beat()
	assertEvents(t, w, third)
}

func TestSlowReaderMissesNothing(t *testing.T) {
	t.Parallel()
	c := newFakeCluster(t)
	w := mustWatch(t, c, c.connect(nil), "")
	var want []int64
	for range 3000 { // more than are kept for a reader
		want = append(want, c.write(watch.Modified, "a", "s"))
	}
	c.mu.Lock()
	err := c.publisher.Flush()
	c.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	c.beats()
	assertEvents(t, w, want...)
}

func TestExpiredGapEndsTheWatchWithStatus410(t *testing.T) {
	t.Parallel()
	c := newFakeCluster(t)
	var lose loser
	w := mustWatch(t, c, c.connect(lose.received), "")
	lose.left.Store(1)
	c.write(watch.Added, "a", "s")
	c.compact()
	c.beat()
	e := <-w.ResultChan()
	if e.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(e.Object)) {
		t.Fatalf("got %s %v", e.Type, e.Object)
	}
	if _, open := <-w.ResultChan(); open {
		t.Error("the watch goes on after its error")
	}
}

func TestGapIsRepairedOnceTheAPIServerAnswersAgain(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]error{"refused": errors.New("connection refused"), "overloaded": apierrors.NewTooManyRequests("later", 0)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newFakeCluster(t)
			var lose loser
			w := mustWatch(t, c, c.connect(lose.received), "")
			c.set(func() { c.broken = broken })
			lose.left.Store(1)
			first, second := c.write(watch.Added, "a", "s"), c.write(watch.Modified, "a", "s")
			before := c.watchesSoFar()
			eventually(t, "it was tried twice", func() bool { return c.watchesSoFar() >= before+2 })
			c.set(func() { c.broken = nil })
			assertEvents(t, w, first, second)
		})
	}
}

func TestWatchGoesOnAfterARestartOfTheBus(t *testing.T) {
	t.Parallel()
	c := newFakeCluster(t)
	conn := c.connect(nil)
	w := mustWatch(t, c, conn, "")
	want := []int64{c.write(watch.Added, "a", "s")}
	c.stopNATS()
	eventually(t, "the connection is known to be lost", func() bool { return !conn.Stats().Connected })
	want = append(want, c.write(watch.Modified, "a", "s"))
	c.startNATS()
	// Without any heartbeat: to be connected again is reason enough to ask.
	assertEvents(t, w, want...)
	eventually(t, "the bus feeds the watch again", func() bool { c.beat(); return conn.Stats().Following == 0 })
	before := c.watchesSoFar()
	assertEvents(t, w, c.write(watch.Modified, "a", "s"))
	if after := c.watchesSoFar(); after != before {
		t.Error("the API server is asked although the bus works")
	}
}

func TestBusThatComesLaterIsUsed(t *testing.T) {
	t.Parallel()
	c := newFakeCluster(t)
	c.stopNATS()
	conn := c.connect(nil)
	w, err := conn.ListerWatcher(services(), "", api{c, ""}).Watch(metav1.ListOptions{ResourceVersion: "10"}) //nolint:staticcheck // SA1019: the interface's method
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	assertEvents(t, w, c.write(watch.Added, "a", "s"))
	c.startNATS()
	eventually(t, "the bus feeds the watch", func() bool { c.beat(); return conn.Stats().Connected && conn.Stats().Following == 0 })
	assertEvents(t, w, c.write(watch.Modified, "a", "s"))
}

func TestSilentBusIsReplacedByTheAPIServer(t *testing.T) {
	t.Parallel()
	c := newFakeCluster(t)
	conn := c.connect(nil)
	w := mustWatch(t, c, conn, "")
	c.set(func() { c.silent = true })
	first := c.write(watch.Added, "a", "s")
	assertEvents(t, w, first) // after some seconds
	if conn.Stats().Following != 1 {
		t.Error("the watch is not fed by the API server")
	}
	assertEvents(t, w, c.write(watch.Modified, "a", "s")) // at once
	c.set(func() { c.silent = false })
	eventually(t, "the bus feeds the watch again", func() bool { c.beat(); return conn.Stats().Following == 0 })
}

func TestStopAndCloseEndWatches(t *testing.T) {
	t.Parallel()
	c := newFakeCluster(t)
	conn := c.connect(nil)
	first := mustWatch(t, c, conn, "")
	subscriptions := c.nats.NumSubscriptions()
	second := mustWatch(t, c, conn, "")
	eventually(t, "both have subscribed", func() bool { return c.nats.NumSubscriptions() == subscriptions+2 })
	second.Stop()
	second.Stop()
	if _, open := <-second.ResultChan(); open {
		t.Error("a stopped watch goes on")
	}
	eventually(t, "subscriptions are gone", func() bool { return c.nats.NumSubscriptions() == subscriptions })
	// Nobody reads, the channel is full, and the writer must end all the same.
	for range 500 {
		c.write(watch.Modified, "a", "s")
	}
	conn.Close()
	eventually(t, "the watch ends with the connection", func() bool {
		_, open := <-first.ResultChan()
		return !open
	})
}

func TestWatchesWithSelectorsComeFromTheAPIServer(t *testing.T) {
	t.Parallel()
	c := newFakeCluster(t)
	conn := c.connect(nil)
	yes := true
	for name, options := range map[string]metav1.ListOptions{
		"labels": {ResourceVersion: "10", LabelSelector: "a=b"}, "fields": {ResourceVersion: "10", FieldSelector: "metadata.name=x"},
		"initial events": {ResourceVersion: "10", SendInitialEvents: &yes},
	} {
		subscriptions := c.nats.NumSubscriptions()
		w, err := conn.ListerWatcher(services(), "", api{c, ""}).Watch(options) //nolint:staticcheck // SA1019: the interface's method
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		w.Stop()
		if c.nats.NumSubscriptions() != subscriptions {
			t.Errorf("%s: the bus was asked", name)
		}
	}
	if _, err := conn.ListerWatcher(services(), "", api{c, ""}).Watch(metav1.ListOptions{ResourceVersion: "x"}); err == nil { //nolint:staticcheck // SA1019: the interface's method
		t.Error("a resource version that is no number is accepted")
	}
}

func TestSubjectsAreOneTokenPerName(t *testing.T) {
	t.Parallel()
	subject := bus.Subject(corev1.Resource("endpointslices"), "kube-system", "a.b*>")
	if want := "sampan.watch.v1.core.endpointslices.kube-system.a%2Eb%2A%3E"; subject != want {
		t.Errorf("subject is %s, not %s", subject, want)
	}
	for subject, want := range map[string]string{
		bus.Subject(corev1.Resource("nodes"), "", "n"): "sampan.watch.v1.core.nodes._.n",
		bus.Pattern(services(), ""):                    "sampan.watch.v1.core.services.>",
		bus.Pattern(services(), "a"):                   "sampan.watch.v1.core.services.a.>",
		bus.HeartbeatSubject(services(), ""):           "sampan.heartbeat.v1.core.services",
		bus.HeartbeatSubject(services(), "a"):          "sampan.heartbeat.v1.core.services.a",
	} {
		if subject != want {
			t.Errorf("subject is %s, not %s", subject, want)
		}
	}
}
