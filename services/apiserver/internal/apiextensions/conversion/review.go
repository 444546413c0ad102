package conversion

import (
	"encoding/json"
	"errors"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// review is a ConversionReview; its versions v1 and v1beta1 have the same
// fields.
type review struct {
	metav1.TypeMeta `json:",inline"`
	Request         *apiextensionsv1.ConversionRequest  `json:"request,omitempty"`
	Response        *apiextensionsv1.ConversionResponse `json:"response,omitempty"`
}

// reviewVersion is the first of the versions that the webhook knows that we
// know too.
func reviewVersion(known []string) (schema.GroupVersion, error) {
	for _, version := range known {
		switch version {
		case apiextensionsv1.SchemeGroupVersion.Version:
			return apiextensionsv1.SchemeGroupVersion, nil
		case apiextensionsv1beta1.SchemeGroupVersion.Version:
			return apiextensionsv1beta1.SchemeGroupVersion, nil
		}
	}
	return schema.GroupVersion{}, errors.New("no supported conversion review versions")
}

func newReview(version schema.GroupVersion, uid types.UID, objects [][]byte, to schema.GroupVersion) ([]byte, error) {
	raw := make([]runtime.RawExtension, len(objects))
	for i, data := range objects {
		raw[i].Raw = data
	}
	return json.Marshal(review{
		TypeMeta: metav1.TypeMeta{Kind: "ConversionReview", APIVersion: version.String()},
		Request: &apiextensionsv1.ConversionRequest{
			UID: uid, DesiredAPIVersion: to.String(), Objects: raw,
		},
	})
}

// parse are the objects in a webhook's answer: as many as it was sent.
func parse(data []byte, version schema.GroupVersion, uid types.UID, count int) ([]*unstructured.Unstructured, error) {
	var answer review
	if err := utiljson.Unmarshal(data, &answer); err != nil {
		return nil, fmt.Errorf("reading its answer: %w", err)
	}
	if want := version.WithKind("ConversionReview"); answer.GroupVersionKind() != want {
		return nil, fmt.Errorf("expected webhook response of %v, got %v", want, answer.GroupVersionKind())
	}
	response := answer.Response
	switch {
	case response == nil:
		return nil, errors.New("no response provided")
	case version == apiextensionsv1.SchemeGroupVersion && response.UID != uid:
		return nil, fmt.Errorf("expected response.uid=%q, got %q", uid, response.UID)
	case response.Result.Status != metav1.StatusSuccess:
		if response.Result.Message != "" {
			return nil, errors.New(response.Result.Message)
		}
		return nil, fmt.Errorf("response.result.status was '%s', not 'Success'", response.Result.Status)
	case len(response.ConvertedObjects) != count:
		return nil, fmt.Errorf("returned %d objects, expected %d", len(response.ConvertedObjects), count)
	}
	objects := make([]*unstructured.Unstructured, count)
	for i, converted := range response.ConvertedObjects {
		var content map[string]any
		if len(converted.Raw) > 0 {
			if err := utiljson.Unmarshal(converted.Raw, &content); err != nil {
				return nil, fmt.Errorf("reading the converted object: %w", err)
			}
		}
		if content == nil {
			return nil, errors.New("the converted object is null")
		}
		objects[i] = &unstructured.Unstructured{Object: content}
	}
	return objects, nil
}
