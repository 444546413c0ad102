package draining_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/draining"
)

func TestAwaitWaitsAsLongAsItMust(t *testing.T) {
	long, short := 30*time.Second, time.Second
	for _, c := range []struct {
		name        string
		answer      map[string]any // nil answers 404, as other proxies do
		hang        bool
		silent      time.Duration
		grace       time.Duration
		least, most time.Duration
	}{
		{name: "in no slice", answer: map[string]any{"inSlice": false, "drained": true}, silent: time.Second, grace: long, most: 80 * time.Millisecond},
		{name: "drained", answer: map[string]any{"inSlice": true, "drained": true}, silent: time.Second, grace: long, least: 300 * time.Millisecond, most: 700 * time.Millisecond},
		{name: "a proxy is silent", answer: map[string]any{"inSlice": true, "silent": []string{"n"}}, silent: 300 * time.Millisecond, grace: long, least: 300 * time.Millisecond, most: 700 * time.Millisecond},
		{name: "no such proxy, no delay", grace: long, most: 80 * time.Millisecond},
		{name: "no such proxy, a delay", silent: 300 * time.Millisecond, grace: long, least: 300 * time.Millisecond, most: 700 * time.Millisecond},
		{name: "a delay above the grace period", silent: 5 * time.Second, grace: short, least: 500 * time.Millisecond, most: 800 * time.Millisecond},
		{name: "a delay above the limit", silent: 5 * time.Second, grace: long, least: 2 * time.Second, most: 2300 * time.Millisecond},
		{name: "a proxy that hangs", hang: true, grace: short, least: 500 * time.Millisecond, most: 800 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if c.hang {
					<-r.Context().Done()
				}
				if c.answer == nil {
					http.NotFound(w, r)
					return
				}
				if r.FormValue("namespace") != "ns" || r.FormValue("address") != "10.244.0.7" || r.FormValue("timeout") == "" {
					http.Error(w, "bad request", http.StatusBadRequest)
				}
				_ = json.NewEncoder(w).Encode(c.answer)
			}))
			defer server.Close()
			proxies := draining.New(strings.TrimPrefix(server.URL, "http://"), c.silent, slog.New(slog.DiscardHandler))
			defer proxies.Close()
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
			began := time.Now()
			proxies.Await(t.Context(), pod, []string{"10.244.0.7"}, c.grace)
			if took := time.Since(began); took < c.least || took > c.most {
				t.Errorf("it took %v, wanted %v to %v", took, c.least, c.most)
			}
		})
	}
}
