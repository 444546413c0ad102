package filters_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
	"github.com/sampan-io/sampan/services/apiserver/internal/filters"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
)

// byHeader authenticates the user that a test's header names, as a member of the
// group that another names.
type byHeader struct{}

func (byHeader) Authenticate(r *http.Request) (*authn.User, error) {
	name := r.Header.Get("Test-User")
	if name == "" {
		return nil, errors.New("no user")
	}
	return &authn.User{Name: name, Groups: []string{r.Header.Get("Test-Group")}}, nil
}

func chain(t *testing.T, handler http.Handler, change func(*filters.Config)) (http.Handler, *prometheus.Registry) {
	t.Helper()
	registry := prometheus.NewRegistry()
	served := func(gvr schema.GroupVersionResource) (map[string]bool, bool) {
		return map[string]bool{"log": true}, gvr == schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	}
	c := filters.Config{
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Metrics: filters.NewMetrics(registry, served),
		Authenticator: byHeader{}, Authorizer: authz.AlwaysAllow{},
		Long: func(_ *http.Request, info *request.Info) bool { return info.Verb == "watch" }, RequestTimeout: time.Minute,
	}
	if change != nil {
		change(&c)
	}
	return filters.Chain(handler, c), registry
}

func ask(handler http.Handler, method, target string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, nil)
	r.Header.Set("Test-User", "tester")
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w
}

func TestPanicsAreAnsweredAndCounted(t *testing.T) {
	handler, registry := chain(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("broken") }), nil)
	if w := ask(handler, "GET", "/api/v1/pods"); w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), `"kind":"Status"`) {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	if n := counter(t, registry, "apiserver_handler_panics_total"); n != 1 {
		t.Errorf("counted %v panics", n)
	}
}

// counter is the sum of a metric over its labels.
func counter(t *testing.T, registry *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var sum float64
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.GetMetric() {
			sum += metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
		}
	}
	return sum
}

func TestTooManyRequestsAreRefused(t *testing.T) {
	entered, leave := make(chan struct{}, 10), make(chan struct{})
	handler, registry := chain(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		entered <- struct{}{}
		<-leave
		w.WriteHeader(http.StatusOK)
	}), func(c *filters.Config) { c.MaxRequests, c.MaxMutating = 1, 1 })
	var group sync.WaitGroup
	for _, method := range []string{"GET", "POST"} {
		group.Go(func() { ask(handler, method, "/api/v1/namespaces/a/pods") })
		<-entered
	}
	for _, method := range []string{"GET", "DELETE"} {
		w := ask(handler, method, "/api/v1/namespaces/a/pods")
		if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" {
			t.Errorf("%s beyond the bound: got %d, Retry-After %q", method, w.Code, w.Header().Get("Retry-After"))
		}
	}
	// Health, administrators and watches are let through.
	for _, exempt := range [][]string{
		{"/readyz"}, {"/api/v1/pods", "Test-Group: system:masters"}, {"/api/v1/pods?watch=1"},
	} {
		group.Go(func() {
			if w := ask(handler, "GET", exempt[0], exempt[1:]...); w.Code != http.StatusOK {
				t.Errorf("%v: got %d", exempt, w.Code)
			}
		})
		<-entered
	}
	close(leave)
	group.Wait()
	if n := counter(t, registry, "apiserver_current_inflight_requests"); n != 0 {
		t.Errorf("%v requests are counted as in flight", n)
	}
}

func TestRequestsHaveADeadlineButNotWatches(t *testing.T) {
	var left time.Duration
	var bounded bool
	handler, _ := chain(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		deadline, ok := r.Context().Deadline()
		left, bounded = time.Until(deadline), ok
	}), nil)
	ask(handler, "GET", "/api/v1/pods")
	if !bounded || left > time.Minute {
		t.Errorf("deadline in %v (%v)", left, bounded)
	}
	ask(handler, "GET", "/api/v1/pods?timeout=5s")
	if !bounded || left > 5*time.Second {
		t.Errorf("deadline in %v with ?timeout=5s", left)
	}
	ask(handler, "GET", "/api/v1/pods?watch=1")
	if bounded {
		t.Error("a watch has a deadline")
	}
	if w := ask(handler, "GET", "/api/v1/pods?timeout=nonsense"); w.Code != http.StatusBadRequest {
		t.Errorf("a bad timeout got %d", w.Code)
	}
}

func TestWarningsBecomeHeaders(t *testing.T) {
	handler, _ := chain(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, text := range []string{"first", `with "quotes" and` + "\nlines", "first", strings.Repeat("x", 5000)} {
			request.AddWarning(r.Context(), text)
		}
		_, _ = w.Write([]byte("ok"))
	}), nil)
	got := ask(handler, "GET", "/api/v1/pods").Header().Values("Warning")
	if len(got) != 3 || got[0] != `299 - "first"` || got[1] != `299 - "with \"quotes\" and lines"` || len(got[2]) > 300 {
		t.Errorf("warnings: %q", got)
	}
}

func TestEarlyRequestsWaitForReadiness(t *testing.T) {
	ready := make(chan struct{})
	handler, _ := chain(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), func(c *filters.Config) { c.Ready = ready })
	for _, path := range []string{"/readyz", "/api"} {
		if w := ask(handler, "GET", path); w.Code != http.StatusOK {
			t.Errorf("%s before readiness: %d", path, w.Code)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	r := httptest.NewRequestWithContext(ctx, "GET", "/api/v1/pods", nil)
	r.Header.Set("Test-User", "tester")
	cancel()
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("a request that gave up before readiness: %d", w.Code)
	}
	close(ready)
	if w := ask(handler, "GET", "/api/v1/pods"); w.Code != http.StatusOK {
		t.Errorf("after readiness: %d", w.Code)
	}
}

// TestMetricLabelsAreBounded asks for what does not exist.
func TestMetricLabelsAreBounded(t *testing.T) {
	handler, registry := chain(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), nil)
	for _, path := range []string{"/api/v1/aaa", "/api/v1/bbb", "/apis/ccc/v1/ddd", "/api/v1/namespaces/x/pods/y/zzz", "/api/v1/namespaces/x/pods/y/log"} {
		ask(handler, "GET", path)
	}
	ask(handler, "BREW", "/x")
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				switch label.GetValue() {
				case "aaa", "bbb", "ccc", "ddd", "zzz", "BREW", "x", "y":
					t.Errorf("%s has label %s=%q", family.GetName(), label.GetName(), label.GetValue())
				}
			}
		}
	}
}

func TestCORSAnswersAllowedOriginsOnly(t *testing.T) {
	handler, _ := chain(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), func(c *filters.Config) {
		c.CORSAllowed = []string{`^https://ui\.example$`}
	})
	if w := ask(handler, "OPTIONS", "/api/v1/pods", "Origin: https://ui.example"); w.Code != http.StatusNoContent || w.Header().Get("Access-Control-Allow-Origin") != "https://ui.example" {
		t.Errorf("allowed origin: %d %v", w.Code, w.Header())
	}
	if w := ask(handler, "GET", "/api/v1/pods", "Origin: https://evil.example"); w.Header().Get("Access-Control-Allow-Origin") != "" {
		t.Error("another origin was allowed")
	}
}
