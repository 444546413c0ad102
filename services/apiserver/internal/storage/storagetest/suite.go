// Package storagetest is the suite that every backend of the store passes.
package storagetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
)

// Run runs the suite; open makes an empty store, closed by the suite.
func Run(t *testing.T, open func(t testing.TB) storage.Interface) {
	tests := []struct {
		name string
		run  func(t *testing.T, s storage.Interface)
	}{
		{"CreateGetUpdateDelete", testLifeOfAKey},
		{"ConditionsThatDoNotHoldChangeNothing", testConditions},
		{"EveryWriteHasARevisionOfItsOwn", testRevisions},
		{"ListsStayInsideTheirPrefix", testPrefixes},
		{"ListsArePaged", testPages},
		{"SinksSeeAllBeforeWritersAreAnswered", testSinks},
		{"AttachStartsFromTheLog", testAttachFromLog},
		{"CompactionKeepsWhatLives", testCompaction},
		{"LargeValuesAreRefused", testLarge},
		{"KeysExpire", testExpiry},
		{"AttachedInTheMiddleOfWritesNothingIsMissed", testAttachWhileWriting},
		{"ClosedStoresRefuse", testClosed},
		{"ModelAgrees", testModel},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := open(t)
			defer func() { _ = s.Close() }()
			test.run(t, s)
		})
	}
}

func put(key, value string) storage.Put { return storage.Put{Key: key, Value: []byte(value)} }

func mustCreate(t testing.TB, s storage.Interface, key, value string) storage.KeyValue {
	t.Helper()
	kv, err := s.Create(t.Context(), put(key, value))
	if err != nil {
		t.Fatal(err)
	}
	return kv
}

func testLifeOfAKey(t *testing.T, s storage.Interface) {
	ctx := t.Context()
	if _, err := s.Get(ctx, "/a/1", 0); !errors.Is(err, storage.ErrNotFound) {
		t.Fatalf("get of nothing: %v", err)
	}
	created := mustCreate(t, s, "/a/1", "one")
	if created.Revision < 1 || created.CreateRevision != created.Revision {
		t.Errorf("created is %+v", created)
	}
	updated, err := s.Update(ctx, put("/a/1", "two"), created.Revision)
	if err != nil || updated.Revision <= created.Revision || updated.CreateRevision != created.Revision {
		t.Fatalf("updated is %+v, %v", updated, err)
	}
	got, err := s.Get(ctx, "/a/1", 0)
	if err != nil || string(got.Value) != "two" || got.Revision != updated.Revision || got.CreateRevision != created.Revision {
		t.Errorf("got %+v, %v", got, err)
	}
	if old, err := s.Get(ctx, "/a/1", created.Revision); err != nil || string(old.Value) != "one" {
		t.Errorf("at the first revision: %+v, %v", old, err)
	}
	deleted, err := s.Delete(ctx, "/a/1", updated.Revision)
	if err != nil || string(deleted.Value) != "two" || deleted.Revision <= updated.Revision {
		t.Errorf("deleted is %+v, %v", deleted, err)
	}
	if _, err := s.Get(ctx, "/a/1", 0); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("get after deletion: %v", err)
	}
	if old, err := s.Get(ctx, "/a/1", updated.Revision); err != nil || string(old.Value) != "two" {
		t.Errorf("before the deletion: %+v, %v", old, err)
	}
	again := mustCreate(t, s, "/a/1", "three")
	if again.CreateRevision != again.Revision {
		t.Errorf("created again: %+v", again)
	}
}

func testConditions(t *testing.T, s storage.Interface) {
	ctx := t.Context()
	kv := mustCreate(t, s, "/a/1", "one")
	var exists *storage.ExistsError
	if _, err := s.Create(ctx, put("/a/1", "x")); !errors.As(err, &exists) || exists.Current.Revision != kv.Revision {
		t.Errorf("second creation: %v", err)
	}
	var conflict *storage.ConflictError
	if _, err := s.Update(ctx, put("/a/1", "x"), kv.Revision+7); !errors.As(err, &conflict) || string(conflict.Current.Value) != "one" {
		t.Errorf("update of another revision: %v", err)
	}
	if _, err := s.Delete(ctx, "/a/1", kv.Revision+7); !errors.As(err, &conflict) {
		t.Errorf("deletion of another revision: %v", err)
	}
	if _, err := s.Update(ctx, put("/a/2", "x"), 1); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("update of nothing: %v", err)
	}
	if _, err := s.Delete(ctx, "/a/2", 1); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("deletion of nothing: %v", err)
	}
	if current, err := s.Current(ctx); err != nil || current != kv.Revision {
		t.Errorf("refused writes moved the revision from %d to %d, %v", kv.Revision, current, err)
	}
	var future *storage.FutureRevisionError
	if _, err := s.Get(ctx, "/a/1", kv.Revision+1); !errors.As(err, &future) {
		t.Errorf("get from the future: %v", err)
	}
}

// testRevisions writes from many goroutines to one key and to many.
func testRevisions(t *testing.T, s storage.Interface) {
	const writers, each = 16, 20
	var mu sync.Mutex
	seen := map[int64]bool{}
	note := func(kv storage.KeyValue) {
		mu.Lock()
		defer mu.Unlock()
		if seen[kv.Revision] {
			t.Errorf("revision %d was given twice", kv.Revision)
		}
		seen[kv.Revision] = true
	}
	note(mustCreate(t, s, "/shared", "0"))
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			for i := range each {
				kv, err := s.Create(t.Context(), put(fmt.Sprintf("/own/%d/%d", w, i), "x"))
				if err != nil {
					t.Error(err)
					return
				}
				note(kv)
				note(increment(t, s))
			}
		})
	}
	group.Wait()
	if got, err := s.Get(t.Context(), "/shared", 0); err != nil || string(got.Value) != fmt.Sprint(writers*each) {
		t.Errorf("counter is %s, %v; want %d", got.Value, err, writers*each)
	}
}

// increment adds one to the counter at /shared by compare-and-set.
func increment(t *testing.T, s storage.Interface) storage.KeyValue {
	t.Helper()
	for {
		have, err := s.Get(t.Context(), "/shared", 0)
		if err != nil {
			t.Error(err)
			return have
		}
		var n int
		if _, err := fmt.Sscan(string(have.Value), &n); err != nil {
			t.Error(err)
			return have
		}
		kv, err := s.Update(t.Context(), put("/shared", fmt.Sprint(n+1)), have.Revision)
		var conflict *storage.ConflictError
		if errors.As(err, &conflict) {
			continue
		}
		if err != nil {
			t.Error(err)
		}
		return kv
	}
}

func testPrefixes(t *testing.T, s storage.Interface) {
	for _, key := range []string{"/registry/pods/a/1", "/registry/pods/b/1", "/registry/pods-more/a/1", "/registry/podtemplates/a/1"} {
		mustCreate(t, s, key, key)
	}
	list, err := s.List(t.Context(), "/registry/pods/", storage.ListOptions{})
	if err != nil || len(list.Items) != 2 {
		t.Errorf("list has %d items, %v", len(list.Items), err)
	}
	if n, err := s.Count(t.Context(), "/registry/pods/"); err != nil || n != 2 {
		t.Errorf("count is %d, %v", n, err)
	}
	if list, err := s.List(t.Context(), "/nothing/", storage.ListOptions{}); err != nil || len(list.Items) != 0 || list.More {
		t.Errorf("list of nothing is %+v, %v", list, err)
	}
}

func testPages(t *testing.T, s storage.Interface) {
	var last storage.KeyValue
	for i := range 25 {
		last = mustCreate(t, s, fmt.Sprintf("/a/%02d", i), "x")
	}
	var keys []string
	o := storage.ListOptions{Limit: 10}
	for {
		page, err := s.List(t.Context(), "/a/", o)
		if err != nil {
			t.Fatal(err)
		}
		if page.Revision != last.Revision {
			t.Fatalf("page is at %d, want %d", page.Revision, last.Revision)
		}
		for _, item := range page.Items {
			keys = append(keys, item.Key)
		}
		if !page.More {
			break
		}
		if page.Remaining != int64(25-len(keys)) {
			t.Errorf("%d remain after %d", page.Remaining, len(keys))
		}
		mustCreate(t, s, fmt.Sprintf("/a/%02d-late", len(keys)), "x") // not in this list
		o.Revision, o.Start = page.Revision, keys[len(keys)-1]+"\x00"
	}
	if len(keys) != 25 {
		t.Errorf("pages have %d keys: %v", len(keys), keys)
	}
}

func testSinks(t *testing.T, s storage.Interface) {
	var mu sync.Mutex
	var revisions []int64
	known := map[string]int64{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := s.Attach(ctx, "/a/", 0, func(batch []storage.Event) {
		mu.Lock()
		defer mu.Unlock()
		for _, e := range batch {
			revisions = append(revisions, e.Revision)
			known[e.Key] = e.Revision
		}
	}); err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for w := range 8 {
		group.Go(func() {
			for i := range 50 {
				kv, err := s.Create(t.Context(), put(fmt.Sprintf("/a/%d-%d", w, i), "x"))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if known[kv.Key] != kv.Revision {
					t.Errorf("%s was answered before the sink saw it", kv.Key)
				}
				mu.Unlock()
				mustCreateQuietly(t, s, fmt.Sprintf("/b/%d-%d", w, i))
			}
		})
	}
	group.Wait()
	mu.Lock()
	defer mu.Unlock()
	if len(revisions) != 400 {
		t.Errorf("sink saw %d events", len(revisions))
	}
	for i := 1; i < len(revisions); i++ {
		if revisions[i] <= revisions[i-1] {
			t.Fatalf("revision %d came after %d", revisions[i], revisions[i-1])
		}
	}
}

func mustCreateQuietly(t *testing.T, s storage.Interface, key string) {
	if _, err := s.Create(t.Context(), put(key, "x")); err != nil {
		t.Error(err)
	}
}

func testAttachFromLog(t *testing.T, s storage.Interface) {
	first := mustCreate(t, s, "/a/1", "one")
	second, err := s.Update(t.Context(), put("/a/1", "two"), first.Revision)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Delete(t.Context(), "/a/1", second.Revision); err != nil {
		t.Fatal(err)
	}
	var events []storage.Event
	if err := s.Attach(t.Context(), "/a/", first.Revision, func(batch []storage.Event) { events = append(events, batch...) }); err != nil {
		t.Fatal(err)
	}
	if len(events) != 2 || events[0].Operation != storage.Update || events[1].Operation != storage.Delete {
		t.Fatalf("events are %+v", events)
	}
	if e := events[0]; string(e.PrevValue) != "one" || e.PrevRevision != first.Revision || string(e.Value) != "two" || e.CreateRevision != first.Revision {
		t.Errorf("update is %+v", e)
	}
	if e := events[1]; string(e.PrevValue) != "two" || e.Value != nil || e.PrevRevision != second.Revision {
		t.Errorf("deletion is %+v", e)
	}
	var future *storage.FutureRevisionError
	if err := s.Attach(t.Context(), "/a/", second.Revision+10, func([]storage.Event) {}); !errors.As(err, &future) {
		t.Errorf("attached to the future: %v", err)
	}
	part, complete, err := s.Log(t.Context(), "/a/", 0, 1)
	if err != nil || len(part) != 1 || complete != first.Revision {
		t.Errorf("one entry of the log: %+v up to %d, %v", part, complete, err)
	}
}

func testCompaction(t *testing.T, s storage.Interface) {
	ctx := t.Context()
	old := mustCreate(t, s, "/a/live", "from long ago")
	dead := mustCreate(t, s, "/a/dead", "x")
	if _, err := s.Delete(ctx, "/a/dead", dead.Revision); err != nil {
		t.Fatal(err)
	}
	changed := mustCreate(t, s, "/a/changed", "one")
	changed, err := s.Update(ctx, put("/a/changed", "two"), changed.Revision)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Compact(ctx, changed.Revision-1); err != nil {
		t.Fatal(err)
	}
	var compacted *storage.CompactedError
	for what, err := range map[string]error{
		"get":    second(s.Get(ctx, "/a/live", old.Revision)),
		"list":   second(s.List(ctx, "/a/", storage.ListOptions{Revision: old.Revision})),
		"attach": s.Attach(ctx, "/a/", old.Revision, func([]storage.Event) {}),
	} {
		if !errors.As(err, &compacted) {
			t.Errorf("%s below the compacted revision: %v", what, err)
		}
	}
	if got, err := s.Get(ctx, "/a/live", 0); err != nil || string(got.Value) != "from long ago" || got.Revision != old.Revision {
		t.Errorf("a live value is %+v, %v", got, err)
	}
	events, _, err := s.Log(ctx, "/a/", changed.Revision-1, 0)
	if err != nil || len(events) != 1 || string(events[0].PrevValue) != "one" {
		t.Errorf("the log after the compacted revision is %+v, %v", events, err)
	}
	if list, err := s.List(ctx, "/a/", storage.ListOptions{Revision: changed.Revision - 1}); err != nil || len(list.Items) != 2 || string(list.Items[0].Value) != "one" {
		t.Errorf("the list at the compacted revision is %+v, %v", list, err)
	}
	if s.CompactedRevision() != changed.Revision-1 {
		t.Errorf("compacted revision is %d", s.CompactedRevision())
	}
}

func second[T any](_ T, err error) error { return err }

func testLarge(t *testing.T, s storage.Interface) {
	kv := mustCreate(t, s, "/a/1", "x")
	if _, err := s.Create(t.Context(), storage.Put{Key: "/a/2", Value: make([]byte, storage.MaxValueBytes+1)}); !errors.Is(err, storage.ErrTooLarge) {
		t.Errorf("creation: %v", err)
	}
	if _, err := s.Update(t.Context(), storage.Put{Key: "/a/1", Value: make([]byte, storage.MaxValueBytes)}, kv.Revision); err != nil {
		t.Errorf("the largest value: %v", err)
	}
}

// testExpiry lets keys expire in order, but for one whose time was extended and
// one that was made again.
func testExpiry(t *testing.T, s storage.Interface) {
	gone := make(chan storage.Event, 10)
	if err := s.Attach(t.Context(), "/a/", 0, func(batch []storage.Event) {
		for _, e := range batch {
			if e.Operation == storage.Delete {
				gone <- e
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	const short = 20 * time.Millisecond
	keys := map[string]storage.KeyValue{}
	for _, key := range []string{"/a/extended", "/a/kept", "/a/made again", "/a/short"} {
		kv, err := s.Create(t.Context(), storage.Put{Key: key, Value: []byte("x"), TTL: short})
		if err != nil {
			t.Fatal(err)
		}
		keys[key] = kv
	}
	update := func(key string, ttl time.Duration) {
		t.Helper()
		if _, err := s.Update(t.Context(), storage.Put{Key: key, TTL: ttl}, keys[key].Revision); err != nil {
			t.Skipf("the machine is slower than a key's time: %v", err)
		}
	}
	update("/a/extended", time.Hour)
	update("/a/kept", 0)
	if _, err := s.Delete(t.Context(), "/a/made again", keys["/a/made again"].Revision); err != nil {
		t.Skipf("the machine is slower than a key's time: %v", err)
	}
	<-gone
	mustCreate(t, s, "/a/made again", "x")
	if e := <-gone; e.Key != "/a/short" || string(e.PrevValue) != "x" {
		t.Errorf("%+v expired", e)
	}
	last, err := s.Create(t.Context(), storage.Put{Key: "/a/last", TTL: short})
	if err != nil {
		t.Fatal(err)
	}
	if e := <-gone; e.Key != "/a/last" || e.PrevRevision != last.Revision {
		t.Errorf("%+v expired", e)
	}
	if n, err := s.Count(t.Context(), "/a/"); err != nil || n != 3 {
		t.Errorf("%d keys are left, %v", n, err)
	}
}

func testAttachWhileWriting(t *testing.T, s storage.Interface) {
	const writes = 300
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range writes {
			mustCreateQuietly(t, s, fmt.Sprintf("/a/%d", i))
		}
	}()
	var mu sync.Mutex
	seen := make([][]int64, 20)
	for i := range seen {
		if err := s.Attach(t.Context(), "/a/", 0, func(batch []storage.Event) {
			mu.Lock()
			defer mu.Unlock()
			for _, e := range batch {
				seen[i] = append(seen[i], e.Revision)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	<-done
	mu.Lock()
	defer mu.Unlock()
	for i, revisions := range seen {
		if len(revisions) != writes {
			t.Errorf("sink %d saw %d of %d events", i, len(revisions), writes)
		}
		if !slices.IsSorted(revisions) {
			t.Errorf("sink %d saw %v", i, revisions)
		}
	}
}

func testClosed(t *testing.T, s storage.Interface) {
	mustCreate(t, s, "/a/1", "x")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(t.Context(), put("/a/2", "x")); !errors.Is(err, storage.ErrClosed) {
		t.Errorf("creation: %v", err)
	}
	if _, err := s.Get(t.Context(), "/a/1", 0); !errors.Is(err, storage.ErrClosed) {
		t.Errorf("get: %v", err)
	}
}

// testModel carries out random operations and compares every past revision with
// a model.
func testModel(t *testing.T, s storage.Interface) {
	rapid.Check(t, func(r *rapid.T) {
		prefix := fmt.Sprintf("/model-%d/", rapid.Uint64().Draw(r, "prefix"))
		if n, err := s.Count(t.Context(), prefix); err != nil || n > 0 {
			r.Skip("prefix was used before")
		}
		live := map[string]storage.KeyValue{}
		past := map[int64]map[string]string{}
		for range rapid.IntRange(1, 30).Draw(r, "operations") {
			key := prefix + rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(r, "key")
			revision := modelStep(t, r, s, key, live)
			state := map[string]string{}
			for k, kv := range live {
				state[k] = string(kv.Value)
			}
			past[revision] = state
		}
		for revision, want := range past {
			list, err := s.List(t.Context(), prefix, storage.ListOptions{Revision: revision})
			if err != nil {
				r.Fatalf("list at %d: %v", revision, err)
			}
			got := map[string]string{}
			for _, item := range list.Items {
				got[item.Key] = string(item.Value)
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				r.Fatalf("at %d: %v, want %v", revision, got, want)
			}
		}
	})
}

func modelStep(t *testing.T, r *rapid.T, s storage.Interface, key string, live map[string]storage.KeyValue) int64 {
	have, exists := live[key]
	value := rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(r, "value")
	switch {
	case !exists:
		kv, err := s.Create(t.Context(), storage.Put{Key: key, Value: value})
		if err != nil {
			r.Fatal(err)
		}
		live[key] = kv
		return kv.Revision
	case rapid.Bool().Draw(r, "delete"):
		kv, err := s.Delete(t.Context(), key, have.Revision)
		if err != nil || !bytes.Equal(kv.Value, have.Value) {
			r.Fatalf("deletion: %+v, %v", kv, err)
		}
		delete(live, key)
		return kv.Revision
	default:
		kv, err := s.Update(t.Context(), storage.Put{Key: key, Value: value}, have.Revision)
		if err != nil {
			r.Fatal(err)
		}
		live[key] = kv
		return kv.Revision
	}
}
