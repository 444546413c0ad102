package customresource_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

func TestManyDefinitionsAtOnceLeaveTheServerResponsive(t *testing.T) {
	if testing.Short() {
		t.Skip("500 definitions take some seconds")
	}
	const count = 500
	dir := t.TempDir()
	server := testserver.StartIn(t, dir)
	ctx := context.Background()
	before := heap()
	var done atomic.Bool
	answers := make(chan []time.Duration, 1)
	var reader sync.WaitGroup
	defer reader.Wait()
	defer done.Store(true)
	reader.Go(func() {
		var took []time.Duration
		for !done.Load() {
			began := time.Now()
			if _, err := server.Client.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{}); err != nil {
				t.Error(err)
			}
			took = append(took, time.Since(began))
		}
		answers <- took
	})
	client := definitions(t, server).ApiextensionsV1().CustomResourceDefinitions()
	began := time.Now()
	group := errgroup.Group{}
	group.SetLimit(50)
	for i := range count {
		group.Go(func() error {
			d := definition(fmt.Sprintf("g%d.example.com", i%50), fmt.Sprintf("Many%d", i), gadgetSchema)
			_, err := client.Create(ctx, d, metav1.CreateOptions{})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	awaitEstablished(t, server, count)
	all := time.Since(began)
	done.Store(true)
	took := <-answers
	slices.Sort(took)
	if slowest := took[len(took)-1]; slowest > 10*time.Second {
		t.Errorf("a read took %v meanwhile", slowest)
	}
	t.Logf("%d definitions serve after %v; %d reads meanwhile, p50 %v, p99 %v", count, all, len(took), took[len(took)/2], took[len(took)*99/100])
	t.Logf("%d KiB of heap for each", int64(heap()-before)/count/1024)
	for i := range count { // and once each is in use
		d := definition(fmt.Sprintf("g%d.example.com", i%50), fmt.Sprintf("Many%d", i), "type: object")
		obj := object("g"+fmt.Sprint(i%50)+".example.com/v1", d.Spec.Names.Kind, "a", map[string]any{"size": int64(1)})
		if _, err := resource(t, server, d, "v1").Namespace("default").Create(ctx, obj, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d KiB of heap for each that is in use", int64(heap()-before)/count/1024)
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	server = testserver.StartIn(t, dir)
	t.Logf("ready again after %v", time.Since(began))
}

// awaitEstablished waits until that many definitions are established.
func awaitEstablished(t *testing.T, server *testserver.Server, count int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	w, err := definitions(t, server).ApiextensionsV1().CustomResourceDefinitions().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	established := map[string]bool{}
	for event := range w.ResultChan() {
		if d, ok := event.Object.(*definitionObject); ok && apihelpers.IsCRDConditionTrue(d, apiextensionsv1.Established) {
			established[d.Name] = true
		}
		if len(established) == count {
			return
		}
	}
	t.Fatalf("%d of %d definitions are established", len(established), count)
}
