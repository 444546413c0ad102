package webhook_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

// serving is a webhook with a handler of its own.
func serving(t testing.TB, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewTLSServer(handler)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// answering answers every review with a document, in which ID stands for the
// request's id.
func answering(document string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var review struct{ Request struct{ UID string } }
		_ = json.NewDecoder(r.Body).Decode(&review)
		_, _ = w.Write([]byte(strings.ReplaceAll(document, "ID", review.Request.UID)))
	}
}

func TestBadAnswersAreRefused(t *testing.T) {
	s := testserver.Start(t)
	const head = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"ID","allowed":true`
	patched := func(patch string) http.HandlerFunc {
		data, _ := json.Marshal([]byte(patch))
		return answering(head + `,"patchType":"JSONPatch","patch":` + string(data) + `}}`)
	}
	var elsewhere atomic.Int64
	target := serving(t, func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) })
	cases := []struct {
		name    string
		handler http.HandlerFunc
		want    string
	}{
		{"redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, target.URL, http.StatusTemporaryRedirect)
		}, "redirects to"},
		{"10 MB", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 10<<20)) }, "larger than 6291456 bytes"},
		{"endless", func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		}, "larger than 6291456 bytes"},
		{"status", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "out of order", 500) }, "answered 500 (Internal Server Error): out of order"},
		{"garbage", answering("\x00\xff<html>"), "the response is no AdmissionReview"},
		{"nothing", answering(""), "the response is no AdmissionReview"},
		{"deep", answering(strings.Repeat(`{"response":`, 100000)), "the response is no AdmissionReview"},
		{"null", answering("null"), "webhook response was absent"},
		{"no response", answering(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`), "webhook response was absent"},
		{"other request", answering(strings.Replace(head, "ID", "someone-else", 1) + `}}`), "expected response.uid="},
		{"other kind", answering(strings.Replace(head, "AdmissionReview", "Status", 1) + `}}`), "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview"},
		{"old version", answering(strings.Replace(head, "k8s.io/v1", "k8s.io/v1beta1", 1) + `}}`), "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview"},
		{"patch without type", answering(head + `,"patch":"W10="}}`), "but not response.patchType"},
		{"type without patch", answering(head + `,"patchType":"JSONPatch"}}`), "but not response.patch"},
		{"unknown type", answering(head + `,"patch":"W10=","patchType":"Merge"}}`), "invalid response.patchType"},
		{"no patch", patched(`{"op":"add"}`), "received undecodable patch"},
		{"out of range", patched(`[{"op":"add","path":"/metadata/ownerReferences/7","value":{}}]`), `applying the patch of admission webhook "m.example.com"`},
		{"absent path", patched(`[{"op":"remove","path":"/spec/x/y"}]`), `applying the patch of admission webhook`},
		{"null document", patched(`[{"op":"replace","path":"","value":null}]`), `admission webhook`},
		{"wrong type", patched(`[{"op":"add","path":"/data","value":["a"]}]`), "cannot unmarshal array into Go struct field"},
		{"other object", patched(`[{"op":"replace","path":"/kind","value":"Secret"}]`), "changes the object's kind"},
		{"many operations", patched("[" + strings.Repeat(`{"op":"test","path":"/kind","value":"ConfigMap"},`, 10001) + `{"op":"add","path":"/data/x","value":"y"}]`), "maximum operations in a JSON patch"},
		{"bomb", patched("[" + strings.Repeat(`{"op":"copy","from":"/data","path":"/data/a"},`, 40) + `{"op":"add","path":"/data/x","value":"y"}]`), "admission webhook"},
		{"another namespace", patched(`[{"op":"replace","path":"/metadata/namespace","value":"kube-system"}]`), "namespace"},
		{"invalid name", patched(`[{"op":"replace","path":"/metadata/name","value":"Ä"}]`), "metadata.name: Invalid value"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			mutating(t, s.Client, "m", serving(t, c.handler), configMaps(creating), func(w *admissionregistrationv1.MutatingWebhook) { w.TimeoutSeconds = ptr.To(int32(5)) })
			defer func() {
				if err := s.Client.AdmissionregistrationV1().MutatingWebhookConfigurations().Delete(context.Background(), "m", metav1.DeleteOptions{}); err != nil {
					t.Error(err)
				}
			}()
			started := time.Now()
			_, err := create(t, s.Client, configMap("x"))
			assertError(t, err, c.want)
			if status := apierrors.APIStatus(nil); !asStatus(err, &status) || time.Since(started) > 6*time.Second {
				t.Errorf("after %s: %v", time.Since(started), err)
			}
		})
	}
	if list, err := s.Client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=x"}); err != nil || len(list.Items) != 0 {
		t.Errorf("stored %v, %v", list.Items, err)
	}
	if n := elsewhere.Load(); n != 0 {
		t.Errorf("a redirect was followed %d times", n)
	}
}

func asStatus(err error, into *apierrors.APIStatus) bool {
	return errors.As(err, into)
}

func TestPatchOnDeleteIsRefused(t *testing.T) {
	s := testserver.Start(t)
	if _, err := create(t, s.Client, configMap("x")); err != nil {
		t.Fatal(err)
	}
	h := newHook(t, patching(`[{"op":"add","path":"/data/a","value":"b"}]`))
	mutating(t, s.Client, "m", h.Server, configMaps(deleting), nil)
	err := s.Client.CoreV1().ConfigMaps("default").Delete(t.Context(), "x", metav1.DeleteOptions{})
	assertError(t, err, "attempted to modify the object, which is not supported for this operation")
}

func TestValidatingWebhookMayNotPatch(t *testing.T) {
	s := testserver.Start(t)
	h := newHook(t, patching(`[]`))
	validating(t, s.Client, "v", h.Server, configMaps(creating), nil)
	_, err := create(t, s.Client, configMap("x"))
	assertError(t, err, "validating webhook may not return response.patch")
}

func TestUnreadableManagedFieldsAreKept(t *testing.T) {
	s := testserver.Start(t)
	h := newHook(t, patching(`[{"op":"add","path":"/metadata/managedFields/0/fieldsType","value":"Nonsense"},{"op":"add","path":"/data/b","value":"2"}]`))
	mutating(t, s.Client, "m", h.Server, configMaps(creating), nil)
	cm, err := create(t, s.Client, configMap("x"))
	if err != nil || cm.Data["b"] != "2" || len(cm.ManagedFields) != 1 || cm.ManagedFields[0].FieldsType != "FieldsV1" {
		t.Errorf("%+v, %v", cm, err)
	}
}

// hanging is a webhook that does not answer while it is stuck.
func hanging(t testing.TB) (s *httptest.Server, stuck *atomic.Bool) {
	t.Helper()
	stuck = &atomic.Bool{}
	stuck.Store(true)
	end := make(chan struct{})
	ok := answering(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"ID","allowed":true}}`)
	s = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if stuck.Load() {
			select {
			case <-end:
			case <-r.Context().Done():
			}
			return
		}
		ok(w, r)
	}))
	t.Cleanup(func() {
		close(end)
		s.CloseClientConnections()
		s.Close()
	})
	return s, stuck
}

func TestBreakerAnswersAtOnceAndClosesAgain(t *testing.T) {
	s := testserver.Start(t)
	server, stuck := hanging(t)
	validating(t, s.Client, "v", server, configMaps(creating), func(w *admissionregistrationv1.ValidatingWebhook) { w.TimeoutSeconds = ptr.To(int32(1)) })
	for i := range 3 {
		started := time.Now()
		_, err := create(t, s.Client, configMap(fmt.Sprintf("slow-%d", i)))
		assertError(t, err, "context deadline exceeded")
		if took := time.Since(started); took < time.Second || took > 3*time.Second {
			t.Errorf("a timeout of one second took %s", took)
		}
	}
	started := time.Now()
	_, err := create(t, s.Client, configMap("fast"))
	assertError(t, err, "circuit breaker is open")
	if took := time.Since(started); took > 500*time.Millisecond {
		t.Errorf("an open breaker took %s", took)
	}
	if out := metrics(t, s); !strings.Contains(out, `apiserver_admission_webhook_circuit_open{name="v.example.com",type="validating"} 1`) {
		t.Error("the metrics do not show the open breaker")
	}
	seen := func(reason string) func() bool {
		return func() bool {
			list, err := s.Client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=v,reason=" + reason})
			return err == nil && len(list.Items) > 0
		}
	}
	eventually(t, "an event about the open breaker", seen("WebhookCircuitOpen"))
	stuck.Store(false)
	eventually(t, "the breaker's closing", func() bool {
		_, err := create(t, s.Client, configMap("after"))
		return err == nil
	})
	eventually(t, "an event about the closed breaker", seen("WebhookCircuitClosed"))
	if out := metrics(t, s); !strings.Contains(out, `apiserver_admission_webhook_circuit_open{name="v.example.com",type="validating"} 0`) {
		t.Error("the metrics do not show the closed breaker")
	}
}

func TestOpenBreakerFollowsFailurePolicyIgnore(t *testing.T) {
	s := testserver.Start(t)
	server, _ := hanging(t)
	mutating(t, s.Client, "m", server, configMaps(creating), func(w *admissionregistrationv1.MutatingWebhook) {
		w.TimeoutSeconds = ptr.To(int32(1))
		w.FailurePolicy = ptr.To(admissionregistrationv1.Ignore)
	})
	for i := range 6 {
		started := time.Now()
		if _, err := create(t, s.Client, configMap(fmt.Sprintf("x-%d", i))); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(started); i >= 3 && took > 500*time.Millisecond {
			t.Errorf("round %d took %s", i, took)
		}
	}
}

func TestWebhooksShareTheTimeOfARequest(t *testing.T) {
	s := testserver.Start(t)
	server, _ := hanging(t)
	for i := range 4 {
		mutating(t, s.Client, fmt.Sprintf("m%d", i), server, configMaps(creating), func(w *admissionregistrationv1.MutatingWebhook) {
			w.TimeoutSeconds = ptr.To(int32(30))
			w.FailurePolicy = ptr.To(admissionregistrationv1.Ignore)
		})
	}
	started := time.Now()
	err := s.Client.CoreV1().RESTClient().Post().Namespace("default").Resource("configmaps").Timeout(3 * time.Second).Body(configMap("x")).Do(t.Context()).Error()
	if took := time.Since(started); err != nil || took > 3*time.Second {
		t.Errorf("four webhooks that hang took %s: %v", took, err)
	}
}

func TestUnreachableServiceFails(t *testing.T) {
	s := testserver.Start(t)
	h := newHook(t, nil)
	validating(t, s.Client, "v", h.Server, configMaps(creating), func(w *admissionregistrationv1.ValidatingWebhook) {
		w.ClientConfig.URL, w.ClientConfig.Service = nil, &admissionregistrationv1.ServiceReference{Namespace: "default", Name: "nobody"}
	})
	_, err := create(t, s.Client, configMap("x"))
	assertError(t, err, `services "nobody" not found`)
	if _, err := s.Client.CoreV1().Services("default").Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "nobody"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = create(t, s.Client, configMap("x"))
	assertError(t, err, `no endpoints available for service "nobody"`)
}

// A condition that costs too much fails, and the webhook's policy decides.
func TestCostOfMatchConditionsIsBounded(t *testing.T) {
	s := testserver.Start(t)
	h := newHook(t, nil)
	costly := []admissionregistrationv1.MatchCondition{{
		Name: "costly", Expression: "object.data.all(a, object.data.all(b, object.data.all(c, object.data.all(d, a + b + c + d != 'x'))))",
	}}
	validating(t, s.Client, "v", h.Server, configMaps(creating), func(w *admissionregistrationv1.ValidatingWebhook) {
		w.MatchConditions, w.FailurePolicy = costly, ptr.To(admissionregistrationv1.Ignore)
	})
	large := func(name string) *corev1.ConfigMap {
		cm := configMap(name)
		for i := range 200 {
			cm.Data[fmt.Sprintf("key%d", i)] = "value"
		}
		return cm
	}
	if _, err := create(t, s.Client, large("ignored")); err != nil {
		t.Errorf("Ignore: %v", err)
	}
	validating(t, s.Client, "w", h.Server, configMaps(creating), func(w *admissionregistrationv1.ValidatingWebhook) { w.MatchConditions = costly })
	_, err := create(t, s.Client, large("refused"))
	assertError(t, err, "cost")
	if !apierrors.IsForbidden(err) || len(h.requests()) != 0 {
		t.Errorf("%v, asked %d times", err, len(h.requests()))
	}
}
