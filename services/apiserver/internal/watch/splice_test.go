package watch

import (
	"bytes"
	"encoding/json"
	"math/rand"
	"reflect"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"sigs.k8s.io/randfill"

	"github.com/sampan-io/sampan/services/apiserver/internal/scheme"
)

var serializer = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)

func marshal(t testing.TB, obj runtime.Object) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := serializer.Encode(obj, &out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// Splicing gives the bytes that encoding the object with the version gives, for
// every kind with metadata.
func TestSpliceEqualsEncoding(t *testing.T) {
	filler := randfill.NewWithSeed(1).NilChance(0.3).NumElements(0, 3).MaxDepth(4).Funcs(
		func(o *metav1.ObjectMeta, c randfill.Continue) { c.FillNoCustom(o); o.ResourceVersion = "" },
		func(e *runtime.RawExtension, _ randfill.Continue) { e.Raw = []byte("{}") },
	)
	kinds := 0
	for gvk := range scheme.Scheme.AllKnownTypes() {
		obj, err := scheme.Scheme.New(gvk)
		if err != nil || gvk.Version == runtime.APIVersionInternal {
			continue
		}
		if _, ok := obj.(metav1.Object); !ok {
			continue
		}
		kinds++
		for range 3 {
			obj = reflect.New(reflect.TypeOf(obj).Elem()).Interface().(runtime.Object)
			filler.Fill(obj)
			obj.GetObjectKind().SetGroupVersionKind(gvk)
			stored := marshal(t, obj)
			revision := rand.Int63n(1 << rand.Intn(62)) // of any length
			got, err := splice(stored, revision)
			if err != nil {
				t.Fatalf("%s: %v", gvk, err)
			}
			accessor, err := meta.Accessor(obj)
			if err != nil {
				t.Fatal(err)
			}
			accessor.SetResourceVersion(strconv.FormatInt(revision, 10))
			if want := marshal(t, obj); !bytes.Equal(got, want) {
				t.Fatalf("%s: spliced is\n%q, want\n%q", gvk, got, want)
			}
			again, err := splice(got, revision+1000)
			accessor.SetResourceVersion(strconv.FormatInt(revision+1000, 10))
			if want := marshal(t, obj); err != nil || !bytes.Equal(again, want) {
				t.Fatalf("%s: a version replaced is\n%q, %v; want\n%q", gvk, again, err, want)
			}
		}
	}
	if kinds < 50 {
		t.Errorf("only %d kinds were looked at", kinds)
	}
}

func TestSpliceOfJSONChangesTheVersionOnly(t *testing.T) {
	for _, document := range []string{
		`{"apiVersion":"v1","kind":"Thing","metadata":{"name":"a","labels":{"x":"<&>"}},"spec":{"n":12345678901234567890,"f":1.0}}`,
		`{"metadata":{"resourceVersion":"1","name":"a"}}`,
		`{"kind":"Thing"}`,
		`{"metadata":null}`,
	} {
		got, err := splice([]byte(document), 42)
		if err != nil {
			t.Fatalf("%s: %v", document, err)
		}
		want := map[string]any{}
		have := map[string]any{}
		for text, into := range map[string]*map[string]any{document: &want, string(got): &have} {
			decoder := json.NewDecoder(strings.NewReader(text))
			decoder.UseNumber()
			if err := decoder.Decode(into); err != nil {
				t.Fatal(err)
			}
		}
		if want["metadata"] == nil {
			want["metadata"] = map[string]any{}
		}
		if err := unstructured.SetNestedField(want, "42", "metadata", "resourceVersion"); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(have, want) {
			t.Errorf("%s became %s", document, got)
		}
	}
}

func TestSpliceRefusesWhatIsNoObject(t *testing.T) {
	whole := marshal(t, &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	bad := [][]byte{nil, []byte("null"), []byte("[]"), []byte("text"), []byte(`{"metadata":3}`), envelopePrefix}
	for length := range len(whole) {
		if length < len(whole)-4 { // what is left out at the end are empty fields of the envelope
			bad = append(bad, whole[:length])
		}
	}
	for _, value := range bad {
		if out, err := splice(value, 1); err == nil {
			t.Errorf("%q became %q", value, out)
		}
	}
}

func FuzzSplice(f *testing.F) {
	f.Add(marshal(f, &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string]string{"a": "b"}}), int64(7))
	f.Add([]byte(`{"metadata":{"name":"a"}}`), int64(1<<40))
	f.Fuzz(func(t *testing.T, value []byte, revision int64) {
		once, err := splice(value, revision)
		if err != nil {
			return
		}
		twice, err := splice(once, revision)
		if err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("splicing again gave\n%q, %v, after\n%q", twice, err, once)
		}
	})
}
