package bus_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"pgregory.net/rapid"

	"github.com/sampan-io/sampan/proto/bus"
)

// mustInform runs an informer fed from the bus until the test ends.
func mustInform(t testing.TB, c *fakeCluster, conn *bus.Conn, namespace string) cache.SharedInformer {
	t.Helper()
	informer := cache.NewSharedInformer(conn.ListerWatcher(services(), namespace, api{c, namespace}), &corev1.Service{}, 0)
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		informer.Run(stop)
	}()
	t.Cleanup(func() { close(stop); <-ended })
	eventually(t, "the informer is in sync", informer.HasSynced)
	return informer
}

// differences are where an informer is not as the truth.
func differences(c *fakeCluster, informer cache.SharedInformer, namespace string) string {
	truth := c.truth()
	var out []string
	for key, service := range truth {
		if namespace != "" && service.Namespace != namespace {
			delete(truth, key)
		}
	}
	for _, obj := range informer.GetStore().List() {
		have := obj.(*corev1.Service)
		key := have.Namespace + "/" + have.Name
		switch want := truth[key]; {
		case want == nil:
			out = append(out, key+" does not exist")
		case want.ResourceVersion != have.ResourceVersion || have.Labels["at"] != want.Labels["at"]:
			out = append(out, fmt.Sprintf("%s is %s, not %s", key, have.ResourceVersion, want.ResourceVersion))
		}
		delete(truth, key)
	}
	for key := range truth {
		out = append(out, key+" is missing")
	}
	return strings.Join(out, "; ")
}

func assertSame(t testing.TB, c *fakeCluster, informer cache.SharedInformer, namespace string) {
	t.Helper()
	eventually(t, "the informer has the truth", func() bool { return differences(c, informer, namespace) == "" })
}

func TestInformerListsAnewWhenAGapHasExpired(t *testing.T) {
	t.Parallel()
	c := newFakeCluster(t)
	c.beats()
	var lose loser
	conn := c.connect(lose.received)
	informer := mustInform(t, c, conn, "")
	eventually(t, "the bus feeds the informer", func() bool { return conn.Stats().Following == 0 && conn.Stats().Connected })
	lose.left.Store(2)
	c.set(func() { c.silent = true })
	c.write(watch.Added, "a", "s")
	c.write(watch.Added, "a", "t")
	c.compact()
	c.set(func() { c.silent = false })
	assertSame(t, c, informer, "")
}

// One informer of all and one of a namespace see a random history, with random
// loss of changes and heartbeats, restarts of bus and publisher, and compaction.
func TestInformerStaysEqualToTheTruthUnderLoss(t *testing.T) {
	// An example takes a fifth of a second, which a restart of the bus needs.
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue {
		if err := checks.Value.Set("25"); err != nil {
			t.Fatal(err)
		}
	}
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		inner := &rapidTB{TB: t}
		defer inner.cleanup()
		c := newFakeCluster(inner)
		c.beats()
		var percent atomic.Int64
		conn := c.connect(func(string) bool { return rand.Int64N(100) >= percent.Load() })
		all, one := mustInform(inner, c, conn, ""), mustInform(inner, c, conn, "a")
		names := rapid.SampledFrom([]string{"s", "t", "u.v"})
		namespaces := rapid.SampledFrom([]string{"a", "b", "c"})
		for range rapid.IntRange(1, 4).Draw(r, "rounds") {
			percent.Store(rapid.Int64Range(0, 100).Draw(r, "loss"))
			for range rapid.IntRange(0, 30).Draw(r, "writes") {
				namespace, name := namespaces.Draw(r, "namespace"), names.Draw(r, "name")
				kind := watch.Added
				if c.truth()[namespace+"/"+name] != nil {
					kind = rapid.SampledFrom([]watch.EventType{watch.Modified, watch.Deleted}).Draw(r, "kind")
				}
				c.write(kind, namespace, name)
			}
			switch rapid.SampledFrom([]string{"nothing", "elsewhere", "compact", "restart", "twice", "large"}).Draw(r, "then") {
			case "elsewhere":
				c.elsewhere()
			case "compact":
				c.compact()
			case "restart":
				c.stopNATS()
				c.write(watch.Modified, "a", "s") // whether it exists or not
				c.startNATS()
			case "twice":
				c.set(func() { c.twice = !c.twice })
			case "large":
				c.set(func() { c.large = !c.large })
			}
		}
		percent.Store(0)
		assertSame(inner, c, all, "")
		assertSame(inner, c, one, "a")
	})
}

// rapidTB runs its clean-ups at the end of one example.
type rapidTB struct {
	testing.TB
	cleanups []func()
}

func (t *rapidTB) Cleanup(f func()) { t.cleanups = append(t.cleanups, f) }

func (t *rapidTB) cleanup() {
	for i := len(t.cleanups) - 1; i >= 0; i-- {
		t.cleanups[i]()
	}
}
