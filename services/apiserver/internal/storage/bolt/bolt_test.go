package bolt

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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

func TestKeysExpire(t *testing.T) {
	s := mustOpen(t, Options{})
	defer func() { _ = s.Close() }()
	gone := make(chan storage.Event, 10)
	if err := s.Attach(t.Context(), "/", 0, func(batch []storage.Event) {
		for _, e := range batch {
			if e.Operation == storage.Delete {
				gone <- e
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	first, err := s.Create(t.Context(), storage.Put{Key: "/short", TTL: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(t.Context(), storage.Put{Key: "/renewed", TTL: 20 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Update(t.Context(), storage.Put{Key: "/renewed", TTL: time.Hour}, first.Revision+1); err != nil {
		t.Fatal(err)
	}
	if e := <-gone; e.Key != "/short" {
		t.Errorf("%s expired", e.Key)
	}
	if _, err := s.Get(t.Context(), "/renewed", 0); err != nil {
		t.Errorf("renewed key: %v", err)
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
	if exited {
		t.Error("the store ended the process")
	}
}

// After a failed sync nothing is acknowledged any more and the process ends.
func TestFailedCommitIsFatal(t *testing.T) {
	codes := make(chan int, 10)
	s := mustOpen(t, Options{Exit: func(code int) { codes <- code }})
	if _, err := s.Create(t.Context(), storage.Put{Key: "/a"}); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Close(); err != nil { // pulls the file away under the committer
		t.Fatal(err)
	}
	if _, err := s.Create(t.Context(), storage.Put{Key: "/b"}); err == nil {
		t.Error("a write was acknowledged after the failure")
	}
	if code := <-codes; code == 0 {
		t.Error("the process would have ended with 0")
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
