package customresource_test

import (
	"context"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

const gadgetSchema = `
type: object
required: [spec]
properties:
  spec:
    type: object
    properties:
      size: {type: integer, minimum: 1, maximum: 10}
      port: {x-kubernetes-int-or-string: true}
      at: {type: string, format: date-time}
      kind: {type: string, enum: [a, b]}
      name: {type: string, pattern: '^[a-z]+$', maxLength: 5}
      maybe: {type: string, nullable: true}
      never: {type: string}
      filled: {type: string, nullable: true, default: full}
      open: {type: object, x-kubernetes-preserve-unknown-fields: true}
      inner:
        type: object
        x-kubernetes-embedded-resource: true
        x-kubernetes-preserve-unknown-fields: true
      set: {type: array, x-kubernetes-list-type: set, items: {type: string}}
      map:
        type: array
        x-kubernetes-list-type: map
        x-kubernetes-list-map-keys: [key]
        items:
          type: object
          required: [key]
          properties:
            key: {type: string}
            value: {type: string}
            extra: {type: string, default: none}
  status:
    type: object
    properties:
      phase: {type: string}
`

func gadget(name string, spec map[string]any) *unstructured.Unstructured {
	return object("example.com/v1", "Gadget", name, spec)
}

func TestSchemaDecidesWhatIsStored(t *testing.T) {
	server := testserver.Start(t)
	gadgets := mustDefine(t, server, definition("example.com", "Gadget", gadgetSchema)).Namespace("default")
	for _, test := range []struct {
		name string
		spec map[string]any
		want string // in the message of a 422, "" where it is taken
	}{
		{"minimum", map[string]any{"size": int64(0)}, "spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1"},
		{"type", map[string]any{"size": "x"}, "spec.size: Invalid value"},
		{"enum", map[string]any{"kind": "c"}, `spec.kind: Unsupported value: "c": supported values: "a", "b"`},
		{"pattern", map[string]any{"name": "A"}, "spec.name: Invalid value"},
		{"length", map[string]any{"name": "abcdef"}, "spec.name: Too long"},
		{"format", map[string]any{"at": "yesterday"}, "spec.at: Invalid value"},
		{"bool-port", map[string]any{"port": true}, "spec.port: Invalid value"},
		{"set", map[string]any{"set": []any{"a", "a"}}, `spec.set[1]: Duplicate value: "a"`},
		{"map", map[string]any{"map": []any{map[string]any{"key": "a"}, map[string]any{"key": "a"}}}, "spec.map[1]: Duplicate value"},
		{"embedded", map[string]any{"inner": map[string]any{"apiVersion": "v1", "metadata": map[string]any{"name": "x"}}}, "spec.inner.kind: Required value"},
		{"int-port", map[string]any{"port": int64(80)}, ""},
		{"string-port", map[string]any{"port": "80%"}, ""},
		{"good-time", map[string]any{"at": "2026-01-02T03:04:05Z"}, ""},
	} {
		_, err := gadgets.Create(context.Background(), gadget(test.name, test.spec), metav1.CreateOptions{})
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s: %v", test.name, err)
		case test.want != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: %v, want %s", test.name, err, test.want)
		}
	}
	_, err := gadgets.Create(context.Background(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Gadget", "metadata": map[string]any{"name": "no-spec"},
	}}, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec: Required value") {
		t.Errorf("required: %v", err)
	}
}

func TestPruningKeepsWhatTheSchemaKnows(t *testing.T) {
	server := testserver.Start(t)
	gadgets := mustDefine(t, server, definition("example.com", "Gadget", gadgetSchema)).Namespace("default")
	created, err := gadgets.Create(context.Background(), gadget("a", map[string]any{
		"size": int64(1), "gone": "x", "maybe": nil, "never": nil, "filled": nil,
		"open":  map[string]any{"any": map[string]any{"thing": int64(1)}},
		"inner": map[string]any{"apiVersion": "v1", "kind": "Thing", "metadata": map[string]any{"name": "x", "bogus": "y"}, "free": true},
		"map":   []any{map[string]any{"key": "k", "other": "gone"}},
	}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"filled":null,"inner":{"apiVersion":"v1","free":true,"kind":"Thing","metadata":{"name":"x"}},"map":[{"extra":"none","key":"k"}],"maybe":null,"open":{"any":{"thing":1}},"size":1}`
	if got := jsonOf(t, created.Object["spec"]); got != want {
		t.Errorf("stored\n%s\nwant\n%s", got, want)
	}
}

func TestFieldValidationOfCustomResources(t *testing.T) {
	server := testserver.Start(t)
	d := definition("example.com", "Gadget", gadgetSchema)
	mustDefine(t, server, d)
	warnings := &recorder{}
	config := rest.CopyConfig(server.Config)
	config.WarningHandler = warnings
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	gadgets := client.Resource(gvr(d, "v1")).Namespace("default")
	ctx := context.Background()
	bad := map[string]any{"size": int64(1), "unknown": "x", "inner": map[string]any{"apiVersion": "v1", "kind": "A", "metadata": map[string]any{"bogus": "y"}}}
	_, err = gadgets.Create(ctx, gadget("a", bad), metav1.CreateOptions{FieldValidation: "Strict"})
	if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), `strict decoding error: unknown field "spec.unknown", unknown field "spec.inner.metadata.bogus"`) {
		t.Errorf("strict: %v", err)
	}
	if _, err := gadgets.Create(ctx, gadget("a", bad), metav1.CreateOptions{FieldValidation: "Warn"}); err != nil {
		t.Errorf("warn: %v", err)
	}
	if got := warnings.take(); len(got) != 2 || got[0] != `unknown field "spec.unknown"` {
		t.Errorf("warnings: %q", got)
	}
	if _, err := gadgets.Create(ctx, gadget("b", bad), metav1.CreateOptions{FieldValidation: "Ignore"}); err != nil || len(warnings.take()) != 0 {
		t.Errorf("ignore: %v", err)
	}
	_, err = gadgets.Patch(ctx, "a", types.MergePatchType, []byte(`{"spec":{"more":1}}`), metav1.PatchOptions{FieldValidation: "Strict"})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), `unknown field "spec.more"`) {
		t.Errorf("strict patch: %v", err)
	}
	if _, err := gadgets.Patch(ctx, "a", types.MergePatchType, []byte(`{"spec":{"more":1}}`), metav1.PatchOptions{}); err != nil {
		t.Errorf("patch: %v", err)
	}
	if got := warnings.take(); len(got) != 1 || got[0] != `unknown field "spec.more"` {
		t.Errorf("patch warnings: %q", got)
	}
	duplicate := []byte(`{"apiVersion":"example.com/v1","kind":"Gadget","metadata":{"name":"c"},"spec":{"size":1,"size":2}}`)
	err = server.Client.Discovery().RESTClient().Post().AbsPath("/apis/example.com/v1/namespaces/default/gadgets").
		Param("fieldValidation", "Strict").SetHeader("Content-Type", "application/json").Body(duplicate).Do(ctx).Error()
	if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), `duplicate field "spec.size"`) {
		t.Errorf("duplicate: %v", err)
	}
}

func TestPatchesOfCustomResources(t *testing.T) {
	server := testserver.Start(t)
	gadgets := mustDefine(t, server, definition("example.com", "Gadget", gadgetSchema)).Namespace("default")
	ctx := context.Background()
	if _, err := gadgets.Create(ctx, gadget("a", map[string]any{"size": int64(1)}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	patched, err := gadgets.Patch(ctx, "a", types.JSONPatchType, []byte(`[{"op":"replace","path":"/spec/size","value":2}]`), metav1.PatchOptions{})
	if size, _, _ := unstructured.NestedInt64(patched.Object, "spec", "size"); err != nil || size != 2 || patched.GetGeneration() != 2 {
		t.Errorf("JSON patch: %v %v", err, patched)
	}
	patched, err = gadgets.Patch(ctx, "a", types.MergePatchType, []byte(`{"spec":{"size":3}}`), metav1.PatchOptions{DryRun: []string{"All"}})
	if size, _, _ := unstructured.NestedInt64(patched.Object, "spec", "size"); err != nil || size != 3 {
		t.Errorf("dry merge patch: %v %v", err, patched)
	}
	if got, err := gadgets.Get(ctx, "a", metav1.GetOptions{}); err != nil || got.GetGeneration() != 2 {
		t.Errorf("a dry run changed it: %v %v", err, got)
	}
	_, err = gadgets.Patch(ctx, "a", types.StrategicMergePatchType, []byte(`{"spec":{"size":3}}`), metav1.PatchOptions{})
	if !apierrors.IsUnsupportedMediaType(err) {
		t.Errorf("strategic merge patch: %v", err)
	}
	_, err = gadgets.Patch(ctx, "a", types.MergePatchType, []byte(`{"spec":{"size":30}}`), metav1.PatchOptions{})
	if !apierrors.IsInvalid(err) {
		t.Errorf("invalid patch: %v", err)
	}
}

func TestApplyMergesByTheListTypesOfTheSchema(t *testing.T) {
	server := testserver.Start(t)
	gadgets := mustDefine(t, server, definition("example.com", "Gadget", gadgetSchema)).Namespace("default")
	ctx := context.Background()
	entry := func(key, value string) map[string]any { return map[string]any{"key": key, "value": value} }
	apply := func(manager string, force bool, spec map[string]any) (*unstructured.Unstructured, error) {
		return gadgets.Apply(ctx, "a", gadget("a", spec), metav1.ApplyOptions{FieldManager: manager, Force: force})
	}
	if _, err := apply("one", false, map[string]any{"size": int64(1), "set": []any{"x"}, "map": []any{entry("a", "1")}}); err != nil {
		t.Fatal(err)
	}
	got, err := apply("two", false, map[string]any{"set": []any{"y"}, "map": []any{entry("b", "2")}})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"filled":"full","map":[{"extra":"none","key":"a","value":"1"},{"extra":"none","key":"b","value":"2"}],"set":["x","y"],"size":1}`
	if spec := jsonOf(t, got.Object["spec"]); spec != want {
		t.Errorf("merged\n%s\nwant\n%s", spec, want)
	}
	if _, err := apply("two", false, map[string]any{"map": []any{entry("a", "3")}}); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `.spec.map[key="a"].value`) {
		t.Errorf("conflict: %v", err)
	}
	if got, err = apply("one", false, map[string]any{"size": int64(1)}); err != nil {
		t.Fatal(err)
	}
	if spec := jsonOf(t, got.Object["spec"]); spec != `{"filled":"full","map":[{"extra":"none","key":"b","value":"2"}],"set":["y"],"size":1}` {
		t.Errorf("after one gave up its entries: %s", spec)
	}
	if _, err := apply("one", false, map[string]any{"nowhere": int64(1)}); err == nil || !strings.Contains(err.Error(), "field not declared in schema") {
		t.Errorf("unknown field: %v", err)
	}
}
