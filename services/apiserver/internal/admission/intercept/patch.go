package intercept

import (
	"errors"
	"fmt"
	"reflect"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"
)

// ApplyPatch is the object as a patch of its document leaves it, of the same kind.
func ApplyPatch(patch jsonpatch.Patch, document []byte, obj runtime.Object) (out runtime.Object, err error) {
	defer func() {
		if r := recover(); r != nil {
			out, err = nil, fmt.Errorf("the patch cannot be applied: %v", r)
		}
	}()
	patched, err := patch.Apply(document)
	if err != nil {
		return nil, err
	}
	return decodeLike(obj, patched)
}

// decodeLike reads a document as an object of obj's type and kind.
func decodeLike(obj runtime.Object, document []byte) (runtime.Object, error) {
	var out runtime.Object
	var err error
	if _, untyped := obj.(*unstructured.Unstructured); untyped {
		u := &unstructured.Unstructured{}
		err = kjson.UnmarshalCaseSensitivePreserveInts(document, &u.Object)
		if err == nil && u.Object == nil {
			err = errors.New("the document is null")
		}
		out = u
	} else {
		out = reflect.New(reflect.TypeOf(obj).Elem()).Interface().(runtime.Object)
		err = kjson.UnmarshalCaseSensitivePreserveInts(document, out)
	}
	if err != nil {
		return nil, err
	}
	if had, has := obj.GetObjectKind().GroupVersionKind(), out.GetObjectKind().GroupVersionKind(); had != has {
		return nil, fmt.Errorf("the patch changes the object's kind from %s to %s", had, has)
	}
	return out, nil
}
