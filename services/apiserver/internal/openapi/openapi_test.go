package openapi

import (
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/proto"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

func newServer(t *testing.T) *httptest.Server {
	t.Helper()
	resources := []*registry.Resource{
		registry.Define(registry.Definition[*corev1.ConfigMap]{
			GroupVersion: corev1.SchemeGroupVersion, Resource: "configmaps", Kind: "ConfigMap", Singular: "configmap", Namespaced: true,
			New: func() *corev1.ConfigMap { return &corev1.ConfigMap{} }, NewList: func() runtime.Object { return &corev1.ConfigMapList{} }, KeyPrefix: "/registry/configmaps",
		}),
		registry.Define(registry.Definition[*appsv1.Deployment]{
			GroupVersion: appsv1.SchemeGroupVersion, Resource: "deployments", Kind: "Deployment", Singular: "deployment", Namespaced: true,
			New: func() *appsv1.Deployment { return &appsv1.Deployment{} }, NewList: func() runtime.Object { return &appsv1.DeploymentList{} }, KeyPrefix: "/registry/deployments",
			Subresources: []registry.Subresource{{Name: "scale", Verbs: []string{"get", "patch", "update"}, Scale: &registry.Scale{}}},
		}),
	}
	server := httptest.NewServer(New("v1.37.2", resources).Handler())
	t.Cleanup(server.Close)
	return server
}

func get(t *testing.T, server *httptest.Server, path, accept string) (*http.Response, []byte) {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, server.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", accept)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer, body
}

func TestIndexLeadsToDocumentsThatParse(t *testing.T) {
	server := newServer(t)
	_, body := get(t, server, "/openapi/v3", "application/json")
	var index struct {
		Paths map[string]struct {
			ServerRelativeURL string `json:"serverRelativeURL"`
		} `json:"paths"`
	}
	if err := json.Unmarshal(body, &index); err != nil {
		t.Fatal(err)
	}
	if len(index.Paths) != 2 {
		t.Fatalf("index has %d group versions, want 2: %s", len(index.Paths), body)
	}
	for path, entry := range index.Paths {
		answer, body := get(t, server, entry.ServerRelativeURL, "application/com.github.proto-openapi.spec.v3@v1.0+protobuf")
		if !strings.Contains(answer.Header.Get("Cache-Control"), "immutable") {
			t.Errorf("%s: a document named by its hash is not cacheable: %v", path, answer.Header)
		}
		var document openapi_v3.Document
		if err := proto.Unmarshal(body, &document); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestEveryReferenceOfADocumentIsDefined(t *testing.T) {
	server := newServer(t)
	for _, path := range []string{"/openapi/v2", "/openapi/v3/api/v1", "/openapi/v3/apis/apps/v1"} {
		_, body := get(t, server, path, "application/json")
		var document struct {
			Definitions map[string]any `json:"definitions"`
			Components  struct {
				Schemas map[string]any `json:"schemas"`
			} `json:"components"`
			Paths map[string]any `json:"paths"`
		}
		if err := json.Unmarshal(body, &document); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if len(document.Paths) < 3 {
			t.Errorf("%s has only %d paths", path, len(document.Paths))
		}
		for _, match := range reference.FindAllSubmatch(body, -1) {
			name := string(match[1])
			if document.Definitions[name] == nil && document.Components.Schemas[name] == nil {
				t.Errorf("%s refers to %s, which it does not define", path, name)
			}
		}
	}
}

func TestVersion2IsServedAsProtobuf(t *testing.T) {
	server := newServer(t)
	for _, spelled := range []string{"application/com.github.proto-openapi.spec.v2@v1.0+protobuf", "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"} {
		answer, body := get(t, server, "/openapi/v2", spelled)
		if _, _, err := mime.ParseMediaType(answer.Header.Get("Content-Type")); err != nil {
			t.Errorf("content type %q: %v", answer.Header.Get("Content-Type"), err)
		}
		var document openapi_v2.Document
		if err := proto.Unmarshal(body, &document); err != nil {
			t.Fatal(err)
		}
		if document.Swagger != "2.0" {
			t.Errorf("swagger is %q", document.Swagger)
		}
	}
}

func TestPatchTellsItsFieldValidation(t *testing.T) {
	server := newServer(t)
	_, body := get(t, server, "/openapi/v3/apis/apps/v1", "application/json")
	var document struct {
		Paths map[string]map[string]struct {
			Parameters []struct{ Name string } `json:"parameters"`
		} `json:"paths"`
	}
	if err := json.Unmarshal(body, &document); err != nil {
		t.Fatal(err)
	}
	patch := document.Paths["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"]
	for _, p := range patch.Parameters {
		if p.Name == "fieldValidation" {
			return
		}
	}
	t.Errorf("patch of deployments lacks fieldValidation, which kubectl looks for: %+v", patch)
}

func TestUnknownDocumentsAndTypesAreRefused(t *testing.T) {
	server := newServer(t)
	if answer, _ := get(t, server, "/openapi/v3/apis/nothing/v1", "application/json"); answer.StatusCode != http.StatusNotFound {
		t.Errorf("unknown group: %s", answer.Status)
	}
	if answer, _ := get(t, server, "/openapi/v2", "text/html"); answer.StatusCode != http.StatusNotAcceptable {
		t.Errorf("unknown media type: %s", answer.Status)
	}
}
