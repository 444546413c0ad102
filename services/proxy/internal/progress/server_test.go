package progress_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sampan-io/sampan/services/proxy/internal/progress"
	"github.com/sampan-io/sampan/services/proxy/internal/state"
)

// fakeMembers has one address.
type fakeMembers struct {
	mu     sync.Mutex
	member state.Membership
}

func (m *fakeMembers) Member(_, address string) state.Membership {
	m.mu.Lock()
	defer m.mu.Unlock()
	if address != "10.244.1.2" {
		return state.Membership{}
	}
	return m.member
}

func (m *fakeMembers) set(member state.Membership) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.member = member
}

// proxy is one node's.
type proxy struct {
	members *fakeMembers
	server  *progress.Server
	http    *httptest.Server
}

func newProxy(t *testing.T, node string, peers func() []progress.Peer) *proxy {
	t.Helper()
	p := &proxy{members: &fakeMembers{}}
	asks := progress.NewHTTPPeers(peers)
	t.Cleanup(asks.Close)
	p.server = &progress.Server{Node: node, Members: p.members, Seen: progress.NewRevision(), Applied: progress.NewRevision(), Peers: asks}
	mux := http.NewServeMux()
	p.server.Install(mux)
	p.http = httptest.NewServer(mux)
	t.Cleanup(p.http.Close)
	return p
}

func (p *proxy) address() string { return strings.TrimPrefix(p.http.URL, "http://") }

// learn lets the proxy know of a slice, and apply it.
func (p *proxy) learn(revision uint64, terminating bool) {
	p.members.set(state.Membership{In: true, Terminating: terminating, Revision: revision})
	p.server.Seen.Advance(revision)
}

func ask(t *testing.T, p *proxy, address, timeout string) progress.Drained {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.http.URL+progress.DrainedPath+"?namespace=default&address="+address+"&timeout="+timeout, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	var out progress.Drained
	if err := json.NewDecoder(response.Body).Decode(&out); err != nil {
		t.Fatalf("%s: %v", response.Status, err)
	}
	return out
}

func TestDrainedWaitsForAllProxies(t *testing.T) {
	far := newProxy(t, "far", func() []progress.Peer { return nil })
	near := newProxy(t, "near", func() []progress.Peer { return []progress.Peer{{Node: "far", Address: far.address()}} })
	near.learn(5, false)
	answers := make(chan progress.Drained, 1)
	go func() { answers <- ask(t, near, "10.244.1.2", "5s") }()
	expectNone := func(why string) {
		t.Helper()
		select {
		case got := <-answers:
			t.Fatalf("answered %+v though %s", got, why)
		case <-time.After(50 * time.Millisecond):
		}
	}
	expectNone("the endpoint is not terminating")
	near.learn(7, true)
	expectNone("no proxy has applied it")
	near.server.Applied.Advance(7)
	expectNone("the other proxy has not applied it")
	far.server.Applied.Advance(9)
	got := <-answers
	if !got.Drained || !got.InSlice || got.Revision != 7 || len(got.Silent) > 0 {
		t.Errorf("got %+v", got)
	}
}

func TestDrainedAnswersAtOnceForWhatIsInNoSlice(t *testing.T) {
	p := newProxy(t, "near", func() []progress.Peer { return []progress.Peer{{Node: "dead", Address: "127.0.0.1:1"}} })
	began := time.Now()
	if got := ask(t, p, "10.244.1.9", "5s"); !got.Drained || got.InSlice || len(got.Silent) > 0 {
		t.Errorf("got %+v", got)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestDrainedNamesProxiesThatDoNotTell(t *testing.T) {
	old := httptest.NewServer(http.NotFoundHandler()) // upstream's, which has no such path
	defer old.Close()
	late := newProxy(t, "late", func() []progress.Peer { return nil })
	p := newProxy(t, "near", func() []progress.Peer {
		return []progress.Peer{{Node: "old", Address: strings.TrimPrefix(old.URL, "http://")}, {Node: "gone", Address: "127.0.0.1:1"}, {Node: "late", Address: late.address()}}
	})
	p.learn(3, true)
	p.server.Applied.Advance(3)
	got := ask(t, p, "10.244.1.2", "300ms")
	if got.Drained || strings.Join(got.Silent, " ") != "gone late old" {
		t.Errorf("got %+v", got)
	}
}

func TestDrainedRefusesStrangersAndNonsense(t *testing.T) {
	p := newProxy(t, "near", func() []progress.Peer { return nil })
	mux := http.NewServeMux()
	p.server.Install(mux)
	for query, want := range map[string]int{
		"?namespace=default&address=10.244.1.2": http.StatusForbidden,
	} {
		recorder := httptest.NewRecorder()
		request := httptest.NewRequestWithContext(context.Background(), http.MethodGet, progress.DrainedPath+query, nil) // from 192.0.2.1
		mux.ServeHTTP(recorder, request)
		if recorder.Code != want {
			t.Errorf("a stranger got %d", recorder.Code)
		}
	}
	for _, path := range []string{
		progress.DrainedPath + "?address=10.244.1.2", progress.DrainedPath + "?namespace=x&address=nonsense",
		progress.AppliedPath + "?revision=-1", progress.AppliedPath + "?timeout=1h", progress.AppliedPath + "?timeout=soon",
	} {
		response, err := http.Get(p.http.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %s", path, response.Status)
		}
	}
}
