package robustness

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"k8s.io/client-go/kubernetes"

	"github.com/sampan-io/sampan/services/internal/testenv"
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
		check := Check{
			Servers: []kubernetes.Interface{server.Client}, Namespace: mustNamespace(t, server.Client), Operations: 1000,
			Disturb: func(ctx context.Context) error {
				server.Kill()
				return server.Start(ctx)
			},
		}
		report, err := check.Run(t.Context())
		t.Log(report)
		if errors.Is(err, ErrNotLinearizable) {
			path := t.ArtifactDir() + "/history.html"
			t.Fatalf("%v; it is drawn in %s (%v)", err, path, report.Draw(path))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
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
