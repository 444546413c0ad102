package component

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// Check is one named condition of a service's health. It returns nil when well.
type Check struct {
	Name  string
	Probe func(ctx context.Context) error
}

// Health answers /healthz, /livez and /readyz as upstream's servers do: plain
// "ok", ?verbose for one line a check, ?exclude=NAME, and a path per check.
// The zero value is not usable; use NewHealth.
type Health struct {
	mu    sync.RWMutex
	live  []Check
	ready []Check
}

// NewHealth has the check "ping", which always succeeds.
func NewHealth() *Health {
	ping := Check{Name: "ping", Probe: func(context.Context) error { return nil }}
	return &Health{live: []Check{ping}, ready: []Check{ping}}
}

// AddLive adds a check whose failure means that the process should be
// restarted. It counts for livez, healthz and readyz.
func (h *Health) AddLive(c Check) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.live = append(h.live, c)
	h.ready = append(h.ready, c)
}

// AddReady adds a check whose failure means that the service cannot do its work
// yet. It counts for readyz and healthz.
func (h *Health) AddReady(c Check) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ready = append(h.ready, c)
}

// Install registers the health paths on mux.
func (h *Health) Install(mux interface {
	Handle(pattern string, handler http.Handler)
}) {
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		handler := h.Handler(path)
		mux.Handle(path, handler)
		mux.Handle(path+"/", handler)
	}
}

// Handler answers one of the health paths and the paths of checks below it.
func (h *Health) Handler(path string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.RLock()
		checks := h.ready
		if path == "/livez" {
			checks = h.live
		}
		checks = slices.Clone(checks)
		h.mu.RUnlock()
		if name := strings.Trim(strings.TrimPrefix(r.URL.Path, path), "/"); name != "" {
			at := slices.IndexFunc(checks, func(c Check) bool { return c.Name == name })
			if at < 0 {
				http.NotFound(w, r)
				return
			}
			checks = checks[at : at+1]
		}
		writeHealth(w, r, strings.TrimPrefix(path, "/"), checks)
	})
}

func writeHealth(w http.ResponseWriter, r *http.Request, kind string, checks []Check) {
	excluded := r.URL.Query()["exclude"]
	_, verbose := r.URL.Query()["verbose"]
	var lines strings.Builder
	failed := false
	for _, check := range checks {
		if slices.Contains(excluded, check.Name) {
			fmt.Fprintf(&lines, "[+]%s excluded: ok\n", check.Name)
			continue
		}
		if err := check.Probe(r.Context()); err != nil {
			failed = true
			// The reason may name internals, and this path is open to anyone.
			fmt.Fprintf(&lines, "[-]%s failed: reason withheld\n", check.Name)
			continue
		}
		fmt.Fprintf(&lines, "[+]%s ok\n", check.Name)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	switch {
	case failed:
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprintf(w, "%s%s check failed\n", lines.String(), kind)
	case verbose:
		fmt.Fprintf(w, "%s%s check passed\n", lines.String(), kind)
	default:
		fmt.Fprint(w, "ok")
	}
}
