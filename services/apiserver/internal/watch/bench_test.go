package watch_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/fields"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage/memory"
	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
)

// BenchmarkFanOut measures a write that 1,000 watchers of everything see, and
// one that one of 1,000 watchers of a node each sees, until all have.
func BenchmarkFanOut(b *testing.B) {
	for _, test := range []struct {
		name string
		seen int64
		of   func(i int) watch.WatchOptions
	}{
		{"everything", 1000, func(int) watch.WatchOptions { return watch.WatchOptions{} }},
		{"a node each", 1, func(i int) watch.WatchOptions {
			return watch.WatchOptions{Fields: fields.OneTermEqualSelector("spec.nodeName", fmt.Sprintf("n%d", i))}
		}},
	} {
		b.Run(test.name, func(b *testing.B) {
			c := newCache(b, newStore(b), watch.Options{})
			ctx, cancel := context.WithCancel(b.Context())
			var seen atomic.Int64
			var group sync.WaitGroup
			for i := range 1000 {
				w := mustWatch(b, c, test.of(i))
				group.Go(func() {
					buf, err := w.Next(ctx, nil)
					for ; err == nil; buf, err = w.Next(ctx, buf[:0]) {
						seen.Add(int64(len(buf)))
					}
				})
			}
			object := mustCreate(b, c, newPod("default", "a", "n1", "web"))
			want := test.seen
			for b.Loop() {
				object = mustUpdate(b, c, newPod("default", "a", "n1", "web"), object.Revision)
				for want += test.seen; seen.Load() < want; {
					runtime.Gosched()
				}
			}
			cancel()
			group.Wait()
		})
	}
}

// BenchmarkList measures lists of 10,000 pods.
func BenchmarkList(b *testing.B) {
	c := newCache(b, memory.New(), watch.Options{})
	for i := range 10_000 {
		mustCreate(b, c, newPod(fmt.Sprintf("ns-%d", i%100), fmt.Sprintf("pod-%05d", i), fmt.Sprintf("n%d", i%500), "web"))
	}
	for name, o := range map[string]watch.ListOptions{
		"all":       {},
		"namespace": {Namespace: "ns-7"},
		"node":      {Fields: fields.OneTermEqualSelector("spec.nodeName", "n7")},
		"page":      {Limit: 500},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if list, err := c.List(b.Context(), o); err != nil || len(list.Objects) == 0 {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkWriteThrough measures a write through the cache but for the disk.
func BenchmarkWriteThrough(b *testing.B) {
	c := newCache(b, memory.New(), watch.Options{})
	object := mustCreate(b, c, newPod("default", "a", "n1", "web"))
	b.ReportAllocs()
	for b.Loop() {
		object = mustUpdate(b, c, newPod("default", "a", "n1", "web"), object.Revision)
	}
}
