package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

var conversionWebhooks = map[string]func(*testing.T){
	"should be able to convert from CR v1 to CR v2": func(t *testing.T) {
		namespace := newNamespace(t)
		crd := converted(t)
		got(instances(crd, "v1", namespace).Create(t.Context(), instance(crd, "v1", "one", map[string]any{"hostPort": "localhost:8080"}), metav1.CreateOptions{}))(t)
		read := got(instances(crd, "v2", namespace).Get(t.Context(), "one", metav1.GetOptions{}))(t)
		assertSplit(t, read)
	},
	"should be able to convert a non homogeneous list of CRs": func(t *testing.T) {
		namespace := newNamespace(t)
		crd := converted(t)
		got(instances(crd, "v1", namespace).Create(t.Context(), instance(crd, "v1", "one", map[string]any{"hostPort": "localhost:8080"}), metav1.CreateOptions{}))(t)
		patchDefinition(t, crd, `[{"op":"replace","path":"/spec/versions/0/storage","value":false},{"op":"replace","path":"/spec/versions/1/storage","value":true}]`)
		eventually(t, "the second version to be stored", func(ctx context.Context) (bool, error) {
			read, err := definitionsAPI().Get(ctx, crd.Name, metav1.GetOptions{})
			return err == nil && len(read.Status.StoredVersions) == 2, err
		})
		got(instances(crd, "v2", namespace).Create(t.Context(), instance(crd, "v2", "two", map[string]any{"host": "localhost", "port": "8080"}), metav1.CreateOptions{}))(t)
		list := got(instances(crd, "v1", namespace).List(t.Context(), metav1.ListOptions{}))(t)
		if len(list.Items) != 2 {
			t.Fatalf("listing gives %d", len(list.Items))
		}
		for i := range list.Items {
			if list.Items[i].Object["hostPort"] != "localhost:8080" || list.Items[i].Object["host"] != nil {
				t.Errorf("in version 1: %v", list.Items[i].Object)
			}
		}
		list = got(instances(crd, "v2", namespace).List(t.Context(), metav1.ListOptions{}))(t)
		for i := range list.Items {
			assertSplit(t, &list.Items[i])
		}
	},
}

func assertSplit(t *testing.T, object *unstructured.Unstructured) {
	t.Helper()
	if object.Object["host"] != "localhost" || object.Object["port"] != "8080" || object.Object["hostPort"] != nil {
		t.Errorf("in version 2: %v", object.Object)
	}
}

// converted is a definition of two versions: hostPort in the first is host and
// port in the second. A server outside the cluster converts.
func converted(t *testing.T) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	server := newHookServer(t, http.HandlerFunc(convert))
	return newDefinition(t, func(crd *apiextensionsv1.CustomResourceDefinition) {
		crd.Spec.Versions = append(crd.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{Name: "v2", Served: true, Schema: openSchema()})
		url := server.url + "/convert"
		crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter, Webhook: &apiextensionsv1.WebhookConversion{
			ClientConfig:             &apiextensionsv1.WebhookClientConfig{URL: &url, CABundle: server.ca},
			ConversionReviewVersions: []string{"v1"},
		}}
	})
}

func convert(w http.ResponseWriter, r *http.Request) {
	var in apiextensionsv1.ConversionReview
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	response := &apiextensionsv1.ConversionResponse{UID: in.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	for _, raw := range in.Request.Objects {
		var object map[string]any
		if err := json.Unmarshal(raw.Raw, &object); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if strings.HasSuffix(in.Request.DesiredAPIVersion, "/v2") {
			if text, is := object["hostPort"].(string); is {
				object["host"], object["port"], _ = strings.Cut(text, ":")
				delete(object, "hostPort")
			}
		} else if object["host"] != nil {
			object["hostPort"] = fmt.Sprintf("%v:%v", object["host"], object["port"])
			delete(object, "host")
			delete(object, "port")
		}
		object["apiVersion"] = in.Request.DesiredAPIVersion
		data, err := json.Marshal(object)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		response.ConvertedObjects = append(response.ConvertedObjects, runtime.RawExtension{Raw: data})
	}
	in.Request, in.Response = nil, response
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(in)
}
