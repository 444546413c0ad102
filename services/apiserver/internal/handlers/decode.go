package handlers

import (
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/negotiation"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
	"github.com/sampan-io/sampan/services/apiserver/internal/scheme"
)

// strictness of decoding, from fieldValidation.
func strictness(fieldValidation string) string {
	if fieldValidation == "" {
		return metav1.FieldValidationWarn
	}
	return fieldValidation
}

// decoder is the deserializer of a format, one that tells of unknown and
// repeated fields if strict.
func decoder(format negotiation.Format, strict bool) (runtime.Decoder, error) {
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), format.MediaType())
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("no serializer for %s", format.MediaType()))
	}
	if strict {
		return info.StrictSerializer, nil
	}
	return info.Serializer, nil
}

// answers is what the endpoint can answer with.
func (e *endpoint) answers() negotiation.Endpoint {
	return negotiation.Endpoint{Views: true, TextOnly: e.resource.Untyped != nil}
}

// body reads an object of the endpoint's kind from a request's body.
func (e *endpoint) body(r *http.Request, fieldValidation string) (runtime.Object, error) {
	if e.resource.Untyped == nil {
		return decodeBody(r, fieldValidation, e.kind, e.resource.New())
	}
	return e.untypedBody(r, strictness(fieldValidation))
}

// decodeBody reads an object of a kind from a request's body.
func decodeBody(r *http.Request, fieldValidation string, kind schema.GroupVersionKind, into runtime.Object) (runtime.Object, error) {
	format, err := negotiation.Body(r)
	if err != nil {
		return nil, err
	}
	body, err := readBody(r)
	if err != nil {
		return nil, err
	}
	level := strictness(fieldValidation)
	d, err := decoder(format, level != metav1.FieldValidationIgnore)
	if err != nil {
		return nil, err
	}
	obj, gvk, err := d.Decode(body, &kind, into)
	if err != nil {
		strict, ok := runtime.AsStrictDecodingError(err)
		if !ok || obj == nil || level != metav1.FieldValidationWarn {
			return nil, decodeError(kind, gvk, err, body)
		}
		warnStrict(r, strict.Errors())
	}
	if gvk.GroupVersion() != kind.GroupVersion() {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%s)", gvk.GroupVersion(), kind.GroupVersion()))
	}
	if gvk.Kind != kind.Kind {
		return nil, decodeError(kind, gvk, fmt.Errorf("converting (%s) to (%s): unknown conversion", gvk.Kind, kind.Kind), body)
	}
	obj.GetObjectKind().SetGroupVersionKind(kind)
	return obj, nil
}

func warnStrict(r *http.Request, errs []error) {
	for _, err := range errs {
		request.AddWarning(r.Context(), err.Error())
	}
}

// decodeError says what was wrong with a body, with its start when not even its
// kind can be told.
func decodeError(want schema.GroupVersionKind, got *schema.GroupVersionKind, err error, body []byte) error {
	if got != nil && got.Kind != "" {
		return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", got.Kind, got.Version, want.Kind, err))
	}
	return apierrors.NewBadRequest(fmt.Sprintf("the object provided is unrecognized (must be of type %s): %v (%s)", want.Kind, err, summary(body)))
}

const summaryBytes = 30

func summary(body []byte) string {
	if len(body) == 0 {
		return "<empty>"
	}
	if body[0] == '{' {
		return truncated(string(body), len(body) > summaryBytes, summaryBytes)
	}
	return truncated(hex.EncodeToString(body[:min(len(body), summaryBytes)]), len(body) > summaryBytes, 2*summaryBytes)
}

func truncated(s string, cut bool, limit int) string {
	if cut {
		return s[:min(len(s), limit)] + " ..."
	}
	return s
}

// deleteOptions reads the options of a delete from its body, or from its query.
func deleteOptions(r *http.Request) (*metav1.DeleteOptions, error) {
	options := &metav1.DeleteOptions{}
	body, err := readBody(r)
	if err != nil {
		return nil, err
	}
	if len(body) == 0 {
		if err := decodeQuery(r, options); err != nil {
			return nil, err
		}
		options.TypeMeta = optionsKind("DeleteOptions")
		return options, nil
	}
	format, err := negotiation.Body(r)
	if err != nil {
		return nil, err
	}
	d, err := decoder(format, false)
	if err != nil {
		return nil, err
	}
	// Each group has a DeleteOptions of its own, which are all the same type.
	kind := metav1.SchemeGroupVersion.WithKind("DeleteOptions")
	obj, _, err := d.Decode(body, &kind, options)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	decoded, ok := obj.(*metav1.DeleteOptions)
	if !ok {
		return nil, apierrors.NewBadRequest("decoded object cannot be converted to DeleteOptions")
	}
	decoded.TypeMeta = optionsKind("DeleteOptions")
	return decoded, nil
}

func hasVerb(verbs []string, verb string) bool { return slices.Contains(verbs, verb) }
