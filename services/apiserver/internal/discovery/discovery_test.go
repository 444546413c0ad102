package discovery_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/discovery"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/apps"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/core"
)

const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"

func get(t *testing.T, path, accept string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	service := discovery.New([]*registry.Resource{core.ConfigMaps(), core.Namespaces(), apps.Deployments(), apps.ReplicaSets()}, "10.0.0.1:6443")
	r := httptest.NewRequest(http.MethodGet, path, nil)
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	service.Handler(http.NotFoundHandler()).ServeHTTP(w, r)
	return w
}

func decode[T any](t *testing.T, w *httptest.ResponseRecorder) T {
	t.Helper()
	var into T
	if err := json.Unmarshal(w.Body.Bytes(), &into); err != nil || w.Code != http.StatusOK {
		t.Fatalf("%d %v: %s", w.Code, err, w.Body)
	}
	return into
}

func TestPlainDiscovery(t *testing.T) {
	if got := decode[metav1.APIVersions](t, get(t, "/api", "")); got.Kind != "APIVersions" || !slices.Equal(got.Versions, []string{"v1"}) || got.ServerAddressByClientCIDRs[0].ServerAddress != "10.0.0.1:6443" {
		t.Errorf("/api: %+v", got)
	}
	if got := decode[metav1.APIGroupList](t, get(t, "/apis/", "")); len(got.Groups) != 1 || got.Groups[0].PreferredVersion.GroupVersion != "apps/v1" {
		t.Errorf("/apis: %+v", got)
	}
	list := decode[metav1.APIResourceList](t, get(t, "/apis/apps/v1", ""))
	at := slices.IndexFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == "deployments" })
	if d := list.APIResources[at]; !d.Namespaced || d.Kind != "Deployment" || d.SingularName != "deployment" || !slices.Equal(d.ShortNames, []string{"deploy"}) || len(d.Verbs) != 8 {
		t.Errorf("deployments: %+v", d)
	}
	at = slices.IndexFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == "deployments/scale" })
	if at < 0 || list.APIResources[at].Kind != "Scale" || list.APIResources[at].Group != "autoscaling" {
		t.Errorf("deployments/scale: %+v", list.APIResources)
	}
	if w := get(t, "/apis/nonsense", ""); w.Code != http.StatusNotFound {
		t.Errorf("an unknown group: %d", w.Code)
	}
}

func TestAggregatedDiscovery(t *testing.T) {
	w := get(t, "/apis", aggregated)
	if got := w.Header().Get("Content-Type"); got != "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList" {
		t.Errorf("content type %q", got)
	}
	list := decode[apidiscovery.APIGroupDiscoveryList](t, w)
	if list.APIVersion != "apidiscovery.k8s.io/v2" || len(list.Items) != 1 || list.Items[0].Name != appsv1.GroupName {
		t.Fatalf("groups: %+v", list)
	}
	deployments := list.Items[0].Versions[0].Resources[0]
	if deployments.Resource != "deployments" || deployments.Scope != apidiscovery.ScopeNamespace || deployments.ResponseKind.Kind != "Deployment" || len(deployments.Subresources) != 2 {
		t.Errorf("deployments: %+v", deployments)
	}
	if again := get(t, "/apis", aggregated, "If-None-Match: "+w.Header().Get("Etag")); again.Code != http.StatusNotModified || again.Body.Len() > 0 {
		t.Errorf("unchanged: %d", again.Code)
	}
	core := decode[apidiscovery.APIGroupDiscoveryList](t, get(t, "/api", aggregated))
	if len(core.Items) != 1 || core.Items[0].Name != "" {
		t.Errorf("core: %+v", core)
	}
	// Who prefers the plain form gets it.
	if plain := decode[metav1.APIGroupList](t, get(t, "/apis", "application/json,"+aggregated)); plain.Kind != "APIGroupList" {
		t.Errorf("plain first: %+v", plain)
	}
	if binary := get(t, "/apis", "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"); !strings.HasPrefix(binary.Body.String(), "k8s\x00") {
		t.Errorf("protobuf: %.20q", binary.Body)
	}
}
