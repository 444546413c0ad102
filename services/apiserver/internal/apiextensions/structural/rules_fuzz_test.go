package structural_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/sampan-io/sampan/services/apiserver/internal/apiextensions/structural"
)

// ruled is a definition whose schema has a rule on the spec.
func ruled(rule, message string) *apiextensionsv1.CustomResourceDefinition {
	limit := int64(5)
	text := apiextensionsv1.JSONSchemaProps{Type: "string", MaxLength: &limit}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "as.a.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "a.com", Scope: apiextensionsv1.ClusterScoped,
			Names:      apiextensionsv1.CustomResourceDefinitionNames{Plural: "as", Singular: "a", Kind: "A", ListKind: "AList"},
			Conversion: &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": {
						Type: "object", XValidations: []apiextensionsv1.ValidationRule{{Rule: rule, MessageExpression: message}},
						Properties: map[string]apiextensionsv1.JSONSchemaProps{
							"n": {Type: "integer"}, "s": text, "b": {Type: "boolean"},
							"l": {Type: "array", MaxItems: &limit, Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &text}},
							"m": {Type: "object", MaxProperties: &limit, AdditionalProperties: &apiextensionsv1.JSONSchemaPropsOrBool{Schema: &text}},
							"x": {XIntOrString: true},
						},
					}},
				}},
			}},
		},
		Status: apiextensionsv1.CustomResourceDefinitionStatus{StoredVersions: []string{"v1"}},
	}
}

// FuzzRules compiles rules and runs those that validation lets in: within their
// cost limits, whatever the object.
func FuzzRules(f *testing.F) {
	for _, seed := range []struct{ rule, message, spec string }{
		{"self.n > 0", "'n is too small'", `{"n":1}`}, {"self.l.all(x, x.startsWith(self.s))", "", `{"l":["a"],"s":"a"}`},
		{"self.m.exists(k, self.m[k] == 'v')", "self.s", `{"m":{"k":"v"}}`}, {"self == oldSelf", "", `{}`}, {"has(self.b) && self.b", "", `{"b":true}`},
		{"type(self.x) == int ? self.x > 1 : self.x == 'a'", "", `{"x":"a"}`}, {"self.s.matches('^(a+)+$')", "", `{"s":"aaab"}`},
		{"self.l.map(x, x + x).exists(y, y == 'aa')", "", `{"l":["a"]}`}, {"1/self.n == 1", "", `{"n":0}`}, {"[1,2,3].sum() == 6", "", `{}`},
		{"quantity(self.s).isLessThan(quantity('1Gi'))", "", `{"s":"1Mi"}`}, {"url(self.s).getHost() == ''", "", `{"s":"x"}`}, {"self.", "'", `[]`},
		{"cidr('10.0.0.0/8').containsIP(self.s)", "string(self.n)", `{"s":"1.2.3"}`}, {"optional.of(self.s).orValue('') == ''", "", `{"s":null}`},
	} {
		f.Add(seed.rule, seed.message, seed.spec)
	}
	f.Fuzz(func(t *testing.T, rule, message, spec string) {
		var content any
		if len(rule)+len(message) > 500 || json.Unmarshal([]byte(spec), &content) != nil {
			return
		}
		crd := ruled(rule, message)
		internal := &apiextensions.CustomResourceDefinition{}
		if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd.DeepCopy(), internal, nil); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if errs := validation.ValidateCustomResourceDefinition(context.Background(), internal); len(errs) > 0 {
			return
		}
		s, err := structural.Compile(crd, "v1", "A")
		if err != nil {
			t.Fatalf("what was valid does not compile: %v", err)
		}
		obj := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "a.com/v1", "kind": "A", "metadata": map[string]any{"name": "a"}, "spec": content}}
		if _, err := s.Coerce(obj, true); err != nil {
			return
		}
		s.Default(obj)
		_ = s.Validate(context.Background(), obj)
		_ = s.ValidateUpdate(context.Background(), obj, obj.DeepCopy())
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("rule %q took %v", rule, took)
		}
	})
}
