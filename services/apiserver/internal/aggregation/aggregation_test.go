package aggregation_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/sampan-io/sampan/services/internal/pki"
)

func TestLocalAPIServicesAreThere(t *testing.T) {
	h := start(t)
	for _, name := range []string{"v1.", "v1.apps", "v2.autoscaling", "v1.rbac.authorization.k8s.io", "v1.apiextensions.k8s.io"} {
		err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, 10*time.Second, true, func(ctx context.Context) (bool, error) {
			_, err := h.client.ApiregistrationV1().APIServices().Get(ctx, name, metav1.GetOptions{})
			return err == nil, nil
		})
		if err != nil {
			t.Fatalf("APIService %s: %v", name, err)
		}
		h.await(name, apiregistrationv1.ConditionTrue, "Local")
	}
	if err := h.client.ApiregistrationV1().APIServices().Delete(t.Context(), "v1.apps", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, 10*time.Second, true, func(ctx context.Context) (bool, error) {
		_, err := h.client.ApiregistrationV1().APIServices().Get(ctx, "v1.apps", metav1.GetOptions{})
		return err == nil, nil
	})
	if err != nil {
		t.Fatalf("a deleted local APIService did not come back: %v", err)
	}
	if list, err := h.client.ApiregistrationV1().APIServices().List(t.Context(), metav1.ListOptions{}); err != nil || slices.ContainsFunc(list.Items, func(s apiregistrationv1.APIService) bool {
		return s.Spec.Group == apiregistrationv1.GroupName
	}) {
		t.Errorf("APIServices: %v", err)
	}
}

func TestRequestsArePassedOnAsTheirUser(t *testing.T) {
	h := start(t)
	f := newFleet(t, h.Server, func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{
			"path": r.URL.RequestURI(), "user": r.Header.Get("X-Remote-User"), "groups": r.Header.Values("X-Remote-Group"), "token": r.Header.Get("Authorization"),
			"proxy": r.TLS.PeerCertificates[0].Subject.CommonName, "forged": r.Header.Get("X-Remote-Extra-Forged"),
		})
	})
	h.register(f)
	h.await("v1."+group, apiregistrationv1.ConditionTrue, "Passed")
	user := h.As("alice", "sailors", "system:masters")
	user.WrapTransport = func(rt http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			r.Header.Set("X-Remote-User", "mallory")
			r.Header.Set("X-Remote-Extra-Forged", "yes")
			return rt.RoundTrip(r)
		})
	}
	code, body := h.get(user, "/apis/"+group+"/v1/namespaces/default/boats/a%2Fb?x=1", "")
	var got struct {
		Path, User, Token, Proxy, Forged string
		Groups                           []string
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil || code != http.StatusOK {
		t.Fatalf("%d %s: %v", code, body, err)
	}
	if got.User != "alice" || !slices.Contains(got.Groups, "sailors") || got.Proxy != "front-proxy-client" || got.Forged != "" || got.Token != "" || got.Path != "/apis/"+group+"/v1/namespaces/default/boats/a%2Fb?x=1" {
		t.Errorf("passed on: %+v", got)
	}
	// Who may not is refused here.
	if code, body := h.get(h.As("bob"), "/apis/"+group+"/v1/boats", ""); code != http.StatusForbidden {
		t.Errorf("without rights: %d %s", code, body)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestRemoteGroupsAreDescribed(t *testing.T) {
	h := start(t)
	f := newFleet(t, h.Server, http.NotFound)
	h.register(f)
	h.await("v1."+group, apiregistrationv1.ConditionTrue, "Passed")
	lists, err := h.Client.Discovery().ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(lists, func(l *metav1.APIResourceList) bool {
		return l.GroupVersion == group+"/v1" && l.APIResources[0].Name == "boats" && l.APIResources[0].Kind == "Boat"
	}) {
		t.Errorf("aggregated discovery: %+v", lists)
	}
	if code, body := h.get(h.Config, "/apis/"+group, ""); code != http.StatusOK || !strings.Contains(body, `"preferredVersion":{"groupVersion":"boats.example.com/v1"`) {
		t.Errorf("the group: %d %s", code, body)
	}
	if code, body := h.get(h.Config, "/apis", "application/json"); code != http.StatusOK || !strings.Contains(body, `"name":"boats.example.com"`) || !strings.Contains(body, `"name":"apps"`) {
		t.Errorf("groups: %d %.200s", code, body)
	}
	eventually(t, "OpenAPI 3 has the group", func() bool {
		_, body := h.get(h.Config, "/openapi/v3", "")
		return strings.Contains(body, "/openapi/v3/apis/"+group+"/v1?hash=1") && strings.Contains(body, "apis/apps/v1")
	})
	if code, body := h.get(h.Config, "/openapi/v3/apis/"+group+"/v1?hash=1", ""); code != http.StatusOK || !strings.Contains(body, `"title":"fleet"`) {
		t.Errorf("OpenAPI 3 of the group: %d %s", code, body)
	}
	var document struct{ Paths, Definitions map[string]json.RawMessage }
	eventually(t, "OpenAPI 2 has the group", func() bool {
		_, body := h.get(h.Config, "/openapi/v2", "")
		if err := json.Unmarshal([]byte(body), &document); err != nil {
			t.Fatal(err)
		}
		return document.Paths["/apis/"+group+"/v1/boats"] != nil
	})
	// What is the server's own stays so.
	if document.Paths["/api/v1/stolen"] != nil || string(document.Definitions["io.k8s.api.core.v1.Pod"]) == `{"type":"string"}` ||
		!strings.Contains(string(document.Definitions["com.example.Boat"]), `#/definitions/io.k8s.api.core.v1.Pod_v2"`) {
		t.Errorf("definitions: %s", document.Definitions["com.example.Boat"])
	}
}

// A server that fails is answered for at once, and hurts nothing else; when it
// comes back so do its requests.
func TestFailingBackendHurtsNothingElse(t *testing.T) {
	h := start(t)
	f := newFleet(t, h.Server, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") })
	h.register(f)
	h.await("v1."+group, apiregistrationv1.ConditionTrue, "Passed")
	f.fail.Store(true)
	h.touch()
	condition := h.await("v1."+group, apiregistrationv1.ConditionFalse, "FailedDiscoveryCheck")
	if !strings.Contains(condition.Message, "bad status from https://fleet.default.svc:") || !strings.HasSuffix(condition.Message, ": 500") {
		t.Errorf("message %q", condition.Message)
	}
	if code, body := h.get(h.Config, "/apis/"+group+"/v1/boats", ""); code != http.StatusServiceUnavailable || !strings.Contains(body, `"kind":"Status"`) {
		t.Errorf("a failing server: %d %s", code, body)
	}
	if _, err := h.Client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("another group: %v", err)
	}
	if _, body := h.get(h.Config, "/metrics", ""); !strings.Contains(body, `aggregator_unavailable_apiservice{name="v1.boats.example.com"} 1`) ||
		!strings.Contains(body, `aggregator_unavailable_apiservice_total{name="v1.boats.example.com",reason="FailedDiscoveryCheck"} 1`) {
		t.Error("the metrics do not tell")
	}
	_, body := h.get(h.Config, "/apis", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	var list apidiscovery.APIGroupDiscoveryList
	if err := json.Unmarshal([]byte(body), &list); err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(list.Items, func(g apidiscovery.APIGroupDiscovery) bool { return g.Name == group })
	if at < 0 || list.Items[at].Versions[0].Freshness != apidiscovery.DiscoveryFreshnessStale || len(list.Items) < 10 {
		t.Errorf("discovery: %s", body)
	}
	f.fail.Store(false)
	h.await("v1."+group, apiregistrationv1.ConditionTrue, "Passed")
	if code, body := h.get(h.Config, "/apis/"+group+"/v1/boats", ""); code != http.StatusOK {
		t.Errorf("after it came back: %d %s", code, body)
	}
}

func TestRedirectsAreRefused(t *testing.T) {
	var followed atomic.Bool
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { followed.Store(true) }))
	t.Cleanup(elsewhere.Close)
	h := start(t)
	f := newFleet(t, h.Server, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, http.StatusFound) })
	h.register(f)
	h.await("v1."+group, apiregistrationv1.ConditionTrue, "Passed")
	if code, body := h.get(h.Config, "/apis/"+group+"/v1/boats", ""); code < 500 || followed.Load() {
		t.Errorf("a redirect: %d %s, followed %v", code, body, followed.Load())
	}
}

func TestUpgradedConnectionsArePassedOn(t *testing.T) {
	h := start(t, "--request-timeout=2s")
	f := newFleet(t, h.Server, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "echo" || r.Header.Get("X-Remote-User") == "" {
			http.Error(w, "no upgrade", http.StatusBadRequest)
			return
		}
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_, _ = io.Copy(conn, buffered)
	})
	h.register(f)
	h.await("v1."+group, apiregistrationv1.ConditionTrue, "Passed")
	config, err := rest.TLSConfigFor(h.Config)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", strings.TrimPrefix(h.Config.Host, "https://"), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_, _ = fmt.Fprintf(conn, "GET /apis/%s/v1/namespaces/default/boats/a/radio HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n", group)
	reader := bufio.NewReader(conn)
	answer, err := http.ReadResponse(reader, nil)
	if err != nil || answer.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("answer %+v, %v", answer, err)
	}
	for range 2 {
		_, _ = io.WriteString(conn, "ahoy\n")
		if line, err := reader.ReadString('\n'); err != nil || line != "ahoy\n" {
			t.Fatalf("echo %q, %v", line, err)
		}
	}
}

// An APIService that points at the API server itself: one request, which is
// refused.
func TestAPIServiceOfTheServerItselfIsRefused(t *testing.T) {
	h := start(t)
	_, text, err := net.SplitHostPort(strings.TrimPrefix(h.Config.Host, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "self"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"}}
	if _, err := h.Client.CoreV1().Services("default").Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	self := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1." + group}, Spec: apiregistrationv1.APIServiceSpec{
		Group: group, Version: "v1", GroupPriorityMinimum: 2000, VersionPriority: 10, InsecureSkipTLSVerify: true,
		Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "self", Port: new(int32(port))},
	}}
	if _, err := h.client.ApiregistrationV1().APIServices().Create(t.Context(), self, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	condition := h.await("v1."+group, apiregistrationv1.ConditionFalse, "FailedDiscoveryCheck")
	if !strings.Contains(condition.Message, "refers to the API server that it is registered with") {
		t.Errorf("message %q", condition.Message)
	}
	if code, body := h.get(h.Config, "/apis/"+group+"/v1/boats", ""); code != http.StatusServiceUnavailable {
		t.Errorf("a request: %d %s", code, body)
	}
}

func TestUnusableServicesAreNamed(t *testing.T) {
	h := start(t)
	authority, err := pki.NewAuthority("fleet", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.client.ApiregistrationV1().APIServices().Create(t.Context(), newAPIService(443, authority), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if condition := h.await("v1."+group, apiregistrationv1.ConditionFalse, "ServiceNotFound"); condition.Message != `service/fleet in "default" is not present` {
		t.Errorf("message %q", condition.Message)
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "fleet"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	service, err = h.Client.CoreV1().Services("default").Create(t.Context(), service, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h.await("v1."+group, apiregistrationv1.ConditionFalse, "ServicePortError")
	service.Spec.Ports[0].Port = 443
	if _, err := h.Client.CoreV1().Services("default").Update(t.Context(), service, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	h.await("v1."+group, apiregistrationv1.ConditionFalse, "MissingEndpoints")
}
