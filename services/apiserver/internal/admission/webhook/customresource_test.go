package webhook_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

// serveGadgets defines a kind of two versions, which is stored as v2, and waits
// until it is served.
func serveGadgets(t testing.TB, s *testserver.Server) dynamic.Interface {
	t.Helper()
	version := func(name string, stored string) string {
		return "{name: " + name + ", served: true, storage: " + stored + `, schema: {openAPIV3Schema: {type: object, properties: {data: {type: object, properties: {
			a: {type: string}, b: {type: string}, size: {type: integer, default: 1}}}}}}}`
	}
	crd := object(t, `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: gadgets.example.com}, spec: {group: example.com, scope: Namespaced,
		names: {plural: gadgets, singular: gadget, kind: Gadget}, versions: [`+version("v1", "false")+", "+version("v2", "true")+"]}}")
	client := s.Dynamic(t)
	definitions := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	if _, err := definitions.Create(t.Context(), crd, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	deadline, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for {
		_, err := client.Resource(gadgets("v1")).List(deadline, metav1.ListOptions{})
		if err == nil {
			return client
		}
		if !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
}

func gadgets(version string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "example.com", Version: version, Resource: "gadgets"}
}

func object(t testing.TB, document string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(document), &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

func gadget(t testing.TB, version, name string) *unstructured.Unstructured {
	t.Helper()
	return object(t, "{apiVersion: example.com/"+version+", kind: Gadget, metadata: {name: "+name+"}, data: {a: x}}")
}

func TestCustomResourcesAreMutatedAndPruned(t *testing.T) {
	s := testserver.Start(t)
	client := serveGadgets(t, s).Resource(gadgets("v2")).Namespace("default")
	h := newHook(t, patching(`[{"op":"add","path":"/data/b","value":"mutated"},{"op":"add","path":"/data/unknown","value":"pruned"}]`))
	mutating(t, s.Client, "m", h.Server, rule("example.com", "v2", "gadgets", creating), nil)
	got, err := client.Create(t.Context(), gadget(t, "v2", "g"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	data, _, _ := unstructured.NestedMap(got.Object, "data")
	if len(data) != 3 || data["a"] != "x" || data["b"] != "mutated" || data["size"] != int64(1) {
		t.Errorf("data %v", data)
	}
}

func TestCustomResourcesMatchInOtherVersions(t *testing.T) {
	s := testserver.Start(t)
	client := serveGadgets(t, s)
	h := newHook(t, func(r *request) *response {
		var seen struct{ APIVersion string }
		_ = json.Unmarshal(r.Object.Raw, &seen)
		return patching(`[{"op":"add","path":"/data/b","value":"` + seen.APIVersion + `"}]`)(r)
	})
	mutating(t, s.Client, "m", h.Server, rule("example.com", "v2", "gadgets", creating), nil)
	exact := newHook(t, nil)
	validating(t, s.Client, "exact", exact.Server, rule("example.com", "v2", "gadgets", creating), func(w *admissionregistrationv1.ValidatingWebhook) {
		policy := admissionregistrationv1.Exact
		w.MatchPolicy = &policy
	})
	got, err := client.Resource(gadgets("v1")).Namespace("default").Create(t.Context(), gadget(t, "v1", "g"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if b, _, _ := unstructured.NestedString(got.Object, "data", "b"); b != "example.com/v2" || got.GetAPIVersion() != "example.com/v1" {
		t.Errorf("object %v", got.Object)
	}
	asked := h.requests()
	if len(asked) != 1 || asked[0].Kind.Version != "v2" || asked[0].RequestKind.Version != "v1" || asked[0].Resource.Version != "v2" {
		t.Errorf("asked %+v", asked)
	}
	if n := len(exact.requests()); n != 0 {
		t.Errorf("Exact was asked %d times", n)
	}
}
