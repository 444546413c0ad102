package policy_test

import (
	"context"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

const widgets = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              size: {type: integer, default: 1}
              tags: {type: array, items: {type: string}, x-kubernetes-list-type: set}
`

var widgetResource = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}

// serveWidgets defines the kind and waits until it is served.
func serveWidgets(t testing.TB, s *testserver.Server) dynamic.ResourceInterface {
	t.Helper()
	client := s.Dynamic(t)
	_, err := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}).
		Create(t.Context(), object(t, widgets), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	served := client.Resource(widgetResource).Namespace("default")
	deadline, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for {
		_, err := served.List(deadline, metav1.ListOptions{})
		if err == nil {
			return served
		}
		if !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
}

func object(t testing.TB, document string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(document), &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

func TestPoliciesOfCustomResources(t *testing.T) {
	s := testserver.Start(t)
	served := serveWidgets(t, s)
	const match = "matchConstraints: {resourceRules: [{apiGroups: [example.com], apiVersions: [v1], resources: [widgets], operations: [CREATE]}]}"
	apply(t, s.Client, `
kind: MutatingAdmissionPolicy
metadata: {name: tag}
spec:
  reinvocationPolicy: Never
  `+match+`
  mutations:
  - {patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{spec: Object.spec{tags: ['mutated']}}"}}
  - {patchType: JSONPatch, jsonPatch: {expression: "[JSONPatch{op: 'add', path: '/spec/unknown', value: 'pruned'}]"}}
---
kind: MutatingAdmissionPolicyBinding
metadata: {name: tag}
spec: {policyName: tag}
---
kind: ValidatingAdmissionPolicy
metadata: {name: size}
spec:
  paramKind: {apiVersion: example.com/v1, kind: Widget}
  `+match+`
  validations: [{expression: "object.spec.size <= params.spec.size && 'mutated' in object.spec.tags", messageExpression: "'larger than ' + params.metadata.name + ' with ' + string(params.spec.size)"}]
---
kind: ValidatingAdmissionPolicyBinding
metadata: {name: size}
spec: {policyName: size, validationActions: [Deny], paramRef: {name: limit, parameterNotFoundAction: Allow}}`)
	put := func(name, spec string) (*unstructured.Unstructured, error) {
		return served.Create(t.Context(), object(t, "{apiVersion: example.com/v1, kind: Widget, metadata: {name: "+name+"}, spec: "+spec+"}"), metav1.CreateOptions{})
	}
	got, err := put("limit", "{size: 5, tags: [mine]}")
	if err != nil {
		t.Fatal(err)
	}
	tags, _, _ := unstructured.NestedStringSlice(got.Object, "spec", "tags")
	if strings.Join(tags, " ") != "mine mutated" {
		t.Errorf("tags %q", tags)
	}
	if _, found, _ := unstructured.NestedFieldNoCopy(got.Object, "spec", "unknown"); found {
		t.Error("a field that the schema does not know was stored")
	}
	if got, err := put("small", "{}"); err != nil {
		t.Error(err)
	} else if size, _, _ := unstructured.NestedInt64(got.Object, "spec", "size"); size != 1 {
		t.Errorf("size %d", size)
	}
	_, err = put("large", "{size: 6}")
	assertError(t, err, "larger than limit with 5")
}
