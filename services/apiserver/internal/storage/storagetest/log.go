package storagetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
)

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
	testLogInParts(t, s, first, second)
}

func testLogInParts(t *testing.T, s storage.Interface, first, second storage.KeyValue) {
	t.Helper()
	var future *storage.FutureRevisionError
	if err := s.Attach(t.Context(), "/a/", second.Revision+10, func([]storage.Event) {}); !errors.As(err, &future) {
		t.Errorf("attached to the future: %v", err)
	}
	part, complete, err := s.Log(t.Context(), "/a/", 0, 1)
	if err != nil || len(part) != 1 || complete != first.Revision {
		t.Errorf("one entry of the log: %+v up to %d, %v", part, complete, err)
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
	if got := assertValue(t, s, "/a/live", 0, "from long ago"); got.Revision != old.Revision {
		t.Errorf("a live value is %+v", got)
	}
	assertHistoryFrom(t, s, changed)
}

// assertHistoryFrom reads history at the compacted revision, which is the one
// before changed.
func assertHistoryFrom(t *testing.T, s storage.Interface, changed storage.KeyValue) {
	t.Helper()
	ctx := t.Context()
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
