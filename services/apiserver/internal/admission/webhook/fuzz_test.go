package webhook

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission/intercept"
	"github.com/sampan-io/sampan/services/apiserver/internal/patch"
)

// FuzzReadResponse reads whatever a webhook may answer, and applies what it
// patches: that may fail, but must neither panic nor make another kind.
func FuzzReadResponse(f *testing.F) {
	const head = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"1","allowed":true`
	for _, seed := range []string{
		"", "null", "[]", head + "}}", head + `,"status":{"code":-1}}}`,
		head + `,"patchType":"JSONPatch","patch":"W3sib3AiOiJhZGQiLCJwYXRoIjoiL2RhdGEvYSIsInZhbHVlIjoiYiJ9XQ=="}}`,
		head + `,"patchType":"JSONPatch","patch":"W3sib3AiOiJjb3B5IiwiZnJvbSI6IiIsInBhdGgiOiIvZGF0YSJ9XQ=="}}`,
	} {
		f.Add([]byte(seed))
	}
	patch.LimitCopies(3 << 20)
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := readResponse(data, "1", true)
		if err != nil {
			return
		}
		if !r.Allowed {
			if status := refusal("w", r.Result); status.ErrStatus.Code < 400 || status.ErrStatus.Status != metav1.StatusFailure {
				t.Errorf("a refusal is answered %+v", status.ErrStatus)
			}
		}
		applyAll(t, r.Patch)
	})
}

// FuzzPatch applies patches to a typed and to an untyped object.
func FuzzPatch(f *testing.F) {
	for _, seed := range []string{
		`[]`, `[{"op":"add","path":"/data/a","value":"b"}]`, `[{"op":"remove","path":"/metadata/labels/1"}]`,
		`[{"op":"move","from":"/data","path":"/data/x"}]`, `[{"op":"replace","path":"","value":null}]`, `[{"op":"test","path":"/a~2","value":[]}]`,
		`[{"op":"add","path":"/metadata/finalizers/-1","value":"x"}]`, strings.Repeat(`[`, 50),
	} {
		f.Add([]byte(seed))
	}
	patch.LimitCopies(3 << 20)
	f.Fuzz(applyAll)
}

func applyAll(t *testing.T, data []byte) {
	t.Helper()
	decoded, err := decodePatch(data)
	if err != nil {
		return
	}
	typed := &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, Data: map[string]string{"a": "b"}}
	typed.Finalizers = []string{"a", "b"}
	untyped := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "a/v1", "kind": "K", "spec": map[string]any{"list": []any{"x"}}}}
	for _, obj := range []runtime.Object{typed, untyped} {
		document, err := json.Marshal(obj)
		if err != nil {
			t.Fatal(err)
		}
		out, err := intercept.ApplyPatch(decoded, document, obj)
		if err == nil && out.GetObjectKind().GroupVersionKind() != obj.GetObjectKind().GroupVersionKind() {
			t.Errorf("%s makes %s of %s", data, out.GetObjectKind().GroupVersionKind(), obj.GetObjectKind().GroupVersionKind())
		}
	}
}
