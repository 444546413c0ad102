package aggregation_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// cut ends the connection or stream of a request.
func cut(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// A server whose discovery is no good is not available, and says why; other groups
// are served all the while.
func TestBadDiscoveryMakesAServerUnavailable(t *testing.T) {
	h := start(t)
	f := newFleet(t, h.Server, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") })
	h.register(f)
	h.await("v1."+group, apiregistrationv1.ConditionTrue, "Passed")
	for _, test := range []struct {
		name    string
		handler http.HandlerFunc
		want    string
	}{
		{"hangs", hang, "context deadline exceeded"},
		{"is large", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 10<<20)) }, "longer than"},
		{"never ends", func(w http.ResponseWriter, _ *http.Request) {
			for err := error(nil); err == nil; {
				_, err = w.Write(make([]byte, 1<<20))
			}
		}, "longer than"},
		{"redirects", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/api", http.StatusFound) }, "bad status"},
		{"is cut off at once", cut, "failing or missing response"},
		{"is cut off in the middle", func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, `{"kind":"APIResourceList",`)
			_ = http.NewResponseController(w).Flush()
			cut(w, r)
		}, "failing or missing response"},
	} {
		f.discovery.Store(&test.handler)
		h.touch()
		condition := h.await("v1."+group, apiregistrationv1.ConditionFalse, "FailedDiscoveryCheck")
		if !strings.Contains(condition.Message, test.want) {
			t.Errorf("discovery %s: %s", test.name, condition.Message)
		}
		if code, body := h.get(h.Config, "/apis/"+group+"/v1/boats", ""); code != http.StatusServiceUnavailable || !strings.Contains(body, `"kind":"Status"`) {
			t.Errorf("a request while discovery %s: %d %s", test.name, code, body)
		}
		if _, err := h.Client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); err != nil {
			t.Errorf("another group while discovery %s: %v", test.name, err)
		}
		f.discovery.Store(nil)
		h.touch()
		h.await("v1."+group, apiregistrationv1.ConditionTrue, "Passed")
	}
}

func TestBadAnswersReachClientsAsTheyAre(t *testing.T) {
	h := start(t)
	var handler atomic.Pointer[http.HandlerFunc]
	f := newFleet(t, h.Server, func(w http.ResponseWriter, r *http.Request) { (*handler.Load())(w, r) })
	h.register(f)
	h.await("v1."+group, apiregistrationv1.ConditionTrue, "Passed")
	ask := func(answer http.HandlerFunc) *rest.Request {
		handler.Store(&answer)
		return h.Client.Discovery().RESTClient().Get().AbsPath("/apis/" + group + "/v1/boats")
	}
	if err := ask(hang).Param("timeout", "1s").Do(t.Context()).Error(); !apierrors.IsTimeout(err) {
		t.Errorf("a server that hangs: %v", err)
	}
	if err := ask(cut).MaxRetries(0).Do(t.Context()).Error(); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("a server that cuts the connection: %v", err)
	}
	const large = 16 << 20
	data, err := ask(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, large)) }).DoRaw(t.Context())
	if err != nil || len(data) != large {
		t.Errorf("a large answer: %d bytes, %v", len(data), err)
	}
	body, err := ask(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(make([]byte, 1<<10))
		_ = http.NewResponseController(w).Flush()
		cut(w, r)
	}).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if data, err := io.ReadAll(body); len(data) != 1<<10 || err == nil || errors.Is(err, io.EOF) {
		t.Errorf("an answer that is cut off: %d bytes, %v", len(data), err)
	}
	if err := ask(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }).Do(t.Context()).Error(); err != nil {
		t.Errorf("a server that works again: %v", err)
	}
}

// An answer is passed on as fast as its client takes it, and not gathered.
func TestEndlessAnswerWaitsForItsClient(t *testing.T) {
	h := start(t)
	var sent atomic.Int64
	ended := make(chan struct{})
	f := newFleet(t, h.Server, func(w http.ResponseWriter, _ *http.Request) {
		defer close(ended)
		for {
			n, err := w.Write(make([]byte, 64<<10))
			if err != nil {
				return
			}
			sent.Add(int64(n))
		}
	})
	h.register(f)
	h.await("v1."+group, apiregistrationv1.ConditionTrue, "Passed")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	body, err := h.Client.Discovery().RESTClient().Get().AbsPath("/apis/" + group + "/v1/boats").Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, body, 1<<20); err != nil {
		t.Fatal(err)
	}
	last := int64(-1)
	err = wait.PollUntilContextTimeout(ctx, 300*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
		now := sent.Load()
		stopped := now == last
		last = now
		return stopped, nil
	})
	if err != nil {
		t.Fatalf("the server goes on sending, %d bytes so far, to a client that has stopped reading: %v", last, err)
	}
	cancel()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Error("the server is not told that the client has gone")
	}
}
