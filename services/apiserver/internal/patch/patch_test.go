package patch_test

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sampan-io/sampan/services/apiserver/internal/patch"
	"github.com/sampan-io/sampan/services/apiserver/internal/scheme"
)

func FuzzApply(f *testing.F) {
	for _, seed := range []string{
		`[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]`, `[{"op":"copy","from":"/spec","path":"/status"}]`, `[{"op":"move"}]`,
		`{"spec":{"ports":[{"port":1,"$patch":"delete"}]}}`, `{"spec":{"$setElementOrder/ports":[{"port":1}]}}`, `{"metadata":null}`, `null`, `[`,
	} {
		for kind := range byte(3) {
			f.Add([]byte(seed), kind)
		}
	}
	kinds := []types.PatchType{types.JSONPatchType, types.MergePatchType, types.StrategicMergePatchType}
	current := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{Kind: "Service", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "b"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "x", Port: 1}, {Name: "y", Port: 2}}},
	}
	f.Fuzz(func(t *testing.T, data []byte, kind byte) {
		p := patch.Patch{
			Type: kinds[int(kind)%len(kinds)], Data: data, Strictness: metav1.FieldValidationStrict,
			New: func() runtime.Object { return &corev1.Service{} },
			Decode: func(data []byte) (runtime.Object, error) {
				info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
				obj, _, err := info.StrictSerializer.Decode(data, nil, &corev1.Service{})
				return obj, err
			},
		}
		before := current.DeepCopy()
		_, _, err := p.Apply(current)
		if current.Name != before.Name || len(current.Spec.Ports) != 2 {
			t.Fatal("the patch changed the current object")
		}
		var status apierrors.APIStatus
		if err != nil && (!errors.As(err, &status) || status.Status().Code >= 500) {
			t.Errorf("the error is not the client's: %v", err)
		}
	})
}
