package handlers

import (
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sampan-io/sampan/services/apiserver/internal/negotiation"
)

// untypedBody reads an object without a Go type, as its schema allows.
func (e *endpoint) untypedBody(r *http.Request, level string) (runtime.Object, error) {
	format, err := negotiation.Body(r)
	if err == nil && format == negotiation.Protobuf {
		err = negotiation.UnsupportedBody([]string{runtime.ContentTypeJSON, runtime.ContentTypeYAML, runtime.ContentTypeCBOR})
	}
	if err != nil {
		return nil, err
	}
	body, err := readBody(r)
	if err != nil {
		return nil, err
	}
	d, err := decoder(format, level != metav1.FieldValidationIgnore)
	if err != nil {
		return nil, err
	}
	obj, gvk, err := d.Decode(body, &e.kind, e.resource.New())
	if err != nil && !runtime.IsStrictDecodingError(err) {
		return nil, decodeError(e.kind, gvk, err, body)
	}
	if got := obj.GetObjectKind().GroupVersionKind(); got.GroupVersion() != e.kind.GroupVersion() {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%s)", got.GroupVersion(), e.kind.GroupVersion()))
	} else if got != e.kind {
		return nil, decodeError(e.kind, &got, fmt.Errorf("converting (%s) to (%s): unknown conversion", got.Kind, e.kind.Kind), body)
	}
	strict, err := e.coerce(obj, err, level)
	if err != nil {
		return nil, decodeError(e.kind, gvk, err, body)
	}
	warnStrict(r, strict)
	return obj, nil
}

// coerce applies the schema to a decoded object. Decoded is the strict error of
// the decoding. It returns what is to be warned of, or what is wrong.
func (e *endpoint) coerce(obj runtime.Object, decoded error, level string) ([]error, error) {
	unknown, err := e.resource.Untyped.Coerce(obj, level != metav1.FieldValidationIgnore)
	if err != nil {
		return nil, err
	}
	var strict []error
	if errs, ok := runtime.AsStrictDecodingError(decoded); ok {
		strict = errs.Errors()
	}
	for _, path := range unknown {
		strict = append(strict, fmt.Errorf("unknown field %q", path))
	}
	if len(strict) > 0 && level == metav1.FieldValidationStrict {
		return nil, runtime.NewStrictDecodingError(strict)
	}
	return strict, nil
}

// decodePatched reads a patched document, and tells of unknown fields by a
// runtime.StrictDecodingError beside the object.
func (e *endpoint) decodePatched(data []byte, level string) (runtime.Object, error) {
	obj, err := decodeAs(e.kind, e.resource.New)(data, level)
	if e.resource.Untyped == nil || obj == nil || err != nil && !runtime.IsStrictDecodingError(err) {
		return obj, err
	}
	strict, coerceErr := e.coerce(obj, err, level)
	if _, unknown := runtime.AsStrictDecodingError(coerceErr); coerceErr != nil && !unknown {
		return nil, coerceErr
	} else if unknown {
		return obj, coerceErr
	}
	if len(strict) > 0 {
		return obj, runtime.NewStrictDecodingError(strict)
	}
	return obj, nil
}

// patchTypes are the kinds of patches that the endpoint takes. Strategic merges
// need the tags of a Go type.
func (e *endpoint) patchTypes() []types.PatchType {
	if e.resource.Untyped != nil {
		return []types.PatchType{types.JSONPatchType, types.MergePatchType, types.ApplyYAMLPatchType, types.ApplyCBORPatchType}
	}
	return []types.PatchType{types.JSONPatchType, types.MergePatchType, types.StrategicMergePatchType, types.ApplyYAMLPatchType, types.ApplyCBORPatchType}
}
