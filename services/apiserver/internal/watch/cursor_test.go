package watch_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage/memory"
	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
)

// fallAsleep lets a watcher see that there is nothing.
func fallAsleep(t testing.TB, w watch.Watcher) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if events, err := w.Next(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Fatalf("the watcher has %v, %v", events, err)
	}
}

func TestQuietWatcherSkipsWhatIsNotForIt(t *testing.T) {
	c := newCache(t, newStore(t), watch.Options{RingBytes: 1000})
	byNode := mustWatch(t, c, watch.WatchOptions{Revision: c.Revision(), Fields: fields.OneTermEqualSelector("spec.nodeName", "n1")})
	byName := mustWatch(t, c, watch.WatchOptions{Revision: c.Revision(), Namespace: "default", Name: "mine"})
	byNamespace := mustWatch(t, c, watch.WatchOptions{Revision: c.Revision(), Namespace: "mine"})
	for _, w := range []watch.Watcher{byNode, byName, byNamespace} {
		fallAsleep(t, w)
	}
	for i := range 200 {
		mustCreate(t, c, newPod("default", fmt.Sprintf("p%d", i), "n2", "web"))
	}
	mustCreate(t, c, newPod("default", "mine", "n1", "web"))
	mustCreate(t, c, newPod("mine", "a", "n2", "web"))
	assertEvents(t, byNode, "added mine")
	assertEvents(t, byName, "added mine")
	assertEvents(t, byNamespace, "added a")
	if n := c.Stats().FromLog; n != 0 {
		t.Errorf("quiet watchers read %d entries of the log", n)
	}
}

func TestQuietWatcherSurvivesCompaction(t *testing.T) {
	store := newStore(t)
	c := newCache(t, store, watch.Options{RingBytes: 1000})
	w := mustWatch(t, c, watch.WatchOptions{Revision: c.Revision(), Fields: fields.OneTermEqualSelector("spec.nodeName", "n1")})
	fallAsleep(t, w)
	var last *watch.Object
	for i := range 200 {
		last = mustCreate(t, c, newPod("default", fmt.Sprintf("p%d", i), "n2", "web"))
	}
	if err := store.Compact(t.Context(), last.Revision); err != nil {
		t.Fatal(err)
	}
	mustCreate(t, c, newPod("default", "mine", "n1", "web"))
	assertEvents(t, w, "added mine")
}

func TestStalledWatcherExpiresBelowTheCompactedRevision(t *testing.T) {
	store := newStore(t)
	c := newCache(t, store, watch.Options{RingBytes: 1000})
	w := mustWatch(t, c, watch.WatchOptions{})
	var last *watch.Object
	for i := range 200 {
		last = mustCreate(t, c, newPod("default", fmt.Sprintf("p%d", i), "n2", "web"))
	}
	if err := store.Compact(t.Context(), last.Revision); err != nil {
		t.Fatal(err)
	}
	if events, err := w.Next(t.Context(), nil); err == nil {
		t.Fatalf("%d events after a gap", len(events))
	}
	if n := c.Stats().Expired; n != 1 {
		t.Errorf("%d watchers expired", n)
	}
}

func TestClosedWatchersLeaveNothing(t *testing.T) {
	c := newCache(t, memory.New(), watch.Options{})
	for i := range 10 {
		w := mustWatch(t, c, watch.WatchOptions{Namespace: "default", Name: fmt.Sprintf("p%d", i)})
		fallAsleep(t, w)
		w.Close()
	}
	if n := c.Stats().Watchers; n != 0 {
		t.Errorf("%d watchers are open", n)
	}
}

// Bookmarks come at intervals and near the end, and their revision goes with the
// store's, whatever resource was written.
func TestBookmarksKeepQuietWatchesFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		c := newCache(t, store, watch.Options{BookmarkEvery: time.Minute})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
		defer cancel()
		w := mustWatch(t, c, watch.WatchOptions{Bookmarks: true})
		started := time.Now()
		other, err := store.Create(t.Context(), storage.Put{Key: "/registry/other/a"})
		if err != nil {
			t.Fatal(err)
		}
		for i, window := range [][2]time.Duration{{time.Minute, 75 * time.Second}, {98 * time.Second, 98 * time.Second}} {
			events, err := w.Next(ctx, nil)
			at := time.Since(started)
			if err != nil || len(events) != 1 || events[0].Type != watch.Bookmark || events[0].Revision != other.Revision {
				t.Fatalf("bookmark %d is %+v, %v", i, events, err)
			}
			if at < window[0] || at > window[1] {
				t.Errorf("bookmark %d came after %s", i, at)
			}
		}
		if _, err := w.Next(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("at the end: %v", err)
		}
	})
}

func TestSupersededObjectsGiveTheirFormsBack(t *testing.T) {
	budget := watch.NewBudget(1 << 30)
	c := newCache(t, newStore(t), watch.Options{Budget: budget, RingBytes: 2000})
	form := watch.Encoding{Name: "test", Encode: func(context.Context, runtime.Object) ([]byte, error) { return make([]byte, 1000), nil }}
	w := mustWatch(t, c, watch.WatchOptions{Labels: labels.SelectorFromSet(labels.Set{"app": "web"})})
	object := mustCreate(t, c, newPod("default", "a", "", "web"))
	for i := range 500 {
		app := []string{"web", "db"}[i%2]
		object = mustUpdate(t, c, newPod("default", "a", "", app), object.Revision)
		events, err := w.Next(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if _, err := e.Object.Encoded(t.Context(), form); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := object.Shared(); err != nil {
			t.Fatal(err)
		}
	}
	if held := budget.Held(); held > 60_000 {
		t.Errorf("forms of objects that are gone hold %d bytes", held)
	}
}

// A client that keeps what its watch tells has, at each moment, what a list
// shows; whatever its selectors, and wherever in history it began.
func TestWatchesTellWhatListsShow(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		store := memory.New()
		c := watch.NewCache(config(), store, watch.Options{RingBytes: rapid.SampledFrom([]int64{1, 1000, 1 << 20}).Draw(r, "ring")})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if err := c.Start(ctx); err != nil {
			r.Fatal(err)
		}
		clients := []*client{}
		objects := map[string]*watch.Object{}
		for range rapid.IntRange(1, 60).Draw(r, "steps") {
			if rapid.IntRange(0, 5).Draw(r, "step") == 0 {
				clients = append(clients, newClient(t, r, c))
				continue
			}
			if len(clients) > 0 && rapid.Bool().Draw(r, "read") {
				rapid.SampledFrom(clients).Draw(r, "client").catchUp(t, r)
			}
			change(t, r, c, objects)
		}
		for _, client := range clients {
			client.catchUp(t, r)
			list, err := c.List(ctx, watch.ListOptions{Namespace: client.options.Namespace, Name: client.options.Name, Labels: client.options.Labels, Fields: client.options.Fields})
			if err != nil {
				r.Fatal(err)
			}
			want := map[string]int64{}
			for _, object := range list.Objects {
				want[object.Namespace+"/"+object.Name] = object.Revision
			}
			if fmt.Sprint(client.known) != fmt.Sprint(want) {
				r.Fatalf("a watch of %+v knows %v; the list is %v", client.options, client.known, want)
			}
		}
	})
}

// client keeps what a watch tells.
type client struct {
	options watch.WatchOptions
	watcher watch.Watcher
	known   map[string]int64
}

func newClient(t *testing.T, r *rapid.T, c *watch.Cache) *client {
	k := &client{known: map[string]int64{}, options: rapid.SampledFrom([]watch.WatchOptions{
		{},
		{Namespace: "a"},
		{Namespace: "a", Name: "p1"},
		{Name: "p1"},
		{Fields: fields.OneTermEqualSelector("spec.nodeName", "n1")},
		{Fields: fields.OneTermEqualSelector("spec.nodeName", "")},
		{Namespace: "a", Labels: labels.SelectorFromSet(labels.Set{"app": "web"})},
		{Fields: fields.OneTermEqualSelector("spec.nodeName", "n1"), Labels: labels.SelectorFromSet(labels.Set{"app": "web"})},
	}).Draw(r, "options")}
	if rapid.Bool().Draw(r, "initial events") {
		k.options.InitialEvents = true
	} else {
		list, err := c.List(t.Context(), watch.ListOptions{Namespace: k.options.Namespace, Name: k.options.Name, Labels: k.options.Labels, Fields: k.options.Fields,
			Versions: watch.Versions{Match: watch.Exact, Revision: rapid.Int64Range(0, c.Revision()).Draw(r, "revision")}})
		if err != nil {
			r.Fatal(err)
		}
		for _, object := range list.Objects {
			k.known[object.Namespace+"/"+object.Name] = object.Revision
		}
		k.options.Revision = list.Revision
	}
	var err error
	if k.watcher, err = c.Watch(t.Context(), k.options); err != nil {
		r.Fatal(err)
	}
	return k
}

// catchUp reads until there is nothing more.
func (k *client) catchUp(t *testing.T, r *rapid.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 1000 {
		events, err := k.watcher.Next(ctx, make([]watch.Event, 0, rapid.IntRange(1, 5).Draw(r, "batch")))
		for _, e := range events {
			k.take(r, e)
		}
		if err != nil && k.settled() {
			return
		}
	}
}

// settled says whether two looks in a row found nothing: the first may have
// ended within the log.
func (k *client) settled() bool {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for range 100 {
		if events, _ := k.watcher.Next(ctx, nil); len(events) > 0 {
			for _, e := range events {
				k.apply(e)
			}
			return false
		}
	}
	return true
}

func (k *client) take(r *rapid.T, e watch.Event) {
	if e.Object == nil || e.Object.Revision != e.Revision {
		r.Fatalf("event is %+v", e)
	}
	_, exists := k.known[e.Object.Namespace+"/"+e.Object.Name]
	if (e.Type == watch.Added) == exists {
		r.Fatalf("event of type %d of %s/%s, known: %v", e.Type, e.Object.Namespace, e.Object.Name, exists)
	}
	k.apply(e)
}

func (k *client) apply(e watch.Event) {
	key := e.Object.Namespace + "/" + e.Object.Name
	if e.Type == watch.Deleted {
		delete(k.known, key)
	} else {
		k.known[key] = e.Revision
	}
}

// change writes something.
func change(t *testing.T, r *rapid.T, c *watch.Cache, objects map[string]*watch.Object) {
	namespace := rapid.SampledFrom([]string{"a", "a-b", "b"}).Draw(r, "namespace")
	name := rapid.SampledFrom([]string{"p1", "p2"}).Draw(r, "name")
	pod := newPod(namespace, name, rapid.SampledFrom([]string{"", "n1", "n2"}).Draw(r, "node"), rapid.SampledFrom([]string{"web", "db"}).Draw(r, "app"))
	key := namespace + "/" + name
	switch have := objects[key]; {
	case have == nil:
		objects[key] = mustCreate(t, c, pod)
	case rapid.IntRange(0, 2).Draw(r, "delete") == 0:
		mustDelete(t, c, have)
		delete(objects, key)
	default:
		objects[key] = mustUpdate(t, c, pod, have.Revision)
	}
}

// Writers, watchers and readers at once: each watcher sees all events in order.
func TestEveryWatcherSeesEverythingInOrder(t *testing.T) {
	const writers, each, watchers = 4, 50, 30
	c := newCache(t, newStore(t), watch.Options{RingBytes: 20_000})
	var group sync.WaitGroup
	for range watchers {
		w := mustWatch(t, c, watch.WatchOptions{})
		group.Go(func() {
			last, seen := int64(0), 0
			for seen < writers*each {
				events, err := w.Next(t.Context(), make([]watch.Event, 0, 7))
				if err != nil {
					t.Error(err)
					return
				}
				for _, e := range events {
					if e.Revision <= last {
						t.Errorf("revision %d came after %d", e.Revision, last)
					}
					last = e.Revision
					if _, err := e.Object.Shared(); err != nil {
						t.Error(err)
					}
				}
				seen += len(events)
			}
		})
	}
	for w := range writers {
		group.Go(func() {
			for i := range each {
				pod := newPod("default", fmt.Sprintf("p-%d-%d", w, i), "n1", "web")
				if _, err := c.Create(t.Context(), watch.Put{Namespace: pod.Namespace, Name: pod.Name, Stored: encode(t, pod), Object: pod}); err != nil {
					t.Error(err)
				}
				if _, err := c.List(t.Context(), watch.ListOptions{Limit: 10}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
}
