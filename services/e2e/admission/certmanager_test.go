package admission

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"text/template"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/internal/pki"
)

// certManager is the release whose manifests are installed.
const certManager = "github.com/cert-manager/cert-manager@v1.18.2"

// manifests is the directory of cert-manager's manifests, from its Go module.
func manifests(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", certManager)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := cmd.Output()
	if err != nil {
		t.Skipf("cert-manager's module cannot be had: %v", err)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(module.Dir, "deploy")
}

// render fills in a chart's template as Helm does with the chart's own values.
func render(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{
		"webhook.fullname": "cert-manager-webhook", "webhook.name": "webhook", "cert-manager.name": "cert-manager", "cert-manager.namespace": "cert-manager",
		"labels": "app.kubernetes.io/managed-by: Helm", "cert-manager.crd-check": "",
	}
	indent := func(n int, s string) string { return "\n" + strings.Repeat(" ", n) + s }
	base := template.New("").Funcs(template.FuncMap{
		"include": func(name string, _ any) (string, error) {
			value, ok := names[name]
			if !ok {
				return "", fmt.Errorf("no template %q", name)
			}
			return value, nil
		},
		"nindent": indent, "quote": func(s string) string { return fmt.Sprintf("%q", s) },
		"toYaml": func(v any) (string, error) {
			data, err := json.Marshal(v)
			return string(data), err
		},
	})
	for name, value := range names {
		template.Must(base.New(name).Parse(value))
	}
	chart, err := base.New("chart").Parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]any{
		"Release": map[string]any{"Name": "cert-manager"},
		"Values": map[string]any{
			"installCRDs": true, "crds": map[string]any{"enabled": true, "keep": true},
			"webhook": map[string]any{
				"timeoutSeconds": 30, "url": map[string]any{},
				"mutatingWebhookConfiguration": map[string]any{}, "mutatingWebhookConfigurationAnnotations": map[string]any{}, "validatingWebhookConfigurationAnnotations": map[string]any{},
				"validatingWebhookConfiguration": map[string]any{"namespaceSelector": map[string]any{
					"matchExpressions": []any{map[string]any{"key": "cert-manager.io/disable-validation", "operator": "NotIn", "values": []string{"true"}}},
				}},
			},
		},
	}
	var out bytes.Buffer
	if err := chart.Execute(&out, values); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// hostAddress is an address of the host that a Service's endpoint may have.
func hostAddress(t *testing.T) string {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range addresses {
		if ip, ok := address.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() && ip.IP.To4() != nil {
			return ip.IP.String()
		}
	}
	t.Skip("the host has no address but loopback")
	return ""
}

// serveHook runs a webhook at the host's address under the Service's name, and
// returns the port and the bundle that its clients trust.
func serveHook(t *testing.T, host string, handler http.Handler) (port string, bundle []byte) {
	t.Helper()
	dir := t.TempDir()
	authority, err := pki.EnsureAuthority(filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key"), "hooks", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	issued, err := authority.Issue(pki.Request{CommonName: "cert-manager-webhook", DNSNames: []string{"cert-manager-webhook.cert-manager.svc"}, Server: true})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(issued.Certificate, issued.Key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: listener, Config: &http.Server{Handler: handler}, TLS: &tls.Config{Certificates: []tls.Certificate{pair}}}
	s.StartTLS()
	t.Cleanup(s.Close)
	_, port, err = net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port, authority.PEM()
}

// certManagerHook does what cert-manager's webhook does: it notes who asks for a
// certificate, and refuses common names that are too long.
func certManagerHook() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var review admissionv1.AdmissionReview
		if err == nil {
			err = json.Unmarshal(body, &review)
		}
		if err != nil || review.Request == nil {
			http.Error(w, "no review", http.StatusBadRequest)
			return
		}
		answer := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		switch r.URL.Path {
		case "/mutate":
			patchType := admissionv1.PatchTypeJSONPatch
			answer.PatchType = &patchType
			answer.Patch = fmt.Appendf(nil, `[{"op":"add","path":"/spec/username","value":%q}]`, review.Request.UserInfo.Username)
		case "/validate":
			var object struct{ Spec struct{ CommonName string } }
			_ = json.Unmarshal(review.Request.Object.Raw, &object)
			if len(object.Spec.CommonName) > 64 {
				answer.Allowed = false
				answer.Result = &metav1.Status{Message: "spec.commonName: Too long: may not be more than 64 bytes", Code: http.StatusForbidden}
			}
		}
		review.Request, review.Response = nil, answer
		_ = json.NewEncoder(w).Encode(review)
	})
}

func TestCertManagerConfigurations(t *testing.T) {
	dir := manifests(t)
	s := startServer(t)
	host := hostAddress(t)
	port, bundle := serveHook(t, host, certManagerHook())
	s.kubectl(t, "", "create", "namespace", "cert-manager")
	for _, name := range []string{"certificates", "certificaterequests", "issuers", "clusterissuers", "orders", "challenges"} {
		s.kubectl(t, render(t, filepath.Join(dir, "crds", "crd-"+name+".yaml")), "apply", "-f", "-")
	}
	s.kubectl(t, "", "wait", "--for=condition=Established", "crd", "--all", "--timeout=10s")
	templates := filepath.Join(dir, "charts", "cert-manager", "templates")
	for _, kind := range []string{"mutating", "validating"} {
		s.kubectl(t, render(t, filepath.Join(templates, "webhook-"+kind+"-webhook.yaml")), "apply", "-f", "-")
	}
	certificate := func(name, common string) string {
		return fmt.Sprintf(`{"apiVersion":"cert-manager.io/v1","kind":"Certificate","metadata":{"name":%q,"namespace":"default"},"spec":{"secretName":"s","commonName":%q,"issuerRef":{"name":"i"}}}`, name, common)
	}
	// Before the webhook runs, its failure policy refuses.
	s.refused(t, `failed calling webhook "webhook.cert-manager.io"`, certificate("early", "a.example.com"), "apply", "-f", "-")
	s.kubectl(t, fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: cert-manager-webhook, namespace: cert-manager}
spec: {ports: [{name: https, port: 443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: cert-manager-webhook-1, namespace: cert-manager, labels: {kubernetes.io/service-name: cert-manager-webhook}}
addressType: IPv4
ports: [{name: https, port: %s}]
endpoints: [{addresses: [%q]}]`, port, host), "apply", "-f", "-")
	// What cert-manager's cainjector does.
	encoded, err := json.Marshal(bundle)
	if err != nil {
		t.Fatal(err)
	}
	if block, _ := pem.Decode(bundle); block == nil {
		t.Fatal("the bundle is not PEM")
	}
	inject := fmt.Sprintf(`[{"op":"add","path":"/webhooks/0/clientConfig/caBundle","value":%s}]`, encoded)
	for _, kind := range []string{"mutatingwebhookconfiguration", "validatingwebhookconfiguration"} {
		s.kubectl(t, "", "patch", kind, "cert-manager-webhook", "--type=json", "-p", inject)
	}
	s.kubectl(t, certificate("good", "a.example.com"), "apply", "-f", "-")
	s.refused(t, `admission webhook "webhook.cert-manager.io" denied the request: spec.commonName: Too long`, certificate("long", strings.Repeat("a", 65)), "apply", "-f", "-")
	s.kubectl(t, `{"apiVersion":"cert-manager.io/v1","kind":"CertificateRequest","metadata":{"name":"r","namespace":"default"},"spec":{"request":"YQ==","issuerRef":{"name":"i"}}}`, "create", "-f", "-")
	if got := s.kubectl(t, "", "get", "certificaterequest", "r", "-o", "jsonpath={.spec.username}"); got != "admin" {
		t.Errorf("the request is of %q", got)
	}
	// A namespace that opts out is not checked.
	s.kubectl(t, "", "label", "namespace", "default", "cert-manager.io/disable-validation=true")
	s.kubectl(t, certificate("long", strings.Repeat("a", 65)), "apply", "-f", "-")
}
