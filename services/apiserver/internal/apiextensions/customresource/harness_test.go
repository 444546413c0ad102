package customresource_test

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/yaml"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

// widgetDefinition is a kind with one version, some defaults and a status.
func widgetDefinition() *apiextensionsv1.CustomResourceDefinition {
	return definition("example.com", "Widget", `
type: object
properties:
  spec:
    type: object
    properties:
      size: {type: integer, minimum: 0}
      color: {type: string, default: blue}
  status:
    type: object
    properties:
      ready: {type: boolean}
`)
}

// definition is one of a namespaced kind, v1, with the schema in YAML.
func definition(group, kind, schemaYAML string) *apiextensionsv1.CustomResourceDefinition {
	singular := string(kind[0]+'a'-'A') + kind[1:]
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: singular + "s." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: singular + "s", Singular: singular, Kind: kind},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema:       &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: mustSchema(schemaYAML)},
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
			}},
		},
	}
}

func mustSchema(text string) *apiextensionsv1.JSONSchemaProps {
	data, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		panic(err)
	}
	s := &apiextensionsv1.JSONSchemaProps{}
	if err := json.Unmarshal(data, s); err != nil {
		panic(err)
	}
	return s
}

func definitions(t testing.TB, server *testserver.Server) apiextensions.Interface {
	t.Helper()
	client, err := apiextensions.NewForConfig(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// mustDefine creates a definition and waits until it is established.
func mustDefine(t testing.TB, server *testserver.Server, d *apiextensionsv1.CustomResourceDefinition) dynamic.NamespaceableResourceInterface {
	t.Helper()
	if _, err := definitions(t, server).ApiextensionsV1().CustomResourceDefinitions().Create(context.Background(), d, metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating %s: %v", d.Name, err)
	}
	awaitCondition(t, server, d.Name, apiextensionsv1.Established, apiextensionsv1.ConditionTrue)
	return resource(t, server, d, d.Spec.Versions[0].Name)
}

func resource(t testing.TB, server *testserver.Server, d *apiextensionsv1.CustomResourceDefinition, version string) dynamic.NamespaceableResourceInterface {
	t.Helper()
	return server.Dynamic(t).Resource(gvr(d, version))
}

func awaitCondition(t testing.TB, server *testserver.Server, name string, kind apiextensionsv1.CustomResourceDefinitionConditionType, status apiextensionsv1.ConditionStatus) *apiextensionsv1.CustomResourceDefinitionCondition {
	t.Helper()
	var found *apiextensionsv1.CustomResourceDefinitionCondition
	awaitDefinition(t, server, name, func(d *apiextensionsv1.CustomResourceDefinition) bool {
		for i := range d.Status.Conditions {
			if c := &d.Status.Conditions[i]; c.Type == kind && c.Status == status {
				found = c
				return true
			}
		}
		return false
	})
	return found
}

// awaitDefinition watches a definition until it is as wanted.
func awaitDefinition(t testing.TB, server *testserver.Server, name string, wanted func(*apiextensionsv1.CustomResourceDefinition) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	w, err := definitions(t, server).ApiextensionsV1().CustomResourceDefinitions().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	var last any
	for event := range w.ResultChan() {
		d, ok := event.Object.(*apiextensionsv1.CustomResourceDefinition)
		if ok && wanted(d) {
			return
		}
		last = event.Object
	}
	t.Fatalf("definition %s is not as wanted: %+v", name, last)
}

func widget(name string, spec map[string]any) *unstructured.Unstructured {
	return object("example.com/v1", "Widget", name, spec)
}

func object(version, kind, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": version, "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec,
	}}
}

func gvr(d *apiextensionsv1.CustomResourceDefinition, version string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: d.Spec.Group, Version: version, Resource: d.Spec.Names.Plural}
}

func jsonOf(t testing.TB, value any) string {
	t.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// recorder keeps the warnings that a client gets.
type recorder struct {
	mu   sync.Mutex
	list []string
}

// HandleWarningHeader implements rest.WarningHandler.
func (r *recorder) HandleWarningHeader(_ int, _ string, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, text)
}

func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.list
	r.list = nil
	return list
}

type definitionObject = apiextensionsv1.CustomResourceDefinition

// mustChange updates a definition.
func mustChange(t testing.TB, server *testserver.Server, name string, change func(*definitionObject)) {
	t.Helper()
	client := definitions(t, server).ApiextensionsV1().CustomResourceDefinitions()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		d, err := client.Get(context.Background(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(d)
		_, err = client.Update(context.Background(), d, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatalf("changing %s: %v", name, err)
	}
}

// awaitServed waits until what is served is as wanted.
func awaitServed(t testing.TB, wanted func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !wanted() {
		select {
		case <-deadline:
			t.Fatal("it is not served as wanted after 10 s")
		case <-tick.C:
		}
	}
}
