package robustness

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sampan-io/sampan/services/internal/testenv"
)

// The API server alone is killed under write load with a watcher on it.
func TestKilledAPIServerLosesNothing(t *testing.T) {
	requireBin(t)
	server, err := testenv.NewAPIServer(t.TempDir(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer server.Kill()
	namespace := mustNamespace(t, server.Client)
	f, err := startFollower(t.Context(), server.Client, namespace)
	if err != nil {
		t.Fatal(err)
	}
	l := startLoad(t.Context(), server.Client, namespace, 16)
	var slowest time.Duration
	for range cycles(t) {
		want := l.writes.Load() + int64(100+rand.IntN(400))
		testenv.Eventually(t, 30*time.Second, "writes go on", func(context.Context) error {
			if l.writes.Load() < want {
				return context.DeadlineExceeded
			}
			return nil
		})
		server.Kill()
		began := time.Now()
		if err := server.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		slowest = max(slowest, time.Since(began))
	}
	l.stop()
	lost, err := l.check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d acknowledged writes, %d failed, ready again after at most %s", l.writes.Load(), l.failures.Load(), slowest)
	if lost > 0 {
		t.Errorf("%d acknowledged writes are lost", lost)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if faults := f.finish(ctx); len(faults) > 0 {
		t.Errorf("the watch had %d faults, the first: %v", len(faults), faults[:min(5, len(faults))])
	}
}
