// Package patch applies the patch kinds of the API other than server-side apply
// to objects: JSON patch, JSON merge patch and strategic merge patch.
package patch

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
)

// MaxOperations bounds the operations of a JSON patch.
const MaxOperations = 10_000

// LimitCopies bounds what the copy operations of one JSON patch may add to a
// document, in bytes. The limit is the library's, and so the process's: call it
// once, before the first patch.
func LimitCopies(bytes int64) { jsonpatch.AccumulatedCopySizeLimit = bytes }

// Patch is one patch to be applied.
type Patch struct {
	Type types.PatchType
	Data []byte
	// Strictness is the request's fieldValidation.
	Strictness string
	// Decode reads the patched document, and tells of unknown fields by a
	// runtime.StrictDecodingError beside the object.
	Decode func(data []byte) (runtime.Object, error)
	// New makes an empty object of the kind, whose struct tags steer strategic
	// merges.
	New func() runtime.Object
}

// Apply is the patched copy of current, and warnings about unknown or repeated
// fields. Errors are API statuses.
func (p Patch) Apply(current runtime.Object) (runtime.Object, []error, error) {
	if p.Type == types.StrategicMergePatchType {
		return p.strategic(current)
	}
	document, err := json.Marshal(current)
	if err != nil {
		return nil, nil, apierrors.NewInternalError(err)
	}
	var patched []byte
	var strict []error
	switch p.Type {
	case types.JSONPatchType:
		patched, strict, err = p.operations(document)
	case types.MergePatchType:
		patched, strict, err = p.merge(document)
	default:
		err = apierrors.NewInternalError(fmt.Errorf("unknown patch type %q", p.Type))
	}
	if err != nil {
		return nil, nil, err
	}
	return p.decode(patched, strict)
}

// checks says whether unknown and repeated fields are looked for.
func (p Patch) checks() bool { return p.Strictness != metav1.FieldValidationIgnore }

// operation is one operation of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	From  string `json:"from"`
	Value any    `json:"value"`
}

func (p Patch) operations(document []byte) ([]byte, []error, error) {
	var strict []error
	if p.checks() {
		var list []operation
		errs, err := kjson.UnmarshalStrict(p.Data, &list)
		if err != nil {
			return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
		}
		for _, err := range errs {
			strict = append(strict, fmt.Errorf("json patch %w", err))
		}
	}
	list, err := jsonpatch.DecodePatch(p.Data)
	if err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	if len(list) > MaxOperations {
		return nil, nil, apierrors.NewRequestEntityTooLargeError(
			fmt.Sprintf("The allowed maximum operations in a JSON patch is %d, got %d", MaxOperations, len(list)))
	}
	patched, err := list.Apply(document)
	if err != nil {
		return nil, nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
	}
	return patched, strict, nil
}

func (p Patch) merge(document []byte) ([]byte, []error, error) {
	var strict []error
	if p.checks() {
		var fields map[string]any
		errs, err := kjson.UnmarshalStrict(p.Data, &fields)
		if err != nil {
			return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
		}
		strict = errs
	}
	patched, err := jsonpatch.MergePatch(document, p.Data)
	if err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	return patched, strict, nil
}

func (p Patch) decode(patched []byte, strict []error) (runtime.Object, []error, error) {
	obj, err := p.Decode(patched)
	if err != nil {
		unknown, ok := runtime.AsStrictDecodingError(err)
		if !ok || obj == nil {
			return nil, nil, invalid(string(patched), err)
		}
		strict = append(strict, unknown.Errors()...)
	}
	if len(strict) > 0 && p.Strictness == metav1.FieldValidationStrict {
		return nil, nil, invalid(string(patched), runtime.NewStrictDecodingError(strict))
	}
	return obj, strict, nil
}

func invalid(patch string, err error) error {
	return apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{
		field.Invalid(field.NewPath("patch"), patch, err.Error()),
	})
}

func (p Patch) strategic(current runtime.Object) (runtime.Object, []error, error) {
	document, err := runtime.DefaultUnstructuredConverter.ToUnstructured(current)
	if err != nil {
		return nil, nil, apierrors.NewInternalError(err)
	}
	var fields map[string]any
	var strict []error
	if p.checks() {
		strict, err = kjson.UnmarshalStrict(p.Data, &fields)
	} else {
		err = kjson.UnmarshalCaseSensitivePreserveInts(p.Data, &fields)
	}
	if err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	merged, err := strategicpatch.StrategicMergeMapPatch(document, fields, p.New())
	if err != nil {
		return nil, nil, strategicError(err)
	}
	obj := p.New()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(merged, obj, p.checks()); err != nil {
		unknown, ok := runtime.AsStrictDecodingError(err)
		if !ok {
			return nil, nil, invalid(fmt.Sprintf("%+v", fields), err)
		}
		strict = append(strict, unknown.Errors()...)
	}
	if len(strict) > 0 && p.Strictness == metav1.FieldValidationStrict {
		return nil, nil, invalid(fmt.Sprintf("%+v", fields), runtime.NewStrictDecodingError(strict))
	}
	return obj, strict, nil
}

// strategicError tells patches that are malformed from those that do not fit.
func strategicError(err error) error {
	malformed := []error{
		mergepatch.ErrBadJSONDoc, mergepatch.ErrBadPatchFormatForPrimitiveList, mergepatch.ErrBadPatchFormatForRetainKeys,
		mergepatch.ErrBadPatchFormatForSetElementOrderList, mergepatch.ErrUnsupportedStrategicMergePatchFormat,
	}
	for _, m := range malformed {
		if errors.Is(err, m) {
			return apierrors.NewBadRequest(err.Error())
		}
	}
	return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
}
