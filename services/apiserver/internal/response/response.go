// Package response writes answers: objects in the form that the client accepts,
// and errors as API statuses.
package response

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/sampan-io/sampan/services/apiserver/internal/negotiation"
	"github.com/sampan-io/sampan/services/apiserver/internal/scheme"
)

// Error answers with err as an API status, in the form that the client accepts
// or else in JSON.
func Error(w http.ResponseWriter, r *http.Request, err error) {
	status := Status(err)
	if status.Details != nil && status.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(status.Details.RetryAfterSeconds)))
	}
	code := int(status.Code)
	if code == http.StatusNoContent {
		w.WriteHeader(code)
		return
	}
	out, negotiateErr := negotiation.Accept(r, negotiation.Endpoint{Views: true})
	if negotiateErr != nil {
		out = negotiation.Output{}
	}
	body, encodeErr := Encode(status, out)
	if encodeErr != nil {
		http.Error(w, status.Message, code)
		return
	}
	Bytes(w, r, code, out, body)
}

// Status is err as the API status that the client gets, complete with its kind.
func Status(err error) *metav1.Status {
	var known apierrors.APIStatus
	status := metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: "unknown error"}
	if errors.As(err, &known) {
		status = known.Status()
	} else if err != nil {
		status.Message = err.Error()
	}
	if status.Status == "" {
		status.Status = metav1.StatusFailure
	}
	if status.Code == 0 {
		status.Code = http.StatusInternalServerError
		if status.Status == metav1.StatusSuccess {
			status.Code = http.StatusOK
		}
	}
	status.Kind, status.APIVersion = "Status", "v1"
	return &status
}

// Encode is obj in a form; apiVersion and kind must be set.
func Encode(obj runtime.Object, out negotiation.Output) ([]byte, error) {
	switch out.Format {
	case negotiation.Protobuf:
		return Protobuf(obj)
	case negotiation.CBOR:
		return CBOR(obj)
	}
	data, err := JSON(obj)
	if err != nil {
		return nil, err
	}
	return FromJSON(data, out)
}

// JSON is obj in JSON, with the final newline that upstream's servers send.
func JSON(obj any) ([]byte, error) {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		obj = u.Object // its own method does the same, and encoding/json compacts that again
	}
	data, err := json.Marshal(obj)
	if err != nil {
		return nil, err
	}
	return append(data, '\n'), nil
}

// Protobuf is obj in the protobuf envelope.
func Protobuf(obj runtime.Object) ([]byte, error) {
	var buffer bytes.Buffer
	err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(obj, &buffer)
	return buffer.Bytes(), err
}

// CBOR is obj in CBOR, with the tag that says so.
func CBOR(obj runtime.Object) ([]byte, error) {
	var buffer bytes.Buffer
	err := cbor.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(obj, &buffer)
	return buffer.Bytes(), err
}

// FromJSON turns a JSON document into the form that is asked for.
func FromJSON(data []byte, out negotiation.Output) ([]byte, error) {
	switch {
	case out.Format == negotiation.CBOR:
		var content map[string]any
		if err := utiljson.Unmarshal(data, &content); err != nil {
			return nil, err
		}
		return CBOR(&unstructured.Unstructured{Object: content})
	case out.Format == negotiation.YAML:
		return yaml.JSONToYAML(data)
	case out.Pretty:
		var buffer bytes.Buffer
		if err := json.Indent(&buffer, bytes.TrimSpace(data), "", "  "); err != nil {
			return nil, err
		}
		return buffer.Bytes(), nil
	}
	return data, nil
}

// Bytes answers with an encoded body.
func Bytes(w http.ResponseWriter, r *http.Request, code int, out negotiation.Output, body []byte) {
	Parts(w, r, code, out.Format.MediaType(), [][]byte{body})
}
