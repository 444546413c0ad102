package conformance

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
)

var definitionWatch = map[string]func(*testing.T){
	"CustomResourceDefinition Watch watch on custom resource definition objects": watchCustomResources,
}

var definitionResources = map[string]func(*testing.T){
	"Simple CustomResourceDefinition creating/deleting custom resource definition objects works": func(t *testing.T) {
		crd := newDefinition(t, nil)
		must(t, definitionsAPI().Delete(t.Context(), crd.Name, metav1.DeleteOptions{}))
		awaitNoDefinition(t, crd.Name)
	},
	"Simple CustomResourceDefinition listing custom resource definition objects works":                               listDefinitions,
	"Simple CustomResourceDefinition getting/updating/patching custom resource definition status sub-resource works": definitionStatus,
	"custom resource defaulting for requests and from storage works":                                                 defaulting,
	"should include custom resource definition resources in discovery documents":                                     definitionsAreDiscovered,
}

func definitionsAPI() definitionInterface {
	return definitions.ApiextensionsV1().CustomResourceDefinitions()
}

type definitionInterface interface {
	Create(context.Context, *apiextensionsv1.CustomResourceDefinition, metav1.CreateOptions) (*apiextensionsv1.CustomResourceDefinition, error)
	Update(context.Context, *apiextensionsv1.CustomResourceDefinition, metav1.UpdateOptions) (*apiextensionsv1.CustomResourceDefinition, error)
	UpdateStatus(context.Context, *apiextensionsv1.CustomResourceDefinition, metav1.UpdateOptions) (*apiextensionsv1.CustomResourceDefinition, error)
	Delete(context.Context, string, metav1.DeleteOptions) error
	DeleteCollection(context.Context, metav1.DeleteOptions, metav1.ListOptions) error
	Get(context.Context, string, metav1.GetOptions) (*apiextensionsv1.CustomResourceDefinition, error)
	List(context.Context, metav1.ListOptions) (*apiextensionsv1.CustomResourceDefinitionList, error)
	Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (*apiextensionsv1.CustomResourceDefinition, error)
}

// definition is a definition of namespaced objects with one version, v1, whose
// schema keeps what it does not know.
func definition() *apiextensionsv1.CustomResourceDefinition {
	name := strings.ReplaceAll(unique("boat"), "-", "")
	group := unique("group") + ".conformance.example.com"
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: name + "s." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names:    apiextensionsv1.CustomResourceDefinitionNames{Plural: name + "s", Singular: name, Kind: strings.ToUpper(name[:1]) + name[1:], ListKind: strings.ToUpper(name[:1]) + name[1:] + "List"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true, Schema: openSchema()}},
		},
	}
}

func openSchema() *apiextensionsv1.CustomResourceValidation {
	return objectSchema(apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)})
}

func objectSchema(props apiextensionsv1.JSONSchemaProps) *apiextensionsv1.CustomResourceValidation {
	return &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &props}
}

// newDefinition makes a definition of the test's own, in a group of its own,
// and waits until it is established.
func newDefinition(t *testing.T, change func(*apiextensionsv1.CustomResourceDefinition)) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crd := definition()
	if change != nil {
		change(crd)
	}
	created := got(definitionsAPI().Create(t.Context(), crd, metav1.CreateOptions{}))(t)
	deleteAfter(t, crd.Name, func(ctx context.Context) error {
		return definitionsAPI().Delete(ctx, crd.Name, metav1.DeleteOptions{})
	})
	eventually(t, crd.Name+" to be established", func(ctx context.Context) (bool, error) {
		read, err := definitionsAPI().Get(ctx, crd.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, condition := range read.Status.Conditions {
			if condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue {
				return true, nil
			}
		}
		return false, nil
	})
	return created
}

func awaitNoDefinition(t *testing.T, name string) {
	t.Helper()
	eventually(t, name+" to be gone", func(ctx context.Context) (bool, error) {
		_, err := definitionsAPI().Get(ctx, name, metav1.GetOptions{})
		return gone(err), nil
	})
}

// instances is the interface to a definition's objects in one version.
func instances(crd *apiextensionsv1.CustomResourceDefinition, version, namespace string) dynamic.ResourceInterface {
	resource := dynamics.Resource(schema.GroupVersionResource{Group: crd.Spec.Group, Version: version, Resource: crd.Spec.Names.Plural})
	if crd.Spec.Scope == apiextensionsv1.ClusterScoped {
		return resource
	}
	return resource.Namespace(namespace)
}

// instance is an object of a definition.
func instance(crd *apiextensionsv1.CustomResourceDefinition, version, name string, fields map[string]any) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{}}
	for key, value := range fields {
		object.Object[key] = value
	}
	object.SetAPIVersion(crd.Spec.Group + "/" + version)
	object.SetKind(crd.Spec.Names.Kind)
	object.SetName(name)
	return object
}

// eventuallyHas waits until the text has all parts.
func eventuallyHas(t *testing.T, text func() string, parts ...string) {
	t.Helper()
	eventually(t, strings.Join(parts, ", ")+" to appear", func(context.Context) (bool, error) {
		read := text()
		for _, part := range parts {
			if !strings.Contains(read, part) {
				return false, nil
			}
		}
		return true, nil
	})
}

func watchCustomResources(t *testing.T) {
	crd := newDefinition(t, func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Spec.Scope = apiextensionsv1.ClusterScoped })
	api := instances(crd, "v1", "")
	watchNamed := func(name string) watch.Interface {
		w := got(api.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name}))(t)
		t.Cleanup(w.Stop)
		return w
	}
	a, b := watchNamed("name1"), watchNamed("name2")
	for name, w := range map[string]watch.Interface{"name1": a, "name2": b} {
		got(api.Create(t.Context(), instance(crd, "v1", name, map[string]any{"content": map[string]any{"key": "value"}}), metav1.CreateOptions{}))(t)
		awaitEvent(t, w, watch.Added, nil)
		got(api.Patch(t.Context(), name, types.MergePatchType, []byte(`{"dummy":"test"}`), metav1.PatchOptions{}))(t)
		awaitEvent(t, w, watch.Modified, nil)
		must(t, api.Delete(t.Context(), name, metav1.DeleteOptions{}))
		awaitEvent(t, w, watch.Deleted, nil)
	}
	for _, w := range []watch.Interface{a, b} {
		select {
		case event := <-w.ResultChan():
			t.Errorf("one event too many: %v", event)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func listDefinitions(t *testing.T) {
	test := unique("list")
	for range 10 {
		newDefinition(t, func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Labels = testLabels(test) })
	}
	if list := got(definitionsAPI().List(t.Context(), labelled(test)))(t); len(list.Items) != 10 {
		t.Errorf("listing gives %d definitions, not 10", len(list.Items))
	}
	must(t, definitionsAPI().DeleteCollection(t.Context(), metav1.DeleteOptions{}, labelled(test)))
	eventually(t, "the definitions to be gone", func(ctx context.Context) (bool, error) {
		list, err := definitionsAPI().List(ctx, labelled(test))
		return err == nil && len(list.Items) == 0, err
	})
}

func definitionStatus(t *testing.T) {
	crd := newDefinition(t, nil)
	resource := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	status := got(dynamics.Resource(resource).Get(t.Context(), crd.Name, metav1.GetOptions{}, "status"))(t)
	if status.GetName() != crd.Name {
		t.Errorf("reading status gives %q", status.GetName())
	}
	condition := apiextensionsv1.CustomResourceDefinitionCondition{Type: "StatusUpdate", Status: apiextensionsv1.ConditionTrue, Reason: "E2E", Message: "Set by a test"}
	eventually(t, "the status update", func(ctx context.Context) (bool, error) {
		read, err := definitionsAPI().Get(ctx, crd.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		read.Status.Conditions = append(read.Status.Conditions, condition)
		read, err = definitionsAPI().UpdateStatus(ctx, read, metav1.UpdateOptions{})
		return err == nil && hasCondition(read, condition.Type), nil
	})
	patch := `[{"op":"add","path":"/status/conditions/-","value":{"type":"StatusPatched","status":"True","reason":"E2E","message":"by patch"}}]`
	patched := got(definitionsAPI().Patch(t.Context(), crd.Name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{}, "status"))(t)
	if !hasCondition(patched, "StatusPatched") {
		t.Errorf("conditions after the patch are %+v", patched.Status.Conditions)
	}
}

func hasCondition(crd *apiextensionsv1.CustomResourceDefinition, kind apiextensionsv1.CustomResourceDefinitionConditionType) bool {
	for _, condition := range crd.Status.Conditions {
		if condition.Type == kind && condition.Status == apiextensionsv1.ConditionTrue {
			return true
		}
	}
	return false
}

// defaulting asserts that a new default fills requests at once, and objects
// that were stored before it.
func defaulting(t *testing.T) {
	crd := newDefinition(t, func(crd *apiextensionsv1.CustomResourceDefinition) {
		crd.Spec.Scope = apiextensionsv1.ClusterScoped
		crd.Spec.Versions[0].Schema = objectSchema(apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
			"a": {Type: "string"}, "b": {Type: "string"}, "c": {Type: "string"},
		}})
	})
	api := instances(crd, "v1", "")
	name := unique("stored")
	stored := got(api.Create(t.Context(), instance(crd, "v1", name, nil), metav1.CreateOptions{}))(t)
	if _, found := stored.Object["a"]; found {
		t.Error("a is set before there is a default")
	}
	patch := `[{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/properties/a/default","value":"A"},{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/properties/b/default","value":"B"}]`
	got(definitionsAPI().Patch(t.Context(), crd.Name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{}))(t)
	eventually(t, "the stored object to show defaults", func(ctx context.Context) (bool, error) {
		read, err := api.Get(ctx, name, metav1.GetOptions{})
		return err == nil && read.Object["a"] == "A" && read.Object["b"] == "B", err
	})
	other := got(api.Create(t.Context(), instance(crd, "v1", unique("made"), map[string]any{"b": "own"}), metav1.CreateOptions{}))(t)
	if other.Object["a"] != "A" || other.Object["b"] != "own" {
		t.Errorf("a new object has a=%v b=%v", other.Object["a"], other.Object["b"])
	}
	patch = `[{"op":"remove","path":"/spec/versions/0/schema/openAPIV3Schema/properties/a/default"},{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/properties/c/default","value":"C"}]`
	got(definitionsAPI().Patch(t.Context(), crd.Name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{}))(t)
	eventually(t, "defaults to follow the definition", func(ctx context.Context) (bool, error) {
		read, err := api.Get(ctx, name, metav1.GetOptions{})
		return err == nil && read.Object["a"] == nil && read.Object["b"] == "B" && read.Object["c"] == "C", err
	})
	if read := got(api.Get(t.Context(), other.GetName(), metav1.GetOptions{}))(t); read.Object["a"] != "A" {
		t.Errorf("a default that was stored reads %v after its removal", read.Object["a"])
	}
}

func definitionsAreDiscovered(t *testing.T) {
	ctx := t.Context()
	var groups metav1.APIGroupList
	must(t, json.Unmarshal(got(client.Discovery().RESTClient().Get().AbsPath("/apis").SetHeader("Accept", "application/json").DoRaw(ctx))(t), &groups))
	var listed *metav1.APIGroup
	for i := range groups.Groups {
		if groups.Groups[i].Name == "apiextensions.k8s.io" {
			listed = &groups.Groups[i]
		}
	}
	if listed == nil {
		t.Fatal("apiextensions.k8s.io is not among /apis")
	}
	var group metav1.APIGroup
	must(t, json.Unmarshal(got(client.Discovery().RESTClient().Get().AbsPath("/apis/apiextensions.k8s.io").DoRaw(ctx))(t), &group))
	if !apiequality.Semantic.DeepEqual(group.Versions, listed.Versions) {
		t.Errorf("the group's document has versions %v, /apis has %v", group.Versions, listed.Versions)
	}
	list := got(client.Discovery().ServerResourcesForGroupVersion("apiextensions.k8s.io/v1"))(t)
	if !hasResource(list, "customresourcedefinitions") {
		t.Error("customresourcedefinitions are not in apiextensions.k8s.io/v1")
	}
}
