package handlers_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

func TestPatchKinds(t *testing.T) {
	s := testserver.Start(t)
	services := s.Client.CoreV1().Services("default")
	_, err := services.Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "one", Port: 1}, {Name: "two", Port: 2}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ports := func(svc *corev1.Service) (names []string) {
		for _, p := range svc.Spec.Ports {
			names = append(names, fmt.Sprintf("%s=%d", p.Name, p.Port))
		}
		slices.Sort(names)
		return names
	}
	for _, c := range []struct {
		kind  types.PatchType
		patch string
		want  []string
	}{
		// A strategic merge joins list items by key; a merge patch replaces lists.
		{types.StrategicMergePatchType, `{"spec":{"ports":[{"port":3,"name":"three"}]}}`, []string{"one=1", "three=3", "two=2"}},
		{types.StrategicMergePatchType, `{"spec":{"ports":[{"port":1,"$patch":"delete"}]}}`, []string{"three=3", "two=2"}},
		{types.JSONPatchType, `[{"op":"add","path":"/spec/ports/-","value":{"name":"four","port":4}},{"op":"test","path":"/metadata/name","value":"a"}]`, []string{"four=4", "three=3", "two=2"}},
		{types.MergePatchType, `{"spec":{"ports":[{"name":"five","port":5}]}}`, []string{"five=5"}},
	} {
		got, err := services.Patch(t.Context(), "a", c.kind, []byte(c.patch), metav1.PatchOptions{})
		if err != nil || !slices.Equal(ports(got), c.want) {
			t.Errorf("%s %s: got %v, want %v: %v", c.kind, c.patch, ports(got), c.want, err)
		}
	}
}

func TestBadPatchesAreRefused(t *testing.T) {
	s := testserver.Start(t)
	r := newRaw(t, s)
	r.want(201, "POST", configMaps, configMap("a"))
	many, _ := json.Marshal(slices.Repeat([]map[string]string{{"op": "test", "path": "/metadata/name", "value": "a"}}, 10_001))
	for _, c := range []struct {
		kind, patch string
		code        int
		message     string
	}{
		{"json-patch+json", `{"op":"add"}`, 400, ""},
		{"json-patch+json", `[{"op":"test","path":"/metadata/name","value":"b"}]`, 422, "the server rejected our request due to an error in our request"},
		{"json-patch+json", `[{"op":"remove","path":"/nowhere"}]`, 422, ""},
		{"json-patch+json", string(many), 413, "The allowed maximum operations in a JSON patch is 10000, got 10001"},
		{"merge-patch+json", `not JSON`, 400, ""},
		{"merge-patch+json", `{"data":1}`, 422, ""},
		{"merge-patch+json", `{"metadata":{"name":"b"}}`, 400, "does not match the name on the URL"},
		{"merge-patch+json", `{"metadata":{"resourceVersion":"1"}}`, 409, "the object has been modified"},
		{"merge-patch+json", `{"kind":"Secret"}`, 422, ""},
		{"strategic-merge-patch+json", `{"data":[`, 400, ""},
		{"strategic-merge-patch+json", `{"metadata":{"$patch":"nonsense"}}`, 422, ""},
	} {
		status := r.want(c.code, "PATCH", configMaps+"/a", c.patch, "Content-Type: application/"+c.kind).status(t)
		if !strings.Contains(status.Message, c.message) {
			t.Errorf("%s %.40s: %s", c.kind, c.patch, status.Message)
		}
	}
	r.want(404, "PATCH", configMaps+"/nowhere", `{}`, "Content-Type: application/merge-patch+json")
	if got := r.want(200, "GET", configMaps+"/a", nil); !strings.Contains(string(got.body), `"key":"value"`) {
		t.Errorf("a refused patch changed the object: %s", got.body)
	}
}

func TestServerSideApply(t *testing.T) {
	s := testserver.Start(t)
	maps := s.Client.CoreV1().ConfigMaps("default")
	apply := func(manager, key, value string, force bool) (*corev1.ConfigMap, error) {
		return maps.Apply(t.Context(), applycorev1.ConfigMap("a", "default").WithData(map[string]string{key: value}),
			metav1.ApplyOptions{FieldManager: manager, Force: force})
	}
	first, err := apply("one", "x", "1", false)
	if err != nil || first.Data["x"] != "1" {
		t.Fatalf("apply that creates: %v, %v", first, err)
	}
	again, err := apply("one", "x", "1", false)
	if err != nil || again.ResourceVersion != first.ResourceVersion {
		t.Errorf("equal apply: version %s became %s: %v", first.ResourceVersion, again.ResourceVersion, err)
	}
	if _, err := apply("two", "y", "2", false); err != nil {
		t.Errorf("apply of another field: %v", err)
	}
	_, err = apply("two", "x", "2", false)
	if !apierrors.IsConflict(err) || !apierrors.HasStatusCause(err, metav1.CauseTypeFieldManagerConflict) {
		t.Fatalf("apply of another's field: %v", err)
	}
	cause := err.(*apierrors.StatusError).ErrStatus.Details.Causes[0] //nolint:errorlint // the client's own type
	if cause.Field != ".data.x" || cause.Message != `conflict with "one"` {
		t.Errorf("cause: %+v", cause)
	}
	got, err := apply("two", "x", "2", true)
	if err != nil || got.Data["x"] != "2" || got.Data["y"] != "" {
		t.Errorf("forced apply: %v, %v (y was applied before and is not any more)", got.Data, err)
	}
	dry, err := maps.Apply(t.Context(), applycorev1.ConfigMap("a", "default").WithData(map[string]string{"z": "3"}),
		metav1.ApplyOptions{FieldManager: "three", DryRun: []string{metav1.DryRunAll}})
	if err != nil || dry.Data["z"] != "3" {
		t.Errorf("dry apply: %v, %v", dry, err)
	}
	if now, _ := maps.Get(t.Context(), "a", metav1.GetOptions{}); now.ResourceVersion != got.ResourceVersion {
		t.Error("dry apply was stored")
	}
}

func TestApplyRefusesWhatItCannotMerge(t *testing.T) {
	r := newRaw(t, testserver.Start(t))
	const apply = "Content-Type: application/apply-patch+yaml"
	for body, code := range map[string]int{
		"a: [":                         400,
		"apiVersion: v1\nkind: Secret": 400,
		"apiVersion: v1\nkind: ConfigMap\nmetadata: []":                              400,
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}":                       400,
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {managedFields: [{manager: x}]}": 400,
		"apiVersion: v1\nkind: ConfigMap\nnonsense: 1":                               400,
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {namespace: other}":              400,
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {uid: abc}":                      409,
	} {
		if got := r.do("PATCH", configMaps+"/a?fieldManager=x", body, apply); got.code != code {
			t.Errorf("%q: got %d, want %d: %s", body, got.code, code, got.body)
		}
	}
	r.want(404, "GET", configMaps+"/a", nil)
}
