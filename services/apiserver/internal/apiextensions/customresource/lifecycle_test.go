package customresource_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

func TestNamesThatAreTakenAreNotAccepted(t *testing.T) {
	server := testserver.Start(t)
	first := widgetDefinition()
	first.Spec.Names.ShortNames = []string{"wd"}
	mustDefine(t, server, first)
	client := definitions(t, server).ApiextensionsV1().CustomResourceDefinitions()
	ctx := context.Background()
	for reason, change := range map[string]func(*apiextensionsv1.CustomResourceDefinitionNames){
		"KindConflict": func(n *apiextensionsv1.CustomResourceDefinitionNames) {
			n.Kind, n.ListKind = "Widget", "OtherWidgetList"
		},
		"ListKindConflict":   func(n *apiextensionsv1.CustomResourceDefinitionNames) { n.ListKind = "WidgetList" },
		"SingularConflict":   func(n *apiextensionsv1.CustomResourceDefinitionNames) { n.Singular = "widgets" },
		"ShortNamesConflict": func(n *apiextensionsv1.CustomResourceDefinitionNames) { n.ShortNames = []string{"wd"} },
	} {
		second := definition("example.com", "Other"+strings.ToLower(reason[:2]), "type: object")
		second.Spec.Names.Plural, second.Name = strings.ToLower(reason), strings.ToLower(reason)+".example.com"
		change(&second.Spec.Names)
		if _, err := client.Create(ctx, second, metav1.CreateOptions{}); err != nil {
			t.Fatalf("%s: %v", reason, err)
		}
		if c := awaitCondition(t, server, second.Name, apiextensionsv1.NamesAccepted, apiextensionsv1.ConditionFalse); c.Reason != reason || !strings.Contains(c.Message, "is already in use") {
			t.Errorf("%s: %+v", reason, c)
		}
		if c := awaitCondition(t, server, second.Name, apiextensionsv1.Established, apiextensionsv1.ConditionFalse); c.Reason != "NotAccepted" {
			t.Errorf("%s: %+v", reason, c)
		}
		if err := client.Delete(ctx, second.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	waiting := definition("example.com", "Waiting", "type: object")
	waiting.Spec.Names.ShortNames = []string{"wd"}
	if _, err := client.Create(ctx, waiting, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitCondition(t, server, waiting.Name, apiextensionsv1.NamesAccepted, apiextensionsv1.ConditionFalse)
	if err := client.Delete(ctx, first.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitCondition(t, server, waiting.Name, apiextensionsv1.Established, apiextensionsv1.ConditionTrue)
}

func TestDefinitionGoesWithItsObjects(t *testing.T) {
	server := testserver.Start(t)
	d := widgetDefinition()
	widgets := mustDefine(t, server, d).Namespace("default")
	ctx := context.Background()
	free, held := widget("free", nil), widget("held", nil)
	held.SetFinalizers([]string{"example.com/hold"})
	for _, obj := range []*unstructured.Unstructured{free, held} {
		if _, err := widgets.Create(ctx, obj, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	w, err := widgets.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	client := definitions(t, server).ApiextensionsV1().CustomResourceDefinitions()
	if err := client.Delete(ctx, d.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c := awaitCondition(t, server, d.Name, apiextensionsv1.Terminating, apiextensionsv1.ConditionTrue)
	if !strings.HasPrefix(c.Reason, "InstanceDeletion") {
		t.Errorf("condition: %+v", c)
	}
	awaitServed(t, func() bool {
		_, err := widgets.Get(ctx, "free", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	if _, err := widgets.Create(ctx, widget("late", nil), metav1.CreateOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "create not allowed while custom resource definition is terminating") {
		t.Errorf("create while it goes: %v", err)
	}
	awaitDefinition(t, server, d.Name, func(d *apiextensionsv1.CustomResourceDefinition) bool {
		for _, c := range d.Status.Conditions {
			if c.Type == apiextensionsv1.Terminating && c.Reason == "InstanceDeletionInProgress" {
				return strings.HasPrefix(c.Message, "CustomResource deletion is in progress")
			}
		}
		return false
	})
	obj, err := widgets.Get(ctx, "held", metav1.GetOptions{})
	if err != nil || obj.GetDeletionTimestamp() == nil {
		t.Fatalf("held: %v %v", err, obj)
	}
	obj.SetFinalizers(nil)
	if _, err := widgets.Update(ctx, obj, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitServed(t, func() bool {
		_, err := client.Get(ctx, d.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	awaitServed(t, func() bool {
		_, err := widgets.List(ctx, metav1.ListOptions{})
		return apierrors.IsNotFound(err)
	})
	deadline := time.After(10 * time.Second)
	for open := true; open; {
		select {
		case _, open = <-w.ResultChan():
		case <-deadline:
			t.Fatal("the watch of what has gone goes on")
		}
	}
	widgets = mustDefine(t, server, d).Namespace("default")
	if list, err := widgets.List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("after it was created again: %v %v", err, list)
	}
}

func TestWatchesSurviveChangesOfTheSchema(t *testing.T) {
	server := testserver.Start(t)
	d := widgetDefinition()
	widgets := mustDefine(t, server, d).Namespace("default")
	ctx := context.Background()
	if _, err := widgets.Create(ctx, widget("a", map[string]any{"size": int64(1)}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w, err := widgets.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	<-w.ResultChan()
	mustChange(t, server, d.Name, func(d *definitionObject) {
		d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["shape"] = *mustSchema("{type: string, default: round}")
	})
	awaitServed(t, func() bool { // of a stored object, on read
		got, err := widgets.Get(ctx, "a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return jsonOf(t, got.Object["spec"]) == `{"color":"blue","shape":"round","size":1}`
	})
	if _, err := widgets.Create(ctx, widget("b", map[string]any{}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	select {
	case event, open := <-w.ResultChan():
		if !open || event.Type != watch.Added || jsonOf(t, event.Object.(*unstructured.Unstructured).Object["spec"]) != `{"color":"blue","shape":"round"}` {
			t.Errorf("event after the change: %v %v", open, event)
		}
	case <-time.After(10 * time.Second):
		t.Error("the watch stands still after the change")
	}
	mustChange(t, server, d.Name, func(d *definitionObject) { // what is no longer known is not shown
		delete(d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties, "size")
	})
	awaitServed(t, func() bool {
		got, err := widgets.Get(ctx, "a", metav1.GetOptions{})
		return err == nil && jsonOf(t, got.Object["spec"]) == `{"color":"blue","shape":"round"}`
	})
}

func TestCustomResourcesAreThereAfterARestart(t *testing.T) {
	dir := t.TempDir()
	server := testserver.StartIn(t, dir)
	d := widgetDefinition()
	widgets := mustDefine(t, server, d).Namespace("default")
	created, err := widgets.Create(context.Background(), widget("a", map[string]any{"size": int64(1)}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	server = testserver.StartIn(t, dir)
	got, err := resource(t, server, d, "v1").Namespace("default").Get(context.Background(), "a", metav1.GetOptions{})
	if err != nil || got.GetResourceVersion() != created.GetResourceVersion() {
		t.Errorf("at once after the restart: %v %v", err, got)
	}
}

func TestSelectableFields(t *testing.T) {
	server := testserver.Start(t)
	d := widgetDefinition()
	d.Spec.Versions[0].SelectableFields = []apiextensionsv1.SelectableField{{JSONPath: ".spec.color"}, {JSONPath: ".spec.size"}}
	widgets := mustDefine(t, server, d).Namespace("default")
	ctx := context.Background()
	w, err := widgets.Watch(ctx, metav1.ListOptions{FieldSelector: "spec.color=red"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for name, spec := range map[string]map[string]any{"a": {"color": "red", "size": int64(1)}, "b": {"size": int64(1)}, "c": {"color": "red", "size": int64(2)}} {
		if _, err := widgets.Create(ctx, widget(name, spec), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for selector, want := range map[string]string{
		"spec.color=red": "a c", "spec.color=blue": "b", "spec.color=red,spec.size=2": "c", "spec.color!=red": "b", "metadata.name=a": "a",
	} {
		list, err := widgets.List(ctx, metav1.ListOptions{FieldSelector: selector})
		if err != nil {
			t.Fatalf("%s: %v", selector, err)
		}
		var names []string
		for _, item := range list.Items {
			names = append(names, item.GetName())
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s selects %q, want %q", selector, got, want)
		}
	}
	if _, err := widgets.List(ctx, metav1.ListOptions{FieldSelector: "spec.shape=x"}); !apierrors.IsBadRequest(err) || !strings.HasSuffix(err.Error(), "field label not supported: spec.shape") {
		t.Errorf("unknown field: %v", err)
	}
	var seen []string
	for len(seen) < 2 {
		event := <-w.ResultChan()
		seen = append(seen, event.Object.(*unstructured.Unstructured).GetName())
	}
	slices.Sort(seen)
	if !slices.Equal(seen, []string{"a", "c"}) {
		t.Errorf("watched: %v", seen)
	}
	mustChange(t, server, d.Name, func(d *definitionObject) { d.Spec.Versions[0].SelectableFields = nil })
	awaitServed(t, func() bool {
		_, err := widgets.List(ctx, metav1.ListOptions{FieldSelector: "spec.size=2"})
		return apierrors.IsBadRequest(err) && strings.HasSuffix(err.Error(), "field label not supported: spec.size")
	})
}

func TestCollectionsOfCustomResourcesAreDeleted(t *testing.T) {
	server := testserver.Start(t)
	widgets := mustDefine(t, server, widgetDefinition()).Namespace("default")
	ctx := context.Background()
	for _, name := range []string{"a", "b", "c"} {
		obj := widget(name, nil)
		obj.SetLabels(map[string]string{"keep": map[bool]string{true: "yes", false: "no"}[name == "c"]})
		if _, err := widgets.Create(ctx, obj, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := widgets.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "keep=no"}); err != nil {
		t.Fatal(err)
	}
	list, err := widgets.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].GetName() != "c" {
		t.Errorf("left: %v %v", err, list)
	}
}

func TestScopeOfCustomResources(t *testing.T) {
	server := testserver.Start(t)
	d := definition("example.com", "World", "type: object")
	d.Spec.Scope = apiextensionsv1.ClusterScoped
	worlds := mustDefine(t, server, d)
	ctx := context.Background()
	if _, err := worlds.Create(ctx, object("example.com/v1", "World", "a", nil), metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := worlds.Namespace("default").Get(ctx, "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("in a namespace: %v", err)
	}
	client := server.Dynamic(t)
	if _, err := client.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v2", Resource: "worlds"}).List(ctx, metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("unknown version: %v", err)
	}
}
