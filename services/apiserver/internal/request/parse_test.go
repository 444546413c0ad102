package request_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/sampan-io/sampan/services/apiserver/internal/request"
)

func TestParseFollowsTheGrammar(t *testing.T) {
	for _, c := range []struct {
		method, target string
		want           request.Info // without Path and Parts
	}{
		{"GET", "/healthz", request.Info{Verb: "get"}},
		{"GET", "/", request.Info{Verb: "get"}},
		{"GET", "/api", request.Info{Verb: "get"}},
		{"GET", "/api/v1", request.Info{Verb: "get"}},
		{"GET", "/apis/apps/v1", request.Info{Verb: "get"}},
		{"OPTIONS", "/apis/apps/v1", request.Info{Verb: "options"}},
		{"GET", "/api/v1/pods", request.Info{IsResourceRequest: true, Verb: "list", APIPrefix: "api", APIVersion: "v1", Resource: "pods"}},
		{"GET", "/api/v1/pods/", request.Info{IsResourceRequest: true, Verb: "list", APIPrefix: "api", APIVersion: "v1", Resource: "pods"}},
		{"HEAD", "/api/v1/pods", request.Info{IsResourceRequest: true, Verb: "list", APIPrefix: "api", APIVersion: "v1", Resource: "pods"}},
		{"GET", "/api/v1/pods?watch=true", request.Info{IsResourceRequest: true, Verb: "watch", APIPrefix: "api", APIVersion: "v1", Resource: "pods"}},
		{"GET", "/api/v1/pods?watch=false", request.Info{IsResourceRequest: true, Verb: "list", APIPrefix: "api", APIVersion: "v1", Resource: "pods"}},
		{"GET", "/api/v1/watch/pods", request.Info{IsResourceRequest: true, Verb: "watch", APIPrefix: "api", APIVersion: "v1", Resource: "pods"}},
		{"GET", "/api/v1/watch/namespaces/a/pods/b", request.Info{IsResourceRequest: true, Verb: "watch", APIPrefix: "api", APIVersion: "v1", Namespace: "a", Resource: "pods", Name: "b"}},
		{"GET", "/api/v1/namespaces/a/pods/b", request.Info{IsResourceRequest: true, Verb: "get", APIPrefix: "api", APIVersion: "v1", Namespace: "a", Resource: "pods", Name: "b"}},
		{"POST", "/api/v1/namespaces/a/pods/b/exec", request.Info{IsResourceRequest: true, Verb: "create", APIPrefix: "api", APIVersion: "v1", Namespace: "a", Resource: "pods", Name: "b", Subresource: "exec"}},
		{"PUT", "/apis/apps/v1/namespaces/a/deployments/b/status", request.Info{IsResourceRequest: true, Verb: "update", APIPrefix: "apis", APIGroup: "apps", APIVersion: "v1", Namespace: "a", Resource: "deployments", Name: "b", Subresource: "status"}},
		{"PATCH", "/apis/apps/v1/namespaces/a/deployments/b", request.Info{IsResourceRequest: true, Verb: "patch", APIPrefix: "apis", APIGroup: "apps", APIVersion: "v1", Namespace: "a", Resource: "deployments", Name: "b"}},
		{"DELETE", "/api/v1/namespaces/a/pods", request.Info{IsResourceRequest: true, Verb: "deletecollection", APIPrefix: "api", APIVersion: "v1", Namespace: "a", Resource: "pods"}},
		{"DELETE", "/api/v1/namespaces/a", request.Info{IsResourceRequest: true, Verb: "delete", APIPrefix: "api", APIVersion: "v1", Namespace: "a", Resource: "namespaces", Name: "a"}},
		{"PUT", "/api/v1/namespaces/a/finalize", request.Info{IsResourceRequest: true, Verb: "update", APIPrefix: "api", APIVersion: "v1", Namespace: "a", Resource: "namespaces", Name: "a", Subresource: "finalize"}},
		{"GET", "/api/v1/pods?fieldSelector=metadata.name%3Dx", request.Info{IsResourceRequest: true, Verb: "list", APIPrefix: "api", APIVersion: "v1", Resource: "pods", Name: "x", FieldSelector: "metadata.name=x"}},
		{"GET", "/api/v1/namespaces//pods", request.Info{Verb: "get"}},
		{"GET", "/api//v1/pods", request.Info{Verb: "get"}},
		{"BREW", "/api/v1/pods", request.Info{IsResourceRequest: true, APIPrefix: "api", APIVersion: "v1", Resource: "pods"}},
	} {
		target, err := url.Parse(c.target)
		if err != nil {
			t.Fatal(err)
		}
		got := *request.Parse(c.method, target)
		got.Path, got.Parts = "", nil
		if !equal(got, c.want) {
			t.Errorf("%s %s:\ngot  %+v\nwant %+v", c.method, c.target, got, c.want)
		}
	}
}

func equal(a, b request.Info) bool {
	return a.IsResourceRequest == b.IsResourceRequest && a.Verb == b.Verb && a.APIPrefix == b.APIPrefix && a.APIGroup == b.APIGroup &&
		a.APIVersion == b.APIVersion && a.Namespace == b.Namespace && a.Resource == b.Resource && a.Subresource == b.Subresource &&
		a.Name == b.Name && a.FieldSelector == b.FieldSelector && a.LabelSelector == b.LabelSelector
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"/api/v1/pods", "/apis/apps/v1/namespaces/a/deployments/b/scale", "/api/v1/watch/pods?watch=1", "//", "/api/v1/namespaces/%2e%2e/x"} {
		f.Add(http.MethodGet, seed)
	}
	f.Fuzz(func(t *testing.T, method, text string) {
		target, err := url.Parse(text)
		if err != nil {
			return
		}
		info := request.Parse(method, target)
		if !info.IsResourceRequest {
			if info.Resource != "" || info.Namespace != "" {
				t.Errorf("non-resource request names a resource: %+v", info)
			}
			return
		}
		if info.Resource == "" || info.APIVersion == "" || len(info.Parts) == 0 {
			t.Errorf("resource request without a resource: %+v", info)
		}
		for _, part := range append([]string{info.Name, info.Namespace, info.Subresource}, info.Parts...) {
			if strings.Contains(part, "/") {
				t.Errorf("a name is a path: %+v", info)
			}
		}
	})
}
