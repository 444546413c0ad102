package customresource_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

// converter is a conversion webhook: v1 has spec.host and spec.port, v2 has both
// as spec.address. answer, if set, takes the place of the right answer.
type converter struct {
	*httptest.Server
	calls  atomic.Int64
	answer atomic.Pointer[func(w http.ResponseWriter, review *apiextensionsv1.ConversionReview)]
}

func newConverter(t testing.TB) *converter {
	c := &converter{}
	c.Server = httptest.NewTLSServer(http.HandlerFunc(c.serve))
	t.Cleanup(c.Close)
	return c
}

func (c *converter) serve(w http.ResponseWriter, r *http.Request) {
	c.calls.Add(1)
	review := &apiextensionsv1.ConversionReview{}
	if err := json.NewDecoder(r.Body).Decode(review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if answer := c.answer.Load(); answer != nil {
		(*answer)(w, review)
		return
	}
	_ = json.NewEncoder(w).Encode(convertAll(review))
}

func convertAll(review *apiextensionsv1.ConversionReview) *apiextensionsv1.ConversionReview {
	review.Response = &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	for _, raw := range review.Request.Objects {
		obj := &unstructured.Unstructured{}
		if err := obj.UnmarshalJSON(raw.Raw); err != nil {
			review.Response.Result = metav1.Status{Status: metav1.StatusFailure, Message: err.Error()}
			return review
		}
		obj.SetAPIVersion(review.Request.DesiredAPIVersion)
		spec, _, _ := unstructured.NestedMap(obj.Object, "spec")
		if strings.HasSuffix(review.Request.DesiredAPIVersion, "/v2") {
			obj.Object["spec"] = map[string]any{"address": fmt.Sprintf("%v:%v", spec["host"], spec["port"])}
		} else {
			host, port, _ := strings.Cut(fmt.Sprint(spec["address"]), ":")
			obj.Object["spec"] = map[string]any{"host": host, "port": port}
		}
		data, _ := obj.MarshalJSON()
		review.Response.ConvertedObjects = append(review.Response.ConvertedObjects, runtime.RawExtension{Raw: data})
	}
	review.Request = nil
	return review
}

func (c *converter) answers(answer func(w http.ResponseWriter, review *apiextensionsv1.ConversionReview)) {
	c.answer.Store(&answer)
}

// endpointDefinition has v1, which is stored, and v2.
func (c *converter) endpointDefinition() *apiextensionsv1.CustomResourceDefinition {
	d := definition("example.com", "Endpoint", `
type: object
properties:
  spec:
    type: object
    properties:
      host: {type: string}
      port: {type: string}
`)
	newer := d.Spec.Versions[0].DeepCopy()
	newer.Name, newer.Storage = "v2", false
	newer.Schema.OpenAPIV3Schema = mustSchema(`
type: object
properties:
  spec:
    type: object
    properties:
      address: {type: string}
`)
	newer.SelectableFields = []apiextensionsv1.SelectableField{{JSONPath: ".spec.address"}}
	d.Spec.Versions = append(d.Spec.Versions, *newer)
	url := c.URL + "/convert"
	d.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
		Strategy: apiextensionsv1.WebhookConverter,
		Webhook: &apiextensionsv1.WebhookConversion{
			ConversionReviewVersions: []string{"v3", "v1"},
			ClientConfig: &apiextensionsv1.WebhookClientConfig{
				URL: &url, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate().Raw}),
			},
		},
	}
	return d
}

func endpointV1(name string) *unstructured.Unstructured {
	return object("example.com/v1", "Endpoint", name, map[string]any{"host": "h", "port": "80"})
}

func endpointV2(name, address string) *unstructured.Unstructured {
	return object("example.com/v2", "Endpoint", name, map[string]any{"address": address})
}

func startEndpoints(t *testing.T) (c *converter, v1, v2 dynamic.ResourceInterface) {
	t.Helper()
	server := testserver.Start(t)
	c = newConverter(t)
	d := c.endpointDefinition()
	v1 = mustDefine(t, server, d).Namespace("default")
	return c, v1, resource(t, server, d, "v2").Namespace("default")
}

func TestConversionByWebhook(t *testing.T) {
	c, v1, v2 := startEndpoints(t)
	ctx := context.Background()
	if _, err := v1.Create(ctx, endpointV1("a"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if n := c.calls.Load(); n != 0 {
		t.Errorf("the stored version was converted %d times", n)
	}
	got, err := v2.Get(ctx, "a", metav1.GetOptions{})
	if err != nil || jsonOf(t, got.Object["spec"]) != `{"address":"h:80"}` {
		t.Fatalf("as v2: %v %v", err, got)
	}
	before := c.calls.Load()
	if _, err := v2.List(ctx, metav1.ListOptions{}); err != nil || c.calls.Load() != before {
		t.Errorf("reading it again converted it again: %v", err)
	}
	w, err := v2.Watch(ctx, metav1.ListOptions{ResourceVersion: got.GetResourceVersion()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	created, err := v2.Create(ctx, endpointV2("b", "i:81"), metav1.CreateOptions{})
	if err != nil || jsonOf(t, created.Object["spec"]) != `{"address":"i:81"}` {
		t.Fatalf("created as v2: %v %v", err, created)
	}
	event := <-w.ResultChan()
	if seen, ok := event.Object.(*unstructured.Unstructured); !ok || jsonOf(t, seen.Object["spec"]) != `{"address":"i:81"}` {
		t.Errorf("event: %v", event)
	}
	got, err = v1.Get(ctx, "b", metav1.GetOptions{})
	if err != nil || jsonOf(t, got.Object["spec"]) != `{"host":"i","port":"81"}` {
		t.Errorf("as v1: %v %v", err, got)
	}
	applied, err := v2.Apply(ctx, "b", endpointV2("b", "j:82"), metav1.ApplyOptions{FieldManager: "m", Force: true})
	if err != nil || jsonOf(t, applied.Object["spec"]) != `{"address":"j:82"}` {
		t.Errorf("applied as v2: %v %v", err, applied)
	}
}

func TestSelectableFieldsOfConvertedVersions(t *testing.T) {
	_, v1, v2 := startEndpoints(t)
	ctx := context.Background()
	for _, name := range []string{"a", "b", "c"} {
		if _, err := v1.Create(ctx, endpointV1(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	selected := metav1.ListOptions{FieldSelector: "spec.address=h:80", Limit: 2}
	list, err := v2.List(ctx, selected)
	if err != nil || len(list.Items) != 2 || list.GetContinue() == "" {
		t.Fatalf("first part: %v %v", err, list)
	}
	selected.Continue = list.GetContinue()
	if list, err = v2.List(ctx, selected); err != nil || len(list.Items) != 1 || list.Items[0].GetName() != "c" || list.GetContinue() != "" {
		t.Errorf("second part: %v %v", err, list)
	}
	if list, err = v2.List(ctx, metav1.ListOptions{FieldSelector: "spec.address=h:81"}); err != nil || len(list.Items) != 0 {
		t.Errorf("selects nothing: %v %v", err, list)
	}
	for _, version := range []string{list.GetResourceVersion(), ""} {
		w, err := v2.Watch(ctx, metav1.ListOptions{FieldSelector: "spec.address=h:80", ResourceVersion: version})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if version == "" {
				<-w.ResultChan()
			}
		}
		var kinds []string
		for _, address := range []string{"other:1", "other:2", "h:80"} {
			current, err := v2.Get(ctx, "a", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			current.Object["spec"] = map[string]any{"address": address}
			if _, err := v2.Update(ctx, current, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		for len(kinds) < 2 {
			event := <-w.ResultChan()
			kinds = append(kinds, string(event.Type))
		}
		w.Stop()
		if got := strings.Join(kinds, " "); got != "DELETED ADDED" {
			t.Errorf("watch from %q: %s", version, got)
		}
	}
}

func TestConversionWebhooksAreNotTrusted(t *testing.T) {
	c, v1, v2 := startEndpoints(t)
	ctx := context.Background()
	converted := func(change func(obj *unstructured.Unstructured)) func(http.ResponseWriter, *apiextensionsv1.ConversionReview) {
		return func(w http.ResponseWriter, review *apiextensionsv1.ConversionReview) {
			convertAll(review)
			obj := &unstructured.Unstructured{}
			_ = obj.UnmarshalJSON(review.Response.ConvertedObjects[0].Raw)
			change(obj)
			review.Response.ConvertedObjects[0].Raw, _ = json.Marshal(obj.Object)
			_ = json.NewEncoder(w).Encode(review)
		}
	}
	text := func(body string) func(http.ResponseWriter, *apiextensionsv1.ConversionReview) {
		return func(w http.ResponseWriter, _ *apiextensionsv1.ConversionReview) { _, _ = w.Write([]byte(body)) }
	}
	if _, err := v1.Create(ctx, endpointV1("a"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		answer func(http.ResponseWriter, *apiextensionsv1.ConversionReview)
		want   string
	}{
		"garbage":     {text("garbage"), "reading its answer"},
		"nothing":     {text(""), "reading its answer"},
		"other kind":  {text(`{"kind":"Pod","apiVersion":"v1"}`), "expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview"},
		"no response": {text(`{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1"}`), "no response provided"},
		"too large":   {text(strings.Repeat(" ", 7<<20)), "larger than"},
		"deep":        {text(strings.Repeat(`{"a":`, 100000)), "reading its answer"},
		"status":      {func(w http.ResponseWriter, _ *apiextensionsv1.ConversionReview) { http.Error(w, "broken", 500) }, "500 Internal Server Error"},
		"redirect": {func(w http.ResponseWriter, _ *apiextensionsv1.ConversionReview) {
			w.Header().Set("Location", "https://localhost/")
			w.WriteHeader(302)
		}, "302 Found"},
		"wrong uid": {func(w http.ResponseWriter, r *apiextensionsv1.ConversionReview) {
			convertAll(r)
			r.Response.UID = "x"
			_ = json.NewEncoder(w).Encode(r)
		}, "expected response.uid"},
		"refusal": {func(w http.ResponseWriter, r *apiextensionsv1.ConversionReview) {
			convertAll(r)
			r.Response.Result = metav1.Status{Status: "Failure", Message: "cannot"}
			_ = json.NewEncoder(w).Encode(r)
		}, "cannot"},
		"no objects": {func(w http.ResponseWriter, r *apiextensionsv1.ConversionReview) {
			convertAll(r)
			r.Response.ConvertedObjects = nil
			_ = json.NewEncoder(w).Encode(r)
		}, "returned 0 objects"},
		"null": {func(w http.ResponseWriter, r *apiextensionsv1.ConversionReview) {
			convertAll(r)
			r.Response.ConvertedObjects[0].Raw = []byte("null")
			_ = json.NewEncoder(w).Encode(r)
		}, "the converted object is null"},
		"other name":  {converted(func(o *unstructured.Unstructured) { o.SetName("other") }), "must have the same name"},
		"other uid":   {converted(func(o *unstructured.Unstructured) { o.SetUID("other") }), "must have the same UID"},
		"other group": {converted(func(o *unstructured.Unstructured) { o.SetAPIVersion("other.com/v2") }), "invalid groupVersion"},
		"no metadata": {converted(func(o *unstructured.Unstructured) { delete(o.Object, "metadata") }), "it has no metadata"},
		"bad labels":  {converted(func(o *unstructured.Unstructured) { o.Object["metadata"].(map[string]any)["labels"] = "x" }), "invalid metadata.labels"},
		"odd label":   {converted(func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{"a b": "c"}) }), "metadata.labels"},
	} {
		c.answers(test.answer)
		_, err := v2.Create(ctx, endpointV2("b", "i:81"), metav1.CreateOptions{})
		if !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "conversion webhook for example.com/v2, Kind=Endpoint") {
			t.Errorf("create with %s: %v", name, err)
		}
		if _, err := v2.Get(ctx, "a", metav1.GetOptions{}); !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("get with %s: %v", name, err)
		}
	}
	if _, err := v1.Get(ctx, "b", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("something was stored: %v", err)
	}
	c.answers(converted(func(o *unstructured.Unstructured) {
		o.SetLabels(map[string]string{"new": "label"})
		o.SetResourceVersion("1")
		o.SetFinalizers([]string{"example.com/x"})
		o.SetCreationTimestamp(metav1.Time{})
	}))
	got, err := v2.Get(ctx, "a", metav1.GetOptions{})
	if err != nil || got.GetLabels()["new"] != "label" || len(got.GetFinalizers()) != 0 || got.GetResourceVersion() == "1" || got.GetCreationTimestamp() == (metav1.Time{}) {
		t.Errorf("changed metadata: %v %v", err, got)
	}
}

// A webhook is asked about the objects of a list together, and once.
func TestListsAreConvertedTogether(t *testing.T) {
	c, v1, v2 := startEndpoints(t)
	ctx := t.Context()
	const count = 600
	for i := range count {
		if _, err := v1.Create(ctx, endpointV1(fmt.Sprintf("e%d", i)), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	assertList := func(how string, most int64) {
		t.Helper()
		before := c.calls.Load()
		list, err := v2.List(ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) != count {
			t.Fatalf("%s: %d items, %v", how, len(list.Items), err)
		}
		for _, item := range list.Items {
			if address, _, _ := unstructured.NestedString(item.Object, "spec", "address"); address != "h:80" || item.GetAPIVersion() != "example.com/v2" || item.GetUID() == "" {
				t.Fatalf("%s: %v", how, item.Object)
			}
		}
		if calls := c.calls.Load() - before; calls > most {
			t.Errorf("%s: the webhook was asked %d times", how, calls)
		}
	}
	c.answers(func(w http.ResponseWriter, r *apiextensionsv1.ConversionReview) {
		convertAll(r)
		r.Response.ConvertedObjects = r.Response.ConvertedObjects[1:]
		_ = json.NewEncoder(w).Encode(r)
	})
	if _, err := v2.List(ctx, metav1.ListOptions{}); !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), "returned 499 objects, expected 500") {
		t.Errorf("an answer that lacks an object: %v", err)
	}
	c.answer.Store(nil)
	before := c.calls.Load()
	w, err := v2.Watch(ctx, metav1.ListOptions{LabelSelector: "!x"})
	if err != nil {
		t.Fatal(err)
	}
	for range count {
		if event := <-w.ResultChan(); event.Type != "ADDED" {
			t.Fatalf("event %+v", event)
		}
	}
	w.Stop()
	if calls := c.calls.Load() - before; calls > count/10 {
		t.Errorf("the watch asked %d times", calls)
	}
	assertList("after the watch", 0)
	if _, err := v1.Patch(ctx, "e1", "application/merge-patch+json", []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	assertList("after a change", 1)
}
