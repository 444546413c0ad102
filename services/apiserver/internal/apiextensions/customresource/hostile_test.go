package customresource_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

// bound is the longest that the server may think about anything hostile here.
const bound = 20 * time.Second

// nested is a schema of that many levels below the root.
func nested(levels int) *apiextensionsv1.JSONSchemaProps {
	s := &apiextensionsv1.JSONSchemaProps{Type: "string"}
	for range levels {
		s = &apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"a": *s}}
	}
	return s
}

func TestHostileSchemasAreRefused(t *testing.T) {
	server := testserver.Start(t)
	client := definitions(t, server).ApiextensionsV1().CustomResourceDefinitions()
	self := "#/properties/spec"
	for name, test := range map[string]struct {
		schema *apiextensionsv1.JSONSchemaProps
		want   string
	}{
		"cycle":          {&apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": {Ref: &self}}}, "$ref is not supported"},
		"thousand":       {nested(1000), "must not nest deeper than 500 levels"},
		"no pattern":     {mustSchema(`{type: object, properties: {spec: {type: string, pattern: '(['}}}`), "must be a valid regular expression"},
		"huge pattern":   {mustSchema(`{type: object, properties: {spec: {type: string, pattern: '((a{1000}){1000}){1000}'}}}`), "must be a valid regular expression"},
		"unstructural":   {mustSchema(`{type: object, properties: {spec: {anyOf: [{type: string}]}}}`), "must not be empty for specified object fields"},
		"bad default":    {mustSchema(`{type: object, properties: {spec: {type: integer, default: x}}}`), "must be of type integer"},
		"unbounded rule": {mustSchema(`{type: object, properties: {spec: {type: array, items: {type: array, items: {type: string}}, x-kubernetes-validations: [{rule: "self.all(x, x.all(y, self.exists(z, z.exists(w, w.contains(y)))))"}]}}}`), "cost exceeds budget"},
	} {
		d := definition("example.com", "Hostile", "type: object")
		d.Spec.Versions[0].Schema.OpenAPIV3Schema = test.schema
		began := time.Now()
		_, err := client.Create(context.Background(), d, metav1.CreateOptions{})
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %.400v", name, err)
		}
		if took := time.Since(began); took > bound {
			t.Errorf("%s took %v", name, took)
		}
	}
	if list, err := client.List(context.Background(), metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("something was stored: %v %v", err, list)
	}
}

func TestSchemasThatAreDeepOrWideServe(t *testing.T) {
	server := testserver.Start(t)
	deep := definition("example.com", "Deep", "type: object")
	deep.Spec.Versions[0].Schema.OpenAPIV3Schema = nested(400)
	wide := definition("example.com", "Wide", "type: object")
	wide.Spec.Versions[0].Schema.OpenAPIV3Schema = &apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{}}
	for i := range 5000 {
		wide.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties[fmt.Sprintf("field%d", i)] = apiextensionsv1.JSONSchemaProps{Type: "string"}
	}
	for _, d := range []*apiextensionsv1.CustomResourceDefinition{deep, wide} {
		began := time.Now()
		client := mustDefine(t, server, d).Namespace("default")
		if _, err := client.Create(context.Background(), object("example.com/v1", d.Spec.Names.Kind, "a", nil), metav1.CreateOptions{}); err != nil {
			t.Errorf("%s: %v", d.Name, err)
		}
		took := time.Since(began)
		t.Logf("%s took %v", d.Name, took)
		if took > bound {
			t.Errorf("%s took more than %v", d.Name, bound)
		}
	}
}

func TestHostileObjectsAreRefused(t *testing.T) {
	server := testserver.Start(t)
	d := definition("example.com", "Victim", `
type: object
properties:
  spec:
    type: object
    x-kubernetes-preserve-unknown-fields: true
    properties:
      text: {type: string, pattern: '^(a+)+$'}
`)
	mustDefine(t, server, d)
	for name, test := range map[string]struct {
		spec, content string
		code          int
	}{
		"backtracking":  {`{"text":"` + strings.Repeat("a", 100_000) + `b"}`, "application/json", 422},
		"deep":          {strings.Repeat(`{"a":`, 50_000) + "1" + strings.Repeat("}", 50_000), "application/json", 400},
		"too large":     {`{"blob":"` + strings.Repeat("x", 2<<20) + `"}`, "application/json", 413},
		"no object":     {`[]`, "application/json", 422},
		"aliases":       {"{a: &a [x,x,x,x,x,x,x,x,x], b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a], c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b], d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c], e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d], f: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e], g: [*f,*f,*f,*f,*f,*f,*f,*f,*f]}", "application/yaml", 400},
		"odd metadata":  {`{}},"metadata":{"name":"x","labels":"y"`, "application/json", 400},
		"protobuf":      {"{}", "application/vnd.kubernetes.protobuf", 415},
		"other content": {"{}", "text/plain", 415},
	} {
		body := `{"apiVersion":"example.com/v1","kind":"Victim","metadata":{"name":"a"},"spec":` + test.spec + `}`
		if strings.HasPrefix(name, "odd") {
			body = strings.Replace(body, `"spec":{}}`, `"spec":{}`, 1)
		}
		began := time.Now()
		result := server.Client.Discovery().RESTClient().Post().AbsPath("/apis/example.com/v1/namespaces/default/victims").
			SetHeader("Content-Type", test.content).Body([]byte(body)).Do(context.Background())
		var code int
		result.StatusCode(&code)
		data, err := result.Raw()
		var status metav1.Status
		if code != test.code || err == nil || json.Unmarshal(data, &status) != nil || status.Kind != "Status" || len(data) > 1<<20 {
			t.Errorf("%s: %d %.300v %.300s", name, code, err, data)
		}
		if took := time.Since(began); took > bound {
			t.Errorf("%s took %v", name, took)
		}
	}
	list, err := resource(t, server, d, "v1").List(context.Background(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 0 {
		t.Errorf("something was stored: %v %v", err, list)
	}
}
