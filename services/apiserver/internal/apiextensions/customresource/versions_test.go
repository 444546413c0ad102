package customresource_test

import (
	"context"
	"slices"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

// twoVersions has v1beta1, deprecated, and v1, which is stored.
func twoVersions() *apiextensionsv1.CustomResourceDefinition {
	d := widgetDefinition()
	old := d.Spec.Versions[0].DeepCopy()
	old.Name, old.Storage, old.Deprecated = "v1beta1", false, true
	old.Schema.OpenAPIV3Schema = mustSchema(`
type: object
properties:
  spec:
    type: object
    properties:
      size: {type: integer}
      legacy: {type: string, default: old}
`)
	d.Spec.Versions = append(d.Spec.Versions, *old)
	return d
}

func TestVersionsWithoutConversionShareObjects(t *testing.T) {
	server := testserver.Start(t)
	d := twoVersions()
	newer := mustDefine(t, server, d).Namespace("default")
	warnings := &recorder{}
	config := rest.CopyConfig(server.Config)
	config.WarningHandler = warnings
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	older := client.Resource(gvr(d, "v1beta1")).Namespace("default")
	ctx := context.Background()
	w, err := older.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if got := warnings.take(); !slices.Equal(got, []string{"example.com/v1beta1 Widget is deprecated; use example.com/v1 Widget"}) {
		t.Errorf("warnings: %q", got)
	}
	if _, err := newer.Create(ctx, widget("a", map[string]any{"size": int64(1)}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	event := <-w.ResultChan()
	if seen := event.Object.(*unstructured.Unstructured); event.Type != watch.Added || seen.GetAPIVersion() != "example.com/v1beta1" || jsonOf(t, seen.Object["spec"]) != `{"legacy":"old","size":1}` {
		t.Errorf("event: %v", event)
	}
	got, err := older.Get(ctx, "a", metav1.GetOptions{})
	if err != nil || jsonOf(t, got.Object["spec"]) != `{"legacy":"old","size":1}` {
		t.Fatalf("in the older version: %v %v", err, got)
	}
	if err := unstructured.SetNestedField(got.Object, int64(2), "spec", "size"); err != nil {
		t.Fatal(err)
	}
	if _, err := older.Update(ctx, got, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err = newer.Get(ctx, "a", metav1.GetOptions{})
	if err != nil || got.GetAPIVersion() != "example.com/v1" || jsonOf(t, got.Object["spec"]) != `{"color":"blue","size":2}` {
		t.Errorf("in the newer version: %v %v", err, got)
	}
	if _, err := older.Create(ctx, widget("b", nil), metav1.CreateOptions{}); !apierrors.IsBadRequest(err) {
		t.Errorf("an object of another version: %v", err)
	}
	if _, err := older.Apply(ctx, "c", object("example.com/v1beta1", "Widget", "c", map[string]any{"size": int64(2)}), metav1.ApplyOptions{FieldManager: "m"}); err != nil {
		t.Errorf("apply in the older version: %v", err)
	}
	got, err = newer.Apply(ctx, "c", widget("c", map[string]any{"color": "red"}), metav1.ApplyOptions{FieldManager: "m"})
	if err != nil || jsonOf(t, got.Object["spec"]) != `{"color":"red"}` {
		t.Errorf("what was applied in the older version and no longer is did not go: %v %v", err, got)
	}
}

func TestStorageVersionChangesAndIsKeptAccountOf(t *testing.T) {
	server := testserver.Start(t)
	d := twoVersions()
	widgets := mustDefine(t, server, d).Namespace("default")
	ctx := context.Background()
	created, err := widgets.Create(ctx, widget("a", map[string]any{"size": int64(1)}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	mustChange(t, server, d.Name, func(d *definitionObject) {
		d.Spec.Versions[0].Storage, d.Spec.Versions[1].Storage = false, true
	})
	client := definitions(t, server).ApiextensionsV1().CustomResourceDefinitions()
	now, err := client.Get(ctx, d.Name, metav1.GetOptions{})
	if err != nil || !slices.Equal(now.Status.StoredVersions, []string{"v1", "v1beta1"}) {
		t.Fatalf("stored versions: %v %v", err, now.Status.StoredVersions)
	}
	var migrated *unstructured.Unstructured
	awaitServed(t, func() bool { // an update that changes nothing migrates
		current, err := widgets.Get(ctx, "a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if migrated, err = widgets.Update(ctx, current, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		return migrated.GetResourceVersion() != created.GetResourceVersion()
	})
	again, err := widgets.Update(ctx, migrated, metav1.UpdateOptions{})
	if err != nil || again.GetResourceVersion() != migrated.GetResourceVersion() {
		t.Errorf("an update that changes nothing was written again: %v", err)
	}
	now, err = client.Get(ctx, d.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	now.Status.StoredVersions = []string{"v1beta1"}
	if _, err := client.UpdateStatus(ctx, now, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	mustChange(t, server, d.Name, func(d *definitionObject) { d.Spec.Versions = d.Spec.Versions[1:] })
	awaitServed(t, func() bool {
		_, err := widgets.Get(ctx, "a", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	if got, err := resource(t, server, d, "v1beta1").Namespace("default").Get(ctx, "a", metav1.GetOptions{}); err != nil {
		t.Errorf("the version that is left: %v %v", err, got)
	}
}
