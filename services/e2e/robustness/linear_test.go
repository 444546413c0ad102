package robustness

import (
	"context"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/internal/testenv"
)

const (
	trafficClients = 6
	beforeKill     = 1000 // operations
	checkTimeout   = 5 * time.Minute
)

// Clients work on the same objects while the API server is killed under them:
// what they saw is what one machine that never failed could have shown.
func TestHistoriesUnderKillsAreLinearizable(t *testing.T) {
	requireBin(t)
	server, err := testenv.NewAPIServer(t.TempDir(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer server.Kill()
	for range cycles(t) {
		checkHistory(t, server)
	}
}

// checkHistory makes one history with a kill in it, and checks it.
func checkHistory(t *testing.T, server *testenv.APIServer) {
	t.Helper()
	namespace := mustNamespace(t, server.Client)
	start, err := server.Client.CoreV1().ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	clients := startTraffic(t.Context(), server.Client, namespace, trafficClients)
	await := func(more int64) {
		t.Helper()
		want := clients.done.Load() + more
		testenv.Eventually(t, time.Minute, "clients go on", func(context.Context) error {
			if clients.done.Load() < want {
				return context.DeadlineExceeded
			}
			return nil
		})
	}
	await(beforeKill)
	server.Kill()
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(beforeKill)
	history := clients.stop()
	// A last write, so that the log has an end to be read to.
	end := clients.do(t.Context(), 0, request{verb: createVerb, name: "end", value: "end"})
	if end.outcome != succeeded {
		t.Fatalf("the last write: %+v", end)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	log, err := clients.readLog(ctx, mustRevision(start.ResourceVersion), end.revision)
	if err != nil {
		t.Fatal(err)
	}
	resolved, err := resolve(history, log)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	result, info := porcupine.CheckOperationsVerbose(model(), operations(resolved), checkTimeout)
	t.Logf("%d operations, %d of them with lost answers or dropped, %d changes: %s after %s", len(history), lost(history), len(log), result, time.Since(began).Round(time.Millisecond))
	if result != porcupine.Ok {
		path := t.ArtifactDir() + "/history.html"
		if err := porcupine.VisualizePath(model(), info, path); err != nil {
			t.Error(err)
		}
		t.Fatalf("the history is not linearizable (%s); it is drawn in %s", result, path)
	}
}

func lost(history []operation) (n int) {
	for _, op := range history {
		if op.answer.outcome == unknown {
			n++
		}
	}
	return n
}

// The checker finds what it is there to find.
func TestCheckerFindsStaleAndLostStates(t *testing.T) {
	write := operation{request: request{verb: createVerb, name: "a", value: "1"}, answer: answer{outcome: succeeded, revision: 5, found: version{5, "1"}}, call: 1, ended: 2}
	update := operation{request: request{verb: updateVerb, name: "a", value: "2", expect: 5}, answer: answer{outcome: succeeded, revision: 7, found: version{7, "2"}}, call: 3, ended: 4}
	read := func(call time.Duration, found version) operation {
		return operation{client: 1, request: request{verb: getVerb, name: "a"}, answer: answer{outcome: succeeded, revision: found.revision, found: found}, call: call, ended: call + 1}
	}
	list := func(call time.Duration, revision int64, all map[string]version) operation {
		return operation{client: 2, request: request{verb: listVerb}, answer: answer{outcome: succeeded, revision: revision, all: all}, call: call, ended: call + 1}
	}
	for _, test := range []struct {
		name    string
		history []operation
		want    bool
	}{
		{"newest states", []operation{write, update, read(5, version{7, "2"}), list(7, 9, map[string]version{"a": {7, "2"}})}, true},
		{"a read beside a write sees either", []operation{write, update, read(3, version{5, "1"})}, true},
		{"a stale read", []operation{write, update, read(5, version{5, "1"})}, false},
		{"a lost write", []operation{write, {request: request{verb: getVerb, name: "a"}, answer: answer{outcome: notFound}, call: 5, ended: 6}}, false},
		{"a list older than a write", []operation{write, update, list(5, 6, map[string]version{"a": {5, "1"}})}, false},
		{"a list whose revision goes back", []operation{write, update, list(5, 6, map[string]version{"a": {7, "2"}})}, false},
		{"a write over another one", []operation{write, update, {request: update.request, answer: answer{outcome: succeeded, revision: 9}, call: 5, ended: 6}}, false},
	} {
		if got := porcupine.CheckOperations(model(), operations(test.history)); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}
