package aggregation_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
	"github.com/sampan-io/sampan/services/internal/pki"
)

const group = "boats.example.com"

// fleet is another API server, behind the Service default/fleet.
type fleet struct {
	*httptest.Server
	authority *pki.Authority
	fail      atomic.Bool // answers 500 to everything
	// discovery answers instead of the right list of resources.
	discovery atomic.Pointer[http.HandlerFunc]
	// handle is called for the paths that are not discovery.
	handle http.HandlerFunc
}

func newFleet(t *testing.T, s *testserver.Server, handle http.HandlerFunc) *fleet {
	t.Helper()
	authority, err := pki.NewAuthority("fleet", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Issue(pki.Request{CommonName: "fleet", Server: true, DNSNames: []string{"fleet.default.svc"}})
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := tls.X509KeyPair(pair.Certificate, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	proxies, err := os.ReadFile(filepath.Join(s.Dir, "certs", "front-proxy-ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(proxies)
	f := &fleet{authority: authority, handle: handle}
	f.Server = httptest.NewUnstartedServer(http.HandlerFunc(f.serve))
	f.EnableHTTP2 = true
	f.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
	f.Config.ErrorLog = nil
	f.StartTLS()
	t.Cleanup(f.Close)
	return f
}

func (f *fleet) port() int32 {
	_, text, _ := net.SplitHostPort(f.Listener.Addr().String())
	port, _ := strconv.Atoi(text)
	return int32(port)
}

func (f *fleet) serve(w http.ResponseWriter, r *http.Request) {
	if f.fail.Load() {
		http.Error(w, "sunk", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	switch r.URL.Path {
	case "/apis/" + group + "/v1":
		if odd := f.discovery.Load(); odd != nil {
			(*odd)(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: group + "/v1",
			APIResources: []metav1.APIResource{
				{Name: "boats", SingularName: "boat", Kind: "Boat", Namespaced: true, Verbs: []string{"get", "list"}, ShortNames: []string{"bt"}},
				{Name: "boats/radio", Kind: "Boat", Namespaced: true, Verbs: []string{"get"}},
			},
		})
	case "/openapi/v3":
		_, _ = fmt.Fprintf(w, `{"paths":{"apis/%s/v1":{"serverRelativeURL":"/openapi/v3/apis/%s/v1?hash=1"}}}`, group, group)
	case "/openapi/v3/apis/" + group + "/v1":
		_, _ = io.WriteString(w, `{"openapi":"3.0.0","info":{"title":"fleet"},"paths":{}}`)
	case "/openapi/v2":
		_, _ = fmt.Fprintf(w, `{"swagger":"2.0","paths":{"/apis/%[1]s/v1/boats":{"get":{"responses":{"200":{"schema":{"$ref":"#/definitions/com.example.Boat"}}}}},"/api/v1/stolen":{}},
			"definitions":{"com.example.Boat":{"type":"object","properties":{"metadata":{"$ref":"#/definitions/io.k8s.api.core.v1.Pod"}},"x-kubernetes-group-version-kind":[{"group":"%[1]s","version":"v1","kind":"Boat"}]},
			"io.k8s.api.core.v1.Pod":{"type":"string"}}}`, group)
	default:
		f.handle(w, r)
	}
}

// harness is a server with a client of APIServices.
type harness struct {
	*testserver.Server
	t      *testing.T
	client aggregatorclient.Interface
}

func start(t *testing.T, flags ...string) *harness {
	t.Helper()
	s := testserver.Start(t, flags...)
	client, err := aggregatorclient.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	return &harness{s, t, client}
}

func newAPIService(port int32, authority *pki.Authority) *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1." + group}, Spec: apiregistrationv1.APIServiceSpec{
		Group: group, Version: "v1", GroupPriorityMinimum: 2000, VersionPriority: 10, CABundle: authority.PEM(),
		Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "fleet", Port: new(port)},
	}}
}

// register makes the Service and the APIService of a fleet.
func (h *harness) register(f *fleet) {
	h.t.Helper()
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "fleet"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"}}
	if _, err := h.Client.CoreV1().Services("default").Create(h.t.Context(), service, metav1.CreateOptions{}); err != nil {
		h.t.Fatal(err)
	}
	if _, err := h.client.ApiregistrationV1().APIServices().Create(h.t.Context(), newAPIService(f.port(), f.authority), metav1.CreateOptions{}); err != nil {
		h.t.Fatal(err)
	}
}

// touch has the fleet checked again: its Service changes.
func (h *harness) touch() {
	h.t.Helper()
	if _, err := h.Client.CoreV1().Services("default").Patch(h.t.Context(), "fleet", "application/merge-patch+json",
		[]byte(fmt.Sprintf(`{"metadata":{"annotations":{"at":%q}}}`, time.Now())), metav1.PatchOptions{}); err != nil {
		h.t.Fatal(err)
	}
}

// await waits for an Available condition and returns it.
func (h *harness) await(name string, status apiregistrationv1.ConditionStatus, reason string) apiregistrationv1.APIServiceCondition {
	h.t.Helper()
	var last apiregistrationv1.APIServiceCondition
	err := wait.PollUntilContextTimeout(h.t.Context(), 5*time.Millisecond, 20*time.Second, true, func(ctx context.Context) (bool, error) {
		service, err := h.client.ApiregistrationV1().APIServices().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, condition := range service.Status.Conditions {
			last = condition
		}
		return last.Status == status && last.Reason == reason, nil
	})
	if err != nil {
		h.t.Fatalf("APIService %s is %+v: %v", name, last, err)
	}
	return last
}

// get is an answer's status and body.
func (h *harness) get(config *rest.Config, path, accept string) (int, string) {
	h.t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		h.t.Fatal(err)
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	request, err := http.NewRequestWithContext(h.t.Context(), http.MethodGet, config.Host+path, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	if accept != "" {
		request.Header.Set("Accept", accept)
	}
	answer, err := client.Do(request)
	if err != nil {
		h.t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, 20*time.Second, true, func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}
