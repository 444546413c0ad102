package customresource_test

import (
	"context"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

func TestCustomResourceIsServedAtOnce(t *testing.T) {
	server := testserver.Start(t)
	began := time.Now()
	widgets := mustDefine(t, server, widgetDefinition())
	t.Logf("served after %v", time.Since(began))
	ctx := context.Background()
	created, err := widgets.Namespace("default").Create(ctx, widget("one", map[string]any{"size": int64(3), "unknown": "x"}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	spec, _, _ := unstructured.NestedMap(created.Object, "spec")
	if spec["size"] != int64(3) || spec["color"] != "blue" || spec["unknown"] != nil {
		t.Errorf("created spec: %v", spec)
	}
	if created.GetGeneration() != 1 || created.GetUID() == "" {
		t.Errorf("created metadata: %v", created.Object["metadata"])
	}
	w, err := widgets.Namespace("default").Watch(ctx, metav1.ListOptions{ResourceVersion: created.GetResourceVersion()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	got, err := widgets.Namespace("default").Get(ctx, "one", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := unstructured.SetNestedField(got.Object, int64(4), "spec", "size"); err != nil {
		t.Fatal(err)
	}
	updated, err := widgets.Namespace("default").Update(ctx, got, metav1.UpdateOptions{})
	if err != nil || updated.GetGeneration() != 2 {
		t.Fatalf("updated: %v %v", err, updated)
	}
	event := <-w.ResultChan()
	if event.Type != watch.Modified || event.Object.(*unstructured.Unstructured).GetResourceVersion() != updated.GetResourceVersion() {
		t.Errorf("event: %v", event)
	}
	list, err := widgets.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.GetKind() != "WidgetList" || list.Items[0].GetKind() != "Widget" {
		t.Fatalf("list: %v %v", err, list)
	}
	if err := widgets.Namespace("default").Delete(ctx, "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestObjectsAreTakenAsSoonAsTheirKindIsServed(t *testing.T) {
	server := testserver.Start(t)
	ctx := context.Background()
	for i := range 20 {
		d := definition("example.com", "Quick"+string(rune('a'+i)), "type: object")
		if _, err := definitions(t, server).ApiextensionsV1().CustomResourceDefinitions().Create(ctx, d, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		client := resource(t, server, d, "v1").Namespace("default")
		awaitServed(t, func() bool {
			_, err := client.Create(ctx, object("example.com/v1", d.Spec.Names.Kind, "a", nil), metav1.CreateOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				t.Fatal(err)
			}
			return err == nil
		})
	}
}
