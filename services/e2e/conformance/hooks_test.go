package conformance

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// hookServer is a server outside the cluster that the API server calls over TLS.
type hookServer struct {
	url string
	ca  []byte // PEM
}

// newHookServer serves until the test ends.
func newHookServer(t *testing.T, handler http.Handler) hookServer {
	t.Helper()
	key := got(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "hooks"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true, IsCA: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der := got(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))(t)
	server := httptest.NewUnstartedServer(handler)
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return hookServer{url: server.URL, ca: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// review is what a webhook answers to a request.
type review func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse

func (answer review) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var in admissionv1.AdmissionReview
	if err == nil {
		err = json.Unmarshal(body, &in)
	}
	if err != nil || in.Request == nil {
		http.Error(w, "no review", http.StatusBadRequest)
		return
	}
	in.Response = answer(in.Request)
	in.Response.UID, in.Request = in.Request.UID, nil
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(in)
}

func allow() *admissionv1.AdmissionResponse { return &admissionv1.AdmissionResponse{Allowed: true} }

func deny(message string) *admissionv1.AdmissionResponse {
	return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: message}}
}

func patched(patch string) *admissionv1.AdmissionResponse {
	kind := admissionv1.PatchTypeJSONPatch
	return &admissionv1.AdmissionResponse{Allowed: true, Patch: []byte(patch), PatchType: &kind}
}

// hook is one webhook of a configuration, of either kind.
type hook struct {
	server     hookServer
	namespace  string // only in this namespace; empty for cluster-wide objects
	operations []admissionregistrationv1.OperationType
	group      string
	version    string
	resources  []string
	policy     admissionregistrationv1.FailurePolicyType
	timeout    int32
	conditions []admissionregistrationv1.MatchCondition
	object     *metav1.LabelSelector
}

func (h hook) rules() []admissionregistrationv1.RuleWithOperations {
	version := h.version
	if version == "" {
		version = "v1"
	}
	return []admissionregistrationv1.RuleWithOperations{{
		Operations: h.operations,
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{h.group}, APIVersions: []string{version}, Resources: h.resources},
	}}
}

func (h hook) selector() *metav1.LabelSelector {
	if h.namespace == "" {
		return nil
	}
	return metav1.SetAsLabelSelector(map[string]string{"kubernetes.io/metadata.name": h.namespace})
}

func (h hook) client() admissionregistrationv1.WebhookClientConfig {
	url := h.server.url + "/"
	return admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: h.server.ca}
}

func (h hook) defaults() (policy *admissionregistrationv1.FailurePolicyType, timeout *int32, effects *admissionregistrationv1.SideEffectClass) {
	none := admissionregistrationv1.SideEffectClassNone
	policy = new(admissionregistrationv1.Fail)
	if h.policy != "" {
		*policy = h.policy
	}
	timeout = new(int32(10))
	if h.timeout != 0 {
		*timeout = h.timeout
	}
	return policy, timeout, &none
}

func (h hook) validating(name string) admissionregistrationv1.ValidatingWebhook {
	policy, timeout, effects := h.defaults()
	return admissionregistrationv1.ValidatingWebhook{
		Name: name + ".conformance.example.com", ClientConfig: h.client(), Rules: h.rules(), NamespaceSelector: h.selector(), ObjectSelector: h.object,
		FailurePolicy: policy, TimeoutSeconds: timeout, SideEffects: effects, AdmissionReviewVersions: []string{"v1"}, MatchConditions: h.conditions,
	}
}

func (h hook) mutating(name string) admissionregistrationv1.MutatingWebhook {
	policy, timeout, effects := h.defaults()
	return admissionregistrationv1.MutatingWebhook{
		Name: name + ".conformance.example.com", ClientConfig: h.client(), Rules: h.rules(), NamespaceSelector: h.selector(), ObjectSelector: h.object,
		FailurePolicy: policy, TimeoutSeconds: timeout, SideEffects: effects, AdmissionReviewVersions: []string{"v1"}, MatchConditions: h.conditions,
	}
}

func validate(t *testing.T, hooks ...hook) *admissionregistrationv1.ValidatingWebhookConfiguration {
	t.Helper()
	made := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: unique("hook")}}
	for i, h := range hooks {
		made.Webhooks = append(made.Webhooks, h.validating("hook"+string(rune('a'+i))))
	}
	api := client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	deleteAfter(t, made.Name, func(ctx context.Context) error { return api.Delete(ctx, made.Name, metav1.DeleteOptions{}) })
	return got(api.Create(t.Context(), made, metav1.CreateOptions{}))(t)
}

func mutate(t *testing.T, hooks ...hook) *admissionregistrationv1.MutatingWebhookConfiguration {
	t.Helper()
	made := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: unique("hook")}}
	for i, h := range hooks {
		made.Webhooks = append(made.Webhooks, h.mutating("hook"+string(rune('a'+i))))
	}
	api := client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	deleteAfter(t, made.Name, func(ctx context.Context) error { return api.Delete(ctx, made.Name, metav1.DeleteOptions{}) })
	return got(api.Create(t.Context(), made, metav1.CreateOptions{}))(t)
}
