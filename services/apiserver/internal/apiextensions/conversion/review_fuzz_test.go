package conversion

import (
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// FuzzAnswers reads answers of conversion webhooks: what is accepted is the
// object that was sent, in the version that was asked for.
func FuzzAnswers(f *testing.F) {
	head := `{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1","response":{"uid":"u","result":{"status":"Success"},"convertedObjects":[`
	for _, seed := range []string{
		head + `{"apiVersion":"a.com/v2","kind":"A","metadata":{"name":"n","uid":"i","labels":{"x":"y"}},"spec":{"b":1}}]}}`,
		head + `{"apiVersion":"a.com/v2","kind":"A","metadata":{"name":"n","uid":"i","labels":{"x":1}}}]}}`,
		head + `{"apiVersion":"a.com/v2","kind":"A","metadata":[]}]}}`, head + `null]}}`, head + `]}}`, head + `[]]}}`,
		head + `{"apiVersion":1,"kind":{}}]}}`, `{"kind":"ConversionReview"}`, `null`, ``, `[`, `{"response":{"result":{"status":"Failure"}}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		in := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "a.com/v1", "kind": "A", "metadata": map[string]any{"name": "n", "uid": "i", "finalizers": []any{"a/b"}}, "spec": map[string]any{},
		}}
		list, err := parse(data, apiextensionsv1.SchemeGroupVersion, "u", 1)
		if err != nil {
			return
		}
		out := list[0]
		want := schema.GroupVersionKind{Group: "a.com", Version: "v2", Kind: "A"}
		if err := accept(in, out, want); err != nil {
			return
		}
		if out.GroupVersionKind() != want || out.GetName() != "n" || out.GetUID() != "i" || len(out.GetFinalizers()) != 1 {
			t.Errorf("accepted %v", out)
		}
		if _, err := out.MarshalJSON(); err != nil {
			t.Errorf("what was accepted cannot be stored: %v", err)
		}
	})
}
