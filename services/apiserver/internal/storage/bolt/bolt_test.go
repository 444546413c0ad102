package bolt

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	bbolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage/storagetest"
)

func mustOpen(t testing.TB, options Options) *Store {
	t.Helper()
	if options.Path == "" {
		options.Path = filepath.Join(t.TempDir(), "store")
	}
	s, err := Open(options)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSuite(t *testing.T) {
	storagetest.Run(t, func(t testing.TB) storage.Interface { return mustOpen(t, Options{NoSync: true}) })
}

func TestReopenedStoreHasEverything(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s := mustOpen(t, Options{Path: path})
	kv, err := s.Create(t.Context(), storage.Put{Key: "/a", Value: []byte("x")})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, Options{Path: path})
	defer func() { _ = s.Close() }()
	got, err := s.Get(t.Context(), "/a", 0)
	if err != nil || got.Revision != kv.Revision || string(got.Value) != "x" {
		t.Errorf("got %+v, %v", got, err)
	}
	next, err := s.Create(t.Context(), storage.Put{Key: "/b"})
	if err != nil || next.Revision != kv.Revision+1 {
		t.Errorf("the next write is %+v, %v", next, err)
	}
}

func TestFileThatIsOpenElsewhereIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s := mustOpen(t, Options{Path: path})
	defer func() { _ = s.Close() }()
	if _, err := Open(Options{Path: path}); err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("error is %v", err)
	}
}

func TestDamagedFilesAreReported(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s := mustOpen(t, Options{Path: path})
	for i := range 200 {
		if _, err := s.Create(t.Context(), storage.Put{Key: fmt.Sprint("/a/", i), Value: make([]byte, 1000)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"not a store":      bytes.Repeat([]byte("text "), 10000),
		"zeroed head":      append(make([]byte, 8192), whole[8192:]...),
		"cut to two pages": whole[:8192],
	} {
		damaged := filepath.Join(t.TempDir(), "damaged")
		if err := os.WriteFile(damaged, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := Open(Options{Path: damaged}); err == nil {
			_ = s.Close()
			t.Errorf("%s: the store opened", name)
		}
	}
}

func TestHistoryIsBoundByAgeAndBytes(t *testing.T) {
	var h history
	now := time.Unix(1000, 0)
	h.start(0, now)
	for i := range int64(100) {
		h.add([]storage.Event{{Revision: i + 1, Value: make([]byte, 1000)}}, now.Add(time.Duration(i+1)*time.Second))
	}
	end := now.Add(100 * time.Second)
	if got := h.cut(end.Add(-10*time.Second), 1<<30); got != 90 {
		t.Errorf("by age: %d", got)
	}
	if got := h.cut(now, 5000); got < 94 || got > 96 {
		t.Errorf("by bytes: %d", got)
	}
}

// A full disk refuses writes, keeps reads, lets deletions through its reserve
// and recovers when there is room.
func TestFullDiskRefusesWritesAndRecovers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount a small file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=48m"); err != nil {
		t.Skipf("mounting a small tmpfs: %v", err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	exited := false
	s := mustOpen(t, Options{Path: filepath.Join(dir, "store"), Exit: func(int) { exited = true }})
	defer func() { _ = s.Close() }()
	var kept []storage.KeyValue
	var err error
	for i := 0; err == nil && i < 1000; i++ {
		var kv storage.KeyValue
		if kv, err = s.Create(t.Context(), storage.Put{Key: fmt.Sprintf("/a/%04d", i), Value: make([]byte, 512<<10)}); err == nil {
			kept = append(kept, kv)
		}
	}
	if !errors.Is(err, storage.ErrNoSpace) || len(kept) < 5 {
		t.Fatalf("after %d writes: %v", len(kept), err)
	}
	list, err := s.List(t.Context(), "/a/", storage.ListOptions{})
	if err != nil || len(list.Items) != len(kept) {
		t.Fatalf("%d of %d keys are there, %v", len(list.Items), len(kept), err)
	}
	for _, kv := range kept {
		if _, err := s.Delete(t.Context(), kv.Key, kv.Revision); err != nil {
			t.Fatalf("deleting on the full disk: %v", err)
		}
	}
	current, err := s.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Compact(t.Context(), current); err != nil {
		t.Fatalf("compacting on the full disk: %v", err)
	}
	if _, err := s.Create(t.Context(), storage.Put{Key: "/b", Value: make([]byte, 1<<20)}); err != nil {
		t.Errorf("writing after room was made: %v", err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=200m"); err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		if _, err := s.Create(t.Context(), storage.Put{Key: fmt.Sprintf("/c/%04d", i), Value: make([]byte, 1<<20)}); err != nil {
			t.Fatalf("writing after the disk has grown: %v", err)
		}
	}
	if _, err := os.Stat(s.reservePath()); err != nil {
		t.Errorf("the reserve was not made again: %v", err)
	}
	if exited {
		t.Error("the store ended the process")
	}
}

// After a failed sync nothing is acknowledged any more and the process ends.
func TestFailedSyncIsFatal(t *testing.T) {
	codes := make(chan int, 10)
	var failing atomic.Bool
	s := mustOpen(t, Options{
		Exit: func(code int) { codes <- code },
		commit: func(tx *bbolt.Tx) error {
			if failing.Load() { // what bbolt returns when fdatasync fails: no file system operation in it
				return errors.Join(syscall.EIO, tx.Rollback())
			}
			return tx.Commit()
		},
	})
	defer func() { _ = s.Close() }()
	if _, err := s.Create(t.Context(), storage.Put{Key: "/a"}); err != nil {
		t.Fatal(err)
	}
	failing.Store(true)
	if _, err := s.Create(t.Context(), storage.Put{Key: "/b"}); !errors.Is(err, storage.ErrClosed) {
		t.Errorf("the write whose sync failed: %v", err)
	}
	if code := <-codes; code == 0 {
		t.Error("the process would have ended with 0")
	}
	failing.Store(false)
	if _, err := s.Create(t.Context(), storage.Put{Key: "/c"}); !errors.Is(err, storage.ErrClosed) {
		t.Errorf("a later write: %v", err)
	}
	if err := s.Compact(t.Context(), 1); !errors.Is(err, storage.ErrClosed) {
		t.Errorf("a later compaction: %v", err)
	}
}

// ENOSPC of the sync, or with a meta page that was written, is no refusal.
func TestOnlyPagesThatDoNotCountAreRefusals(t *testing.T) {
	write := &fs.PathError{Op: "write", Path: "store", Err: syscall.ENOSPC}
	for _, test := range []struct {
		name    string
		fail    func(tx *bbolt.Tx) error
		refused bool
	}{
		{"pages", func(tx *bbolt.Tx) error { return errors.Join(write, tx.Rollback()) }, true},
		{"growing", func(tx *bbolt.Tx) error {
			_ = tx.Rollback()
			return errors.New("file resize error: truncate store: no space left on device")
		}, true},
		{"sync", func(tx *bbolt.Tx) error { return errors.Join(syscall.ENOSPC, tx.Rollback()) }, false},
		{"meta page", func(tx *bbolt.Tx) error { return errors.Join(tx.Commit(), write) }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			var exited, failing atomic.Bool
			s := mustOpen(t, Options{Exit: func(int) { exited.Store(true) }, commit: func(tx *bbolt.Tx) error {
				if failing.Load() {
					return test.fail(tx)
				}
				return tx.Commit()
			}})
			defer func() { _ = s.Close() }()
			failing.Store(true)
			_, err := s.Create(t.Context(), storage.Put{Key: "/b"})
			if refused := errors.Is(err, storage.ErrNoSpace); refused != test.refused || exited.Load() == test.refused {
				t.Errorf("error is %v, exited %v", err, exited.Load())
			}
		})
	}
}

// A value that has changed on the disk is not served.
func TestChangedValueIsNotServed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s := mustOpen(t, Options{Path: path})
	marker := []byte("a value to be found in the file")
	if _, err := s.Create(t.Context(), storage.Put{Key: "/a/1", Value: marker}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, bytes.ReplaceAll(data, marker, bytes.ToUpper(marker)), 0o600); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, Options{Path: path})
	defer func() { _ = s.Close() }()
	if kv, err := s.Get(t.Context(), "/a/1", 0); !errors.Is(err, errCorrupt) {
		t.Errorf("got %q, %v", kv.Value, err)
	}
	if _, err := s.List(t.Context(), "/a/", storage.ListOptions{}); !errors.Is(err, errCorrupt) {
		t.Errorf("list: %v", err)
	}
}

// Readers of the log see each entry or a clear error while history is compacted
// under them.
func TestLogIsWholeOrCompacted(t *testing.T) {
	s := mustOpen(t, Options{NoSync: true})
	defer func() { _ = s.Close() }()
	kv, err := s.Create(t.Context(), storage.Put{Key: "/a"})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 2000 {
			next, err := s.Update(t.Context(), storage.Put{Key: "/a"}, kv.Revision)
			if err != nil {
				t.Error(err)
				return
			}
			kv = next
			if kv.Revision%7 == 0 {
				if err := s.Compact(t.Context(), kv.Revision-3); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	for {
		select {
		case <-done:
			return
		default:
		}
		after := s.CompactedRevision()
		events, complete, err := s.Log(t.Context(), "/", after, 0)
		var compacted *storage.CompactedError
		if errors.As(err, &compacted) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if int64(len(events)) != complete-max(after, storage.EmptyRevision) {
			t.Fatalf("%d events between %d and %d", len(events), after, complete)
		}
	}
}

func FuzzDecodeEntry(f *testing.F) {
	f.Add((&entry{operation: storage.Create, create: 1, key: "/a", value: []byte("x")}).encode())
	f.Add((&entry{operation: storage.Delete, create: 1, previous: 1 << 40, expiry: 1 << 62, key: "/a"}).encode())
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := decodeEntry(data)
		if err != nil {
			if !errors.Is(err, errCorrupt) {
				t.Fatalf("error is %v", err)
			}
			return
		}
		again, err := decodeEntry(e.encode())
		if err != nil || again.key != e.key || !bytes.Equal(again.value, e.value) || again.create != e.create {
			t.Fatalf("%+v became %+v, %v", e, again, err)
		}
	})
}
