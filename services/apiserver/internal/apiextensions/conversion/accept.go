package conversion

import (
	"errors"
	"fmt"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// accept checks that out is in, in another version, and gives it in's metadata:
// webhooks may change labels and annotations alone.
func accept(in, out *unstructured.Unstructured, want schema.GroupVersionKind) error {
	if got := out.GroupVersionKind(); got.GroupVersion() != want.GroupVersion() {
		return fmt.Errorf("invalid groupVersion (expected %v, received %v)", want.GroupVersion(), got.GroupVersion())
	} else if got.Kind != want.Kind {
		return fmt.Errorf("invalid kind (expected %v, received %v)", want.Kind, got.Kind)
	}
	received, ok := out.Object["metadata"].(map[string]any)
	if !ok {
		return errors.New("it has no metadata")
	}
	for _, same := range []struct{ what, in, out string }{
		{"name", in.GetName(), out.GetName()}, {"namespace", in.GetNamespace(), out.GetNamespace()},
		{"UID", string(in.GetUID()), string(out.GetUID())},
	} {
		if same.in != same.out {
			return fmt.Errorf("must have the same %s: %v != %v", same.what, same.in, same.out)
		}
	}
	kept, _ := in.Object["metadata"].(map[string]any)
	meta := runtime.DeepCopyJSON(kept)
	if meta == nil {
		meta = map[string]any{}
	}
	for _, name := range []string{"labels", "annotations"} {
		changed, err := stringMap(name, received[name])
		if err != nil {
			return err
		}
		delete(meta, name)
		if changed != nil {
			meta[name] = changed
		}
	}
	out.Object["metadata"] = meta
	return nil
}

// stringMap checks the labels or annotations that came back.
func stringMap(name string, value any) (map[string]any, error) {
	if value == nil {
		return nil, nil
	}
	content, ok := value.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("invalid metadata.%s of type %T", name, value)
	}
	texts := make(map[string]string, len(content))
	for key, v := range content {
		if texts[key], ok = v.(string); !ok {
			return nil, fmt.Errorf("metadata.%s[%s] must be a string, but is %T", name, key, v)
		}
	}
	path := field.NewPath("metadata", name)
	var errs field.ErrorList
	if name == "labels" {
		errs = metav1validation.ValidateLabels(texts, path)
	} else {
		errs = apivalidation.ValidateAnnotations(texts, path)
	}
	return content, errs.ToAggregate()
}
