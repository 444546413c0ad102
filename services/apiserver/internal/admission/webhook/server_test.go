package webhook_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

type (
	request  = admissionv1.AdmissionRequest
	response = admissionv1.AdmissionResponse
	rules    = []admissionregistrationv1.RuleWithOperations
)

// hook is a webhook on loopback that remembers what it was asked.
type hook struct {
	*httptest.Server
	mu    sync.Mutex
	asked []*request
}

// newHook serves a webhook that answers by a function; nil allows everything.
func newHook(t testing.TB, answer func(r *request) *response) *hook {
	t.Helper()
	h := &hook{}
	h.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var review admissionv1.AdmissionReview
		if err == nil {
			err = json.Unmarshal(body, &review)
		}
		if err != nil || review.Request == nil || review.Kind != "AdmissionReview" || review.APIVersion != "admission.k8s.io/v1" {
			http.Error(w, "no review", http.StatusBadRequest)
			return
		}
		h.mu.Lock()
		h.asked = append(h.asked, review.Request)
		h.mu.Unlock()
		out := &response{Allowed: true}
		if answer != nil {
			out = answer(review.Request)
		}
		out.UID = review.Request.UID
		review.Request, review.Response = nil, out
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *hook) requests() []*request {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]*request(nil), h.asked...)
}

// bundle is the certificate that a server's clients must trust.
func bundle(s *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}

func clientOf(s *httptest.Server) admissionregistrationv1.WebhookClientConfig {
	return admissionregistrationv1.WebhookClientConfig{URL: ptr.To(s.URL + "/review"), CABundle: bundle(s)}
}

func rule(group, version, resource string, operations ...admissionregistrationv1.OperationType) rules {
	return rules{{
		Operations: operations,
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{version}, Resources: []string{resource}},
	}}
}

func configMaps(operations ...admissionregistrationv1.OperationType) rules {
	return rule("", "v1", "configmaps", operations...)
}

// validating configures one validating webhook; change may be nil.
func validating(t testing.TB, client kubernetes.Interface, name string, s *httptest.Server, r rules, change func(*admissionregistrationv1.ValidatingWebhook)) {
	t.Helper()
	w := admissionregistrationv1.ValidatingWebhook{
		Name: name + ".example.com", ClientConfig: clientOf(s), Rules: r,
		SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
	}
	if change != nil {
		change(&w)
	}
	_, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: []admissionregistrationv1.ValidatingWebhook{w},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("configuring %s: %v", name, err)
	}
}

// mutating configures one mutating webhook; change may be nil.
func mutating(t testing.TB, client kubernetes.Interface, name string, s *httptest.Server, r rules, change func(*admissionregistrationv1.MutatingWebhook)) {
	t.Helper()
	w := admissionregistrationv1.MutatingWebhook{
		Name: name + ".example.com", ClientConfig: clientOf(s), Rules: r,
		SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
	}
	if change != nil {
		change(&w)
	}
	_, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: []admissionregistrationv1.MutatingWebhook{w},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("configuring %s: %v", name, err)
	}
}

// patching answers with a JSON patch.
func patching(patch string) func(*request) *response {
	return func(*request) *response {
		return &response{Allowed: true, Patch: []byte(patch), PatchType: ptr.To(admissionv1.PatchTypeJSONPatch)}
	}
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Data: map[string]string{"a": "1"}}
}

// create makes a ConfigMap and returns what the server answered.
func create(t testing.TB, client kubernetes.Interface, cm *corev1.ConfigMap) (*corev1.ConfigMap, error) {
	t.Helper()
	return client.CoreV1().ConfigMaps(cm.Namespace).Create(t.Context(), cm, metav1.CreateOptions{})
}

func assertError(t testing.TB, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want one with %q", err, want)
	}
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, met func() bool) {
	t.Helper()
	deadline := time.Now().Add(15 * time.Second)
	for !met() {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not happen", what)
		}
		select {
		case <-t.Context().Done():
			t.Fatal("the test ended")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// metrics is what the server says of itself.
func metrics(t testing.TB, s *testserver.Server) string {
	t.Helper()
	data, err := s.Client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(context.Background())
	if err != nil {
		t.Fatalf("metrics: %v", err)
	}
	return string(data)
}
