package handlers_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

// answer is what a raw request got.
type answer struct {
	code   int
	header http.Header
	body   []byte
}

func (a answer) status(t *testing.T) metav1.Status {
	t.Helper()
	var status metav1.Status
	if err := json.Unmarshal(a.body, &status); err != nil || status.Kind != "Status" {
		t.Fatalf("answer %d is no Status: %v: %s", a.code, err, a.body)
	}
	return status
}

// raw is a client of requests that no library would send.
type raw struct {
	t      *testing.T
	client *http.Client
	host   string
}

func newRaw(t *testing.T, s *testserver.Server) *raw {
	t.Helper()
	return &raw{t: t, client: s.HTTP(t), host: s.Config.Host}
}

// do sends a request; headers are "Name: value".
func (r *raw) do(method, path string, body any, headers ...string) answer {
	r.t.Helper()
	var reader io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		reader = strings.NewReader(b)
	case []byte:
		reader = bytes.NewReader(b)
	default:
		data, err := json.Marshal(b)
		if err != nil {
			r.t.Fatal(err)
		}
		reader = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(context.Background(), method, r.host+path, reader)
	if err != nil {
		r.t.Fatal(err)
	}
	request.Header.Set("User-Agent", "tester/1")
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		request.Header.Set(name, value)
	}
	response, err := r.client.Do(request)
	if err != nil {
		r.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer func() { _ = response.Body.Close() }()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return answer{response.StatusCode, response.Header, data}
}

func (r *raw) want(code int, method, path string, body any, headers ...string) answer {
	r.t.Helper()
	a := r.do(method, path, body, headers...)
	if a.code != code {
		r.t.Fatalf("%s %s: got %d, want %d: %.600s", method, path, a.code, code, a.body)
	}
	return a
}

const configMaps = "/api/v1/namespaces/default/configmaps"

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Data: map[string]string{"key": "value"}}
}

func TestRefusesBadRequestsAsUpstreamDoes(t *testing.T) {
	s := testserver.Start(t)
	r := newRaw(t, s)
	r.want(201, "POST", configMaps, `{"metadata":{"name":"there"}}`)
	big := `{"metadata":{"name":"big"},"data":{"k":"` + strings.Repeat("x", 3<<20) + `"}}`
	deep := `{"metadata":{"name":"deep"},"data":` + strings.Repeat(`{"a":`, 100_000) + `1` + strings.Repeat(`}`, 100_001)
	bomb := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c <= 'z'; c++ {
		bomb += fmt.Sprintf("%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n", c, c, c-1, c-1, c-1, c-1, c-1, c-1, c-1, c-1, c-1)
	}
	for _, c := range []struct {
		name, method, path string
		body               any
		headers            []string
		code               int
		reason             metav1.StatusReason
		message            string // a part of it
	}{
		{"malformed JSON", "POST", configMaps, `{"metadata":`, nil, 400, metav1.StatusReasonBadRequest, "the object provided is unrecognized (must be of type ConfigMap)"},
		{"empty body", "POST", configMaps, ``, nil, 400, metav1.StatusReasonBadRequest, "(<empty>)"},
		{"wrong type", "POST", configMaps, `{"metadata":{"name":"x"},"data":{"k":1}}`, nil, 400, metav1.StatusReasonBadRequest, "cannot be handled as a ConfigMap"},
		{"other kind", "POST", configMaps, `{"kind":"Service","apiVersion":"v1","metadata":{"name":"x"}}`, nil, 400, metav1.StatusReasonBadRequest, `Service in version "v1" cannot be handled as a ConfigMap`},
		{"other version", "POST", configMaps, `{"kind":"ConfigMap","apiVersion":"v2","metadata":{"name":"x"}}`, nil, 400, metav1.StatusReasonBadRequest, ""},
		{"no name", "POST", configMaps, `{"data":{}}`, nil, 422, metav1.StatusReasonInvalid, "metadata.name: Required value: name or generateName is required"},
		{"invalid name", "POST", configMaps, `{"metadata":{"name":"A_b"}}`, nil, 422, metav1.StatusReasonInvalid, "metadata.name: Invalid value"},
		{"name is a path", "POST", configMaps, `{"metadata":{"name":"../x"}}`, nil, 422, metav1.StatusReasonInvalid, ""},
		{"other namespace", "POST", configMaps, `{"metadata":{"name":"x","namespace":"other"}}`, nil, 400, metav1.StatusReasonBadRequest, "the namespace of the provided object does not match the namespace sent on the request"},
		{"version of a new object", "POST", configMaps, `{"metadata":{"name":"x","resourceVersion":"5"}}`, nil, 400, metav1.StatusReasonBadRequest, "resourceVersion should not be set on objects to be created"},
		{"taken name", "POST", configMaps, `{"metadata":{"name":"there"}}`, nil, 409, metav1.StatusReasonAlreadyExists, `configmaps "there" already exists`},
		{"oversized", "POST", configMaps, big, nil, 413, metav1.StatusReasonRequestEntityTooLarge, "limit is 3145728"},
		{"deep nesting", "POST", configMaps, deep, nil, 400, metav1.StatusReasonBadRequest, ""},
		{"number out of range", "POST", configMaps, `{"metadata":{"name":"x","generation":1e999}}`, nil, 400, metav1.StatusReasonBadRequest, ""},
		{"YAML bomb", "POST", configMaps, bomb, []string{"Content-Type: application/yaml"}, 400, metav1.StatusReasonBadRequest, ""},
		{"truncated protobuf", "POST", configMaps, "k8s\x00\x0a\xff", []string{"Content-Type: application/vnd.kubernetes.protobuf"}, 400, metav1.StatusReasonBadRequest, ""},
		{"unknown media type", "POST", configMaps, `x`, []string{"Content-Type: text/xml"}, 415, metav1.StatusReasonUnsupportedMediaType, "the body of the request was in an unknown format - accepted media types include: application/json"},
		{"unknown patch type", "PATCH", configMaps + "/there", `{}`, []string{"Content-Type: application/json"}, 415, metav1.StatusReasonUnsupportedMediaType, "application/json-patch+json"},
		{"nothing acceptable", "GET", configMaps + "/there", nil, []string{"Accept: image/png"}, 406, metav1.StatusReasonNotAcceptable, "only the following media types are accepted"},
		{"unknown object", "GET", configMaps + "/nowhere", nil, nil, 404, metav1.StatusReasonNotFound, `configmaps "nowhere" not found`},
		{"unknown resource", "GET", "/api/v1/namespaces/default/nonsense", nil, nil, 404, metav1.StatusReasonNotFound, "the server could not find the requested resource"},
		{"unknown group", "GET", "/apis/nonsense/v1/things", nil, nil, 404, metav1.StatusReasonNotFound, "the server could not find the requested resource"},
		{"unknown subresource", "GET", configMaps + "/there/nonsense", nil, nil, 404, metav1.StatusReasonNotFound, ""},
		{"dot dot", "GET", configMaps + "/%2e%2e", nil, nil, 400, metav1.StatusReasonBadRequest, "may not be '..'"},
		{"encoded slash", "GET", configMaps + "/a%2fb", nil, nil, 404, metav1.StatusReasonNotFound, ""},
		{"empty part", "GET", "/api/v1/namespaces//configmaps", nil, nil, 404, metav1.StatusReasonNotFound, ""},
		{"namespaced path of a cluster resource", "GET", "/api/v1/namespaces/default/nodes", nil, nil, 404, metav1.StatusReasonNotFound, ""},
		{"method", "DELETE", "/api/v1/namespaces", nil, nil, 405, metav1.StatusReasonMethodNotAllowed, ""},
		{"post to an object", "POST", configMaps + "/there", `{}`, nil, 405, metav1.StatusReasonMethodNotAllowed, ""},
		{"unknown field selector", "GET", configMaps + "?fieldSelector=data%3Dx", nil, nil, 400, metav1.StatusReasonBadRequest, `"data" is not a known field selector: only "metadata.name", "metadata.namespace"`},
		{"bad label selector", "GET", configMaps + "?labelSelector=%21%21", nil, nil, 400, metav1.StatusReasonBadRequest, ""},
		{"bad continue", "GET", configMaps + "?continue=nonsense", nil, nil, 400, metav1.StatusReasonBadRequest, "continue key is not valid"},
		{"bad dry run", "POST", configMaps + "?dryRun=Some", `{"metadata":{"name":"x"}}`, nil, 422, metav1.StatusReasonInvalid, "dryRun"},
		{"bad field validation", "POST", configMaps + "?fieldValidation=Maybe", `{"metadata":{"name":"x"}}`, nil, 422, metav1.StatusReasonInvalid, "fieldValidation"},
		{"apply without manager", "PATCH", configMaps + "/x", `{}`, []string{"Content-Type: application/apply-patch+yaml"}, 422, metav1.StatusReasonInvalid, "fieldManager: Required value: is required for apply patch"},
		{"future version", "GET", configMaps + "/there?resourceVersion=999999999", nil, nil, 504, metav1.StatusReasonTimeout, "Too large resource version"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if strings.HasPrefix(c.name, "future") && testing.Short() {
				t.Skip("waits three seconds for the version")
			}
			r := &raw{t, r.client, r.host}
			status := r.want(c.code, c.method, c.path, c.body, c.headers...).status(t)
			if status.Reason != c.reason || !strings.Contains(status.Message, c.message) || int(status.Code) != c.code || status.Status != metav1.StatusFailure {
				t.Errorf("got code %d reason %q message %q, want reason %q and a message with %q", status.Code, status.Reason, status.Message, c.reason, c.message)
			}
		})
	}
	list, err := s.Client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("refused requests left something behind: %v, %v", list, err)
	}
}

func TestRequiresCredentialsButForHealthAndVersion(t *testing.T) {
	s := testserver.Start(t)
	r := &raw{t, s.Anonymous(), s.Config.Host}
	for path, code := range map[string]int{"/healthz": 200, "/readyz": 200, "/version": 200, "/api": 401, "/api/v1/namespaces": 401, "/metrics": 401} {
		r.want(code, "GET", path, nil)
	}
	r.want(401, "GET", "/api/v1/namespaces", nil, "Authorization: Bearer nonsense")
	stranger := newRaw(t, &testserver.Server{Config: s.As("stranger")})
	status := stranger.want(403, "GET", "/api/v1/namespaces/default/pods", nil).status(t)
	if want := `pods is forbidden: User "stranger" cannot list resource "pods" in API group "" in the namespace "default"`; status.Message != want {
		t.Errorf("got message %q, want %q", status.Message, want)
	}
	// A discovery path is open to every authenticated user.
	stranger.want(200, "GET", "/api", nil)
}

func TestImpersonationNeedsTheVerb(t *testing.T) {
	s := testserver.Start(t)
	r := &raw{t, s.HTTP(t), s.Config.Host}
	r.want(403, "GET", "/api/v1/namespaces/default/pods", nil, "Impersonate-User: stranger")
	r.want(200, "GET", "/api/v1/namespaces/default/pods", nil, "Impersonate-User: boss", "Impersonate-Group: system:masters")
	review := r.want(201, "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", `{}`, "Impersonate-User: someone", "Impersonate-Extra-Scopes: a%20b")
	if body := string(review.body); !strings.Contains(body, `"username":"someone"`) || !strings.Contains(body, `"scopes":`) {
		t.Errorf("review does not tell of the impersonated user: %s", body)
	}
	// Groups without a user are no identity.
	if a := r.do("GET", "/api/v1/namespaces", nil, "Impersonate-Group: system:masters"); a.code < 400 {
		t.Errorf("impersonating a group alone got %d", a.code)
	}
}
