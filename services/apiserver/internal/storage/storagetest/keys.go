package storagetest

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
)

func testLifeOfAKey(t *testing.T, s storage.Interface) {
	ctx := t.Context()
	assertGone(t, s, "/a/1", 0)
	created := mustCreate(t, s, "/a/1", "one")
	if created.Revision < 1 || created.CreateRevision != created.Revision {
		t.Errorf("created is %+v", created)
	}
	updated, err := s.Update(ctx, put("/a/1", "two"), created.Revision)
	if err != nil || updated.Revision <= created.Revision || updated.CreateRevision != created.Revision {
		t.Fatalf("updated is %+v, %v", updated, err)
	}
	if got := assertValue(t, s, "/a/1", 0, "two"); got.Revision != updated.Revision || got.CreateRevision != created.Revision {
		t.Errorf("got %+v", got)
	}
	assertValue(t, s, "/a/1", created.Revision, "one")
	deleted, err := s.Delete(ctx, "/a/1", updated.Revision)
	if err != nil || string(deleted.Value) != "two" || deleted.Revision <= updated.Revision {
		t.Errorf("deleted is %+v, %v", deleted, err)
	}
	assertGone(t, s, "/a/1", 0)
	assertValue(t, s, "/a/1", updated.Revision, "two")
	again := mustCreate(t, s, "/a/1", "three")
	if again.CreateRevision != again.Revision {
		t.Errorf("created again: %+v", again)
	}
	assertGone(t, s, "/a/1", deleted.Revision)
}

func assertValue(t *testing.T, s storage.Interface, key string, revision int64, want string) storage.KeyValue {
	t.Helper()
	got, err := s.Get(t.Context(), key, revision)
	if err != nil || string(got.Value) != want {
		t.Errorf("%s at %d is %q, %v; want %q", key, revision, got.Value, err, want)
	}
	return got
}

func assertGone(t *testing.T, s storage.Interface, key string, revision int64) {
	t.Helper()
	if got, err := s.Get(t.Context(), key, revision); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("%s at %d is %q, %v", key, revision, got.Value, err)
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

func testLarge(t *testing.T, s storage.Interface) {
	kv := mustCreate(t, s, "/a/1", "x")
	if _, err := s.Create(t.Context(), storage.Put{Key: "/a/2", Value: make([]byte, storage.MaxValueBytes+1)}); !errors.Is(err, storage.ErrTooLarge) {
		t.Errorf("creation: %v", err)
	}
	if _, err := s.Update(t.Context(), storage.Put{Key: "/a/1", Value: make([]byte, storage.MaxValueBytes)}, kv.Revision); err != nil {
		t.Errorf("the largest value: %v", err)
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
