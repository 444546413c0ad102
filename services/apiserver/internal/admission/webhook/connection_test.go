package webhook_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

// authority signs certificates for tests.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	bundle      []byte
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{certificate, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// issue is a certificate and its key in PEM.
func (a *authority) issue(t testing.TB, name string) (certificate, private []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw})
}

// secured serves a webhook under a certificate; change may be nil.
func (a *authority) secured(t testing.TB, name string, handler http.HandlerFunc, change func(*tls.Config)) *httptest.Server {
	t.Helper()
	return a.securedAt(t, "127.0.0.1", name, handler, change)
}

// securedAt is secured at one of the host's addresses.
func (a *authority) securedAt(t testing.TB, address, name string, handler http.HandlerFunc, change func(*tls.Config)) *httptest.Server {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	certificate, key := a.issue(t, name)
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: listener, Config: &http.Server{Handler: handler}}
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	if change != nil {
		change(s.TLS)
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

const allowed = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"ID","allowed":true}}`

// hostAddress is an address of the host that an endpoint may have, which loopback
// is not.
func hostAddress(t testing.TB) string {
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

func TestServiceIsReachedAtItsEndpoints(t *testing.T) {
	s := testserver.Start(t)
	ca := newAuthority(t)
	var path atomic.Value
	host := hostAddress(t)
	server := ca.securedAt(t, host, "hooks.default.svc", func(w http.ResponseWriter, r *http.Request) {
		path.Store(r.URL.Path)
		answering(allowed)(w, r)
	}, nil)
	_, text, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if _, err := s.Client.CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "hooks"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "https", Port: 9443}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Client.DiscoveryV1().EndpointSlices("default").Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "hooks-1", Labels: map[string]string{discoveryv1.LabelServiceName: "hooks"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: ptr.To("https"), Port: ptr.To(int32(port))}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{host}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	validating(t, s.Client, "v", server, configMaps(creating), func(w *admissionregistrationv1.ValidatingWebhook) {
		w.ClientConfig = admissionregistrationv1.WebhookClientConfig{CABundle: ca.bundle, Service: &admissionregistrationv1.ServiceReference{
			Namespace: "default", Name: "hooks", Port: ptr.To(int32(9443)), Path: ptr.To("/deep/path"),
		}}
	})
	if _, err := create(t, s.Client, configMap("x")); err != nil {
		t.Fatal(err)
	}
	if path.Load() != "/deep/path" {
		t.Errorf("asked at %v", path.Load())
	}
}

func TestBundleIsReadAgain(t *testing.T) {
	s := testserver.Start(t)
	old, next := newAuthority(t), newAuthority(t)
	server := next.secured(t, "localhost", answering(allowed), nil)
	validating(t, s.Client, "v", server, configMaps(creating), func(w *admissionregistrationv1.ValidatingWebhook) { w.ClientConfig.CABundle = old.bundle })
	_, err := create(t, s.Client, configMap("x"))
	assertError(t, err, "certificate signed by unknown authority")
	configurations := s.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	c, err := configurations.Get(t.Context(), "v", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.Webhooks[0].ClientConfig.CABundle = bytes.Join([][]byte{old.bundle, next.bundle}, nil)
	if _, err := configurations.Update(t.Context(), c, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := create(t, s.Client, configMap("x")); err != nil {
		t.Errorf("after the bundle changed: %v", err)
	}
}

func TestServerPresentsItsIdentityToWebhooks(t *testing.T) {
	ca := newAuthority(t)
	dir := t.TempDir()
	certificate, key := ca.issue(t, "the-api-server")
	for name, data := range map[string][]byte{"client.crt": certificate, "client.key": key} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var user atomic.Value
	var token atomic.Value
	handler := func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) > 0 {
			user.Store(r.TLS.PeerCertificates[0].Subject.CommonName)
		}
		token.Store(r.Header.Get("Authorization"))
		answering(allowed)(w, r)
	}
	server := ca.secured(t, "localhost", handler, func(c *tls.Config) {
		c.ClientCAs = x509.NewCertPool()
		c.ClientCAs.AddCert(ca.certificate)
		c.ClientAuth = tls.RequireAndVerifyClientCert
	})
	host := strings.TrimPrefix(server.URL, "https://")
	files := map[string]string{
		"admission.yaml": `
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: ValidatingAdmissionWebhook
  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, kubeConfigFile: hooks.kubeconfig}
`,
		"hooks.kubeconfig": fmt.Sprintf(`
apiVersion: v1
kind: Config
users:
- name: %q
  user: {client-certificate: client.crt, client-key: client.key, token: secret}
- name: "*"
  user: {token: other}
`, host),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := testserver.Start(t, "--admission-control-config-file="+filepath.Join(dir, "admission.yaml"))
	withCA := func(w *admissionregistrationv1.ValidatingWebhook) { w.ClientConfig.CABundle = ca.bundle }
	validating(t, s.Client, "v", server, configMaps(creating), withCA)
	if _, err := create(t, s.Client, configMap("x")); err != nil {
		t.Fatal(err)
	}
	if user.Load() != "the-api-server" || token.Load() != "Bearer secret" {
		t.Errorf("known as %v with %v", user.Load(), token.Load())
	}
	other := ca.secured(t, "localhost", handler, nil)
	validating(t, s.Client, "w", other, configMaps(creating), withCA)
	if _, err := create(t, s.Client, configMap("y")); err != nil {
		t.Fatal(err)
	}
}
