package upstreamtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage/etcd"
)

// recorder is a sink that remembers the keys it was told of.
type recorder struct {
	mu   sync.Mutex
	keys []string
}

func (r *recorder) take(batch []storage.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, event := range batch {
		r.keys = append(r.keys, event.Key)
	}
}

func (r *recorder) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.keys, " ")
}

// eventually tries again until do succeeds.
func eventually(t *testing.T, what string, do func(ctx context.Context) error) {
	t.Helper()
	var last error
	if err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		last = do(ctx)
		return last == nil, nil
	}); err != nil {
		t.Fatalf("%s: %v", what, last)
	}
}

func TestStoreGoesOnAfterEtcdWasAway(t *testing.T) {
	server := newEtcd(t)
	store := mustOpen(t, server.client.String())
	var seen recorder
	if err := store.Attach(t.Context(), "/a/", 0, seen.take); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Create(t.Context(), storage.Put{Key: "/a/before"}); err != nil {
		t.Fatal(err)
	}
	server.stop()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := store.Create(ctx, storage.Put{Key: "/a/meanwhile"}); err == nil {
		t.Error("a write was acknowledged without etcd")
	}
	if _, err := store.Current(ctx); err == nil {
		t.Error("a revision was read without etcd")
	}
	server.start()
	eventually(t, "writing goes on", func(ctx context.Context) error {
		_, err := store.Create(ctx, storage.Put{Key: "/a/after"})
		return err
	})
	if got := seen.String(); got != "/a/before /a/after" {
		t.Errorf("the sink has seen %s", got)
	}
}

// cable is a connection to etcd that can be cut and mended.
type cable struct {
	target string

	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

func newCable(t *testing.T, target string) (c *cable, endpoint string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	c = &cable{target: strings.TrimPrefix(target, "http://")}
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			go c.carry(near)
		}
	}()
	return c, "http://" + listener.Addr().String()
}

func (c *cable) carry(near net.Conn) {
	far, err := net.Dial("tcp", c.target)
	c.mu.Lock()
	if err != nil || c.cut {
		c.mu.Unlock()
		_ = near.Close()
		if err == nil {
			_ = far.Close()
		}
		return
	}
	c.conns = append(c.conns, near, far)
	c.mu.Unlock()
	go func() { _, _ = io.Copy(near, far) }()
	_, _ = io.Copy(far, near)
}

func (c *cable) set(cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = cut
	if cut {
		for _, conn := range c.conns {
			_ = conn.Close()
		}
		c.conns = nil
	}
}

// A server that was cut off sees afterwards what others wrote meanwhile.
func TestStoreCatchesUpAfterItWasCutOff(t *testing.T) {
	endpoint := startEtcd(t)
	cable, far := newCable(t, endpoint)
	store, other := mustOpen(t, far), mustOpen(t, endpoint)
	var seen recorder
	if err := store.Attach(t.Context(), "/a/", 0, seen.take); err != nil {
		t.Fatal(err)
	}
	cable.set(true)
	for i := range 3 {
		if _, err := other.Create(t.Context(), storage.Put{Key: fmt.Sprintf("/a/%d", i)}); err != nil {
			t.Fatal(err)
		}
	}
	cable.set(false)
	eventually(t, "the store is as new as etcd", func(ctx context.Context) error {
		_, err := store.Current(ctx)
		return err
	})
	if got := seen.String(); got != "/a/0 /a/1 /a/2" {
		t.Errorf("the sink has seen %s", got)
	}
}

// What was compacted before a server could see it, its caches can never have: it
// must start again.
func TestStoreThatMissedChangesForGoodExits(t *testing.T) {
	endpoint := startEtcd(t)
	cable, far := newCable(t, endpoint)
	exited := make(chan int, 1)
	store, err := etcd.Open(t.Context(), etcd.Options{Endpoints: []string{far}, Prefix: "/registry", Exit: func(code int) { exited <- code }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	cable.set(true)
	other := mustOpen(t, endpoint)
	var last storage.KeyValue
	for i := range 3 {
		if last, err = other.Create(t.Context(), storage.Put{Key: fmt.Sprintf("/a/%d", i)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := other.Compact(t.Context(), last.Revision); err != nil {
		t.Fatal(err)
	}
	cable.set(false)
	select {
	case code := <-exited:
		if code != 1 {
			t.Errorf("it exits with %d", code)
		}
	case <-time.After(30 * time.Second):
		t.Error("it does not exit")
	}
}

// Of several servers one compacts at a time, what is as old as the pause; etcd
// compacts it.
func TestServersShareCompaction(t *testing.T) {
	endpoint := startEtcd(t)
	open := func() *etcd.Store {
		store, err := etcd.Open(t.Context(), etcd.Options{Endpoints: []string{endpoint}, Prefix: "/registry", CompactEvery: 200 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = store.Close() })
		return store
	}
	a, b := open(), open()
	first, err := a.Create(t.Context(), storage.Put{Key: "/a/1", Value: []byte("one")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Update(t.Context(), storage.Put{Key: "/a/1", Value: []byte("two")}, first.Revision); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both know of a compaction after the first write", func(context.Context) error {
		for _, store := range []*etcd.Store{a, b} {
			if store.CompactedRevision() <= first.Revision {
				return fmt.Errorf("compacted up to %d", store.CompactedRevision())
			}
		}
		return nil
	})
	var compacted *storage.CompactedError
	if _, err := b.Get(t.Context(), "/a/1", first.Revision); !errors.As(err, &compacted) {
		t.Errorf("the old value: %v", err)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	answer, err := client.Get(t.Context(), "compact_rev_key")
	if err != nil || len(answer.Kvs) != 1 {
		t.Errorf("upstream's mark is %v, %v", answer, err)
	}
}
