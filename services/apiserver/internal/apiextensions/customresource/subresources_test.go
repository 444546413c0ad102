package customresource_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

const fleetSchema = `
type: object
properties:
  spec:
    type: object
    properties:
      count: {type: integer}
      note: {type: string}
  status:
    type: object
    properties:
      count: {type: integer, maximum: 100}
      selector: {type: string}
`

func fleetDefinition() *apiextensionsv1.CustomResourceDefinition {
	d := definition("example.com", "Fleet", fleetSchema)
	selector := ".status.selector"
	d.Spec.Versions[0].Subresources.Scale = &apiextensionsv1.CustomResourceSubresourceScale{
		SpecReplicasPath: ".spec.count", StatusReplicasPath: ".status.count", LabelSelectorPath: &selector,
	}
	d.Spec.Versions[0].AdditionalPrinterColumns = []apiextensionsv1.CustomResourceColumnDefinition{
		{Name: "Wanted", Type: "integer", JSONPath: ".spec.count", Description: "how many"},
		{Name: "Note", Type: "string", JSONPath: ".spec.note", Priority: 1},
		{Name: "Age", Type: "date", JSONPath: ".metadata.creationTimestamp"},
	}
	return d
}

func fleet(name string, count int64) *unstructured.Unstructured {
	return object("example.com/v1", "Fleet", name, map[string]any{"count": count})
}

func TestStatusAndSpecOfCustomResourcesAreApart(t *testing.T) {
	server := testserver.Start(t)
	fleets := mustDefine(t, server, fleetDefinition()).Namespace("default")
	ctx := context.Background()
	obj := fleet("a", 1)
	obj.Object["status"] = map[string]any{"count": int64(5)}
	created, err := fleets.Create(ctx, obj, metav1.CreateOptions{})
	if err != nil || created.Object["status"] != nil {
		t.Fatalf("a create set the status: %v %v", err, created)
	}
	created.Object["status"] = map[string]any{"count": int64(5), "selector": "a=b"}
	created.Object["spec"] = map[string]any{"count": int64(7)}
	created.SetLabels(map[string]string{"x": "y"})
	updated, err := fleets.UpdateStatus(ctx, created, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := jsonOf(t, []any{updated.Object["spec"], updated.Object["status"], updated.GetLabels(), updated.GetGeneration()}); got != `[{"count":1},{"count":5,"selector":"a=b"},null,1]` {
		t.Errorf("after the status update: %s", got)
	}
	updated.Object["status"] = map[string]any{"count": int64(101)}
	if _, err := fleets.UpdateStatus(ctx, updated, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "status.count") {
		t.Errorf("invalid status: %v", err)
	}
	updated.Object["spec"] = map[string]any{"count": int64(2)}
	updated, err = fleets.Update(ctx, updated, metav1.UpdateOptions{})
	if err != nil || jsonOf(t, updated.Object["status"]) != `{"count":5,"selector":"a=b"}` || updated.GetGeneration() != 2 {
		t.Errorf("an update changed the status: %v %v", err, updated)
	}
	applied := object("example.com/v1", "Fleet", "a", nil)
	delete(applied.Object, "spec")
	applied.Object["status"] = map[string]any{"count": int64(6)}
	updated, err = fleets.ApplyStatus(ctx, "a", applied, metav1.ApplyOptions{FieldManager: "m", Force: true})
	if err != nil || jsonOf(t, updated.Object["status"]) != `{"count":6,"selector":"a=b"}` {
		t.Errorf("applied status: %v %v", err, updated)
	}
}

func TestScaleOfCustomResources(t *testing.T) {
	server := testserver.Start(t)
	fleets := mustDefine(t, server, fleetDefinition()).Namespace("default")
	ctx := context.Background()
	obj, err := fleets.Create(ctx, fleet("a", 1), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	obj.Object["status"] = map[string]any{"count": int64(5), "selector": "a=b"}
	if _, err := fleets.UpdateStatus(ctx, obj, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	scaleOf := func(u *unstructured.Unstructured, err error) *autoscalingv1.Scale {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		s := &autoscalingv1.Scale{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := scaleOf(fleets.Get(ctx, "a", metav1.GetOptions{}, "scale"))
	if s.Spec.Replicas != 1 || s.Status.Replicas != 5 || s.Status.Selector != "a=b" {
		t.Errorf("scale: %+v", s)
	}
	s = scaleOf(fleets.Patch(ctx, "a", types.MergePatchType, []byte(`{"spec":{"replicas":4}}`), metav1.PatchOptions{FieldManager: "scaler"}, "scale"))
	if s.Spec.Replicas != 4 {
		t.Errorf("patched scale: %+v", s)
	}
	got, err := fleets.Get(ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n, _, _ := unstructured.NestedInt64(got.Object, "spec", "count"); n != 4 || got.GetGeneration() != 2 {
		t.Errorf("scaled object: %v", got)
	}
	managed := jsonOf(t, got.GetManagedFields())
	if !strings.Contains(managed, `"manager":"scaler"`) || !strings.Contains(managed, `"f:spec":{"f:count":{}}`) {
		t.Errorf("managed fields: %s", managed)
	}
	empty := object("example.com/v1", "Fleet", "b", map[string]any{})
	if _, err := fleets.Create(ctx, empty, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := fleets.Get(ctx, "b", metav1.GetOptions{}, "scale"); err == nil || !strings.Contains(err.Error(), `".spec.count" does not exist`) {
		t.Errorf("scale without replicas: %v", err)
	}
	if _, err := fleets.Get(ctx, "b", metav1.GetOptions{}, "nothing"); !apierrors.IsNotFound(err) {
		t.Errorf("unknown subresource: %v", err)
	}
}

func TestPrintedColumnsAndMetadataOfCustomResources(t *testing.T) {
	server := testserver.Start(t)
	fleets := mustDefine(t, server, fleetDefinition()).Namespace("default")
	ctx := context.Background()
	obj := fleet("a", 3)
	obj.SetLabels(map[string]string{"app": "x"})
	if _, err := fleets.Create(ctx, obj, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	get := func(path, accept string) []byte {
		t.Helper()
		data, err := server.Client.Discovery().RESTClient().Get().AbsPath("/apis/example.com/v1/"+path).SetHeader("Accept", accept).DoRaw(ctx)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		return data
	}
	var table metav1.Table
	if err := json.Unmarshal(get("fleets", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"), &table); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range table.ColumnDefinitions {
		names = append(names, c.Name)
	}
	if got := strings.Join(names, " "); got != "Name Wanted Note Age" || len(table.Rows) != 1 {
		t.Fatalf("table: %s %v", got, table.Rows)
	}
	if cells := table.Rows[0].Cells; cells[0] != "a" || cells[1] != float64(3) || cells[2] != nil || !strings.HasSuffix(cells[3].(string), "s") {
		t.Errorf("cells: %v", cells)
	}
	for _, accept := range []string{
		"application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
	} {
		data := get("namespaces/default/fleets/a", accept)
		if strings.Contains(accept, "protobuf") {
			if !strings.HasPrefix(string(data), "k8s\x00") {
				t.Errorf("no protobuf: %q", data)
			}
			continue
		}
		var partial metav1.PartialObjectMetadata
		if err := json.Unmarshal(data, &partial); err != nil || partial.Labels["app"] != "x" || partial.Kind != "PartialObjectMetadata" {
			t.Errorf("partial: %v %s", err, data)
		}
	}
	if data := get("fleets", "application/vnd.kubernetes.protobuf,application/json"); !strings.Contains(string(data), `"FleetList"`) {
		t.Errorf("list: %s", data)
	}
	err := server.Client.Discovery().RESTClient().Get().AbsPath("/apis/example.com/v1/fleets").SetHeader("Accept", "application/vnd.kubernetes.protobuf").Do(ctx).Error()
	if !apierrors.IsNotAcceptable(err) {
		t.Errorf("protobuf alone: %v", err)
	}
}
