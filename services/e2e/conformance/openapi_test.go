package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var definitionSchemas = map[string]func(*testing.T){
	"works for CRD with validation schema":    publishedWithSchema,
	"works for CRD without validation schema": publishedWithoutSchema,
	"works for CRD preserving unknown fields at the schema root": func(t *testing.T) {
		crd := newDefinition(t, func(crd *apiextensionsv1.CustomResourceDefinition) {
			root := barSchema()
			root.XPreserveUnknownFields = new(true)
			crd.Spec.Versions[0].Schema = objectSchema(root)
		})
		// Version 2 of OpenAPI cannot say that more is taken than it lists: it lists nothing.
		awaitSchema(t, crd, "v1")
		roundTrips(t, crd, `{"spec":{"bars":[{"name":"a"}]},"unknown":{"x":1}}`, "unknown")
	},
	"works for CRD preserving unknown fields in an embedded object": func(t *testing.T) {
		crd := newDefinition(t, func(crd *apiextensionsv1.CustomResourceDefinition) {
			crd.Spec.Versions[0].Schema = objectSchema(apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
				"embedded": {Type: "object", XEmbeddedResource: true, XPreserveUnknownFields: new(true)},
			}})
		})
		assertProperty(t, awaitSchema(t, crd, "v1"), "embedded")
		roundTrips(t, crd, `{"embedded":{"apiVersion":"v1","kind":"X","metadata":{"name":"x"},"free":true}}`, "embedded")
	},
	"works for multiple CRDs of different groups": func(t *testing.T) {
		for _, crd := range []*apiextensionsv1.CustomResourceDefinition{newDefinition(t, withBars), newDefinition(t, withBars)} {
			assertProperty(t, awaitSchema(t, crd, "v1"), "spec")
		}
	},
	"works for multiple CRDs of same group and version but different kinds": func(t *testing.T) {
		first := newDefinition(t, withBars)
		second := newDefinition(t, func(crd *apiextensionsv1.CustomResourceDefinition) { withBars(crd); intoGroup(crd, first.Spec.Group) })
		assertProperty(t, awaitSchema(t, first, "v1"), "spec")
		assertProperty(t, awaitSchema(t, second, "v1"), "spec")
	},
	"works for multiple CRDs of same group but different versions": func(t *testing.T) {
		crd := newDefinition(t, twoVersions)
		assertProperty(t, awaitSchema(t, crd, "v1"), "spec")
		assertProperty(t, awaitSchema(t, crd, "v2"), "spec")
		other := newDefinition(t, func(other *apiextensionsv1.CustomResourceDefinition) {
			withBars(other)
			intoGroup(other, crd.Spec.Group)
			other.Spec.Versions[0].Name = "v4"
		})
		assertProperty(t, awaitSchema(t, other, "v4"), "spec")
	},
	"updates the published spec when one version gets renamed": func(t *testing.T) {
		crd := newDefinition(t, twoVersions)
		awaitSchema(t, crd, "v2")
		patchDefinition(t, crd, `[{"op":"test","path":"/spec/versions/1/name","value":"v2"},{"op":"replace","path":"/spec/versions/1/name","value":"v4"}]`)
		assertProperty(t, awaitSchema(t, crd, "v4"), "spec")
		awaitNoSchema(t, crd, "v2")
		awaitSchema(t, crd, "v1")
	},
	"removes definition from spec when one version gets changed to not be served": func(t *testing.T) {
		crd := newDefinition(t, twoVersions)
		awaitSchema(t, crd, "v2")
		patchDefinition(t, crd, `[{"op":"test","path":"/spec/versions/1/name","value":"v2"},{"op":"replace","path":"/spec/versions/1/served","value":false}]`)
		awaitNoSchema(t, crd, "v2")
		awaitSchema(t, crd, "v1")
	},
}

func withBars(crd *apiextensionsv1.CustomResourceDefinition) {
	crd.Spec.Versions[0].Schema = objectSchema(barSchema())
}

func intoGroup(crd *apiextensionsv1.CustomResourceDefinition, group string) {
	crd.Spec.Group = group
	crd.Name = crd.Spec.Names.Plural + "." + group
}

func twoVersions(crd *apiextensionsv1.CustomResourceDefinition) {
	withBars(crd)
	crd.Spec.Versions = append(crd.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{Name: "v2", Served: true, Schema: objectSchema(barSchema())})
}

// barSchema has a spec and a status with lists of named objects.
func barSchema() apiextensionsv1.JSONSchemaProps {
	bar := apiextensionsv1.JSONSchemaProps{Type: "object", Description: "Bar of a kind", Required: []string{"name"}, Properties: map[string]apiextensionsv1.JSONSchemaProps{
		"name": {Type: "string", Description: "Name of Bar."},
		"age":  {Type: "string", Description: "Age of Bar."},
		"feeling": {Type: "string", Description: "How Bar feels.", Enum: []apiextensionsv1.JSON{
			{Raw: []byte(`"Great"`)}, {Raw: []byte(`"Down"`)},
		}},
		"bazs": {Type: "array", Description: "List of Bazs.", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &apiextensionsv1.JSONSchemaProps{Type: "string"}}},
	}}
	return apiextensionsv1.JSONSchemaProps{Type: "object", Description: "Foo CRD for testing", Properties: map[string]apiextensionsv1.JSONSchemaProps{
		"spec": {Type: "object", Description: "Specification of Foo", Properties: map[string]apiextensionsv1.JSONSchemaProps{
			"bars": {Type: "array", Description: "List of Bars and their specs.", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &bar}},
		}},
		"status": {Type: "object", Description: "Status of Foo", Properties: map[string]apiextensionsv1.JSONSchemaProps{
			"bars": {Type: "array", Description: "List of Bars and their statuses.", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &bar}},
		}},
	}}
}

func patchDefinition(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition, patch string) {
	t.Helper()
	got(definitionsAPI().Patch(t.Context(), crd.Name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{}))(t)
}

// publishedSchema is the definition of the kind in /openapi/v2, or nil.
func publishedSchema(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition, version string) (map[string]any, error) {
	raw, err := client.Discovery().RESTClient().Get().AbsPath("/openapi/v2").SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	var document struct {
		Definitions map[string]map[string]any `json:"definitions"`
	}
	if err := json.Unmarshal(raw, &document); err != nil {
		return nil, err
	}
	parts := strings.Split(crd.Spec.Group, ".")
	for i, j := 0, len(parts)-1; i < j; i, j = i+1, j-1 {
		parts[i], parts[j] = parts[j], parts[i]
	}
	return document.Definitions[strings.Join(parts, ".")+"."+version+"."+crd.Spec.Names.Kind], nil
}

func awaitSchema(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition, version string) map[string]any {
	t.Helper()
	var published map[string]any
	eventually(t, fmt.Sprintf("the schema of %s %s", crd.Name, version), func(ctx context.Context) (bool, error) {
		var err error
		published, err = publishedSchema(ctx, crd, version)
		return published != nil, err
	})
	return published
}

func awaitNoSchema(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition, version string) {
	t.Helper()
	eventually(t, fmt.Sprintf("the schema of %s %s to go", crd.Name, version), func(ctx context.Context) (bool, error) {
		published, err := publishedSchema(ctx, crd, version)
		return published == nil, err
	})
}

func assertProperty(t *testing.T, published map[string]any, name string) {
	t.Helper()
	properties, _ := published["properties"].(map[string]any)
	if properties[name] == nil {
		t.Errorf("the published schema has no property %s: %v", name, published)
	}
}

// roundTrips asserts that kubectl creates, replaces and applies the object, and
// that the field is kept.
func roundTrips(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition, content, field string) {
	t.Helper()
	namespace := newNamespace(t)
	manifest := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":"one"},%s`, crd.Spec.Group+"/v1", crd.Spec.Names.Kind, content[1:])
	for _, verb := range []string{"create", "replace", "apply"} {
		if _, err := cluster.KubectlInput(manifest, "-n", namespace, verb, "-f", "-"); err != nil {
			t.Errorf("%s: %v", verb, err)
		}
	}
	read := got(instances(crd, "v1", namespace).Get(t.Context(), "one", metav1.GetOptions{}))(t)
	if field != "" && read.Object[field] == nil {
		t.Errorf("%s was not kept: %v", field, read.Object)
	}
	if _, err := cluster.Kubectl("-n", namespace, "delete", crd.Spec.Names.Plural+"."+crd.Spec.Group, "one"); err != nil {
		t.Error(err)
	}
}

func publishedWithSchema(t *testing.T) {
	crd := newDefinition(t, withBars)
	assertProperty(t, awaitSchema(t, crd, "v1"), "spec")
	roundTrips(t, crd, `{"spec":{"bars":[{"name":"test-bar"}]}}`, "spec")
	namespace := newNamespace(t)
	refused := func(content, want string) {
		t.Helper()
		manifest := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":"bad"},%s`, crd.Spec.Group+"/v1", crd.Spec.Names.Kind, content[1:])
		_, err := cluster.KubectlInput(manifest, "-n", namespace, "create", "-f", "-")
		if err == nil {
			t.Errorf("%s was taken", content)
			return
		}
		contains(t, err.Error(), want)
	}
	refused(`{"spec":{"bars":[{"name":"a","feeling":"NonExistentValue"}]}}`, "Unsupported value")
	refused(`{"spec":{"foo":true}}`, "unknown field")
	refused(`{"spec":{"bars":[{"age":"10"}]}}`, "name")
	awaitExplain(t, crd, []string{crd.Spec.Names.Plural}, "Foo CRD for testing")
	awaitExplain(t, crd, []string{crd.Spec.Names.Plural + ".spec"}, "Specification of Foo")
	awaitExplain(t, crd, []string{crd.Spec.Names.Plural + ".spec.bars"}, "List of Bars and their specs.")
	awaitExplain(t, crd, []string{crd.Spec.Names.Plural + ".spec.bars", "--recursive"}, "bazs")
	if out, err := cluster.Kubectl("explain", crd.Spec.Names.Plural+".spec.bars2"); err == nil {
		t.Errorf("explaining a field that does not exist gives %q", out)
	}
}

func awaitExplain(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition, args []string, want string) {
	t.Helper()
	eventuallyHas(t, func() string {
		out, err := cluster.Kubectl(append([]string{"explain", "--api-version=" + crd.Spec.Group + "/v1"}, args...)...)
		if err != nil {
			return ""
		}
		return out
	}, want)
}

func publishedWithoutSchema(t *testing.T) {
	crd := newDefinition(t, nil)
	awaitSchema(t, crd, "v1")
	roundTrips(t, crd, `{"spec":{"a":null,"b":[{"c":"d"}]}}`, "spec")
	awaitExplain(t, crd, []string{crd.Spec.Names.Plural}, "<empty>")
}
