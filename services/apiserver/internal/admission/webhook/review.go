package webhook

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kjson "sigs.k8s.io/json"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission/intercept"
)

// maxOperations bounds the operations of a patch, as patches of clients are.
const maxOperations = 10000

func reviewKind() (apiVersion, kind string) {
	return admissionv1.SchemeGroupVersion.String(), "AdmissionReview"
}

// newReview is the document that asks about a request, and its id.
func newReview(r *intercept.Request, v *intercept.Version, dryRun bool) ([]byte, types.UID, error) {
	request := *r.AdmissionRequest(v)
	request.UID = types.UID(uuid.NewString())
	request.DryRun = &dryRun
	object, old, err := v.JSON()
	if err != nil {
		return nil, "", err
	}
	request.Object, request.OldObject = runtime.RawExtension{Raw: object}, runtime.RawExtension{Raw: old}
	review := admissionv1.AdmissionReview{Request: &request}
	review.APIVersion, review.Kind = reviewKind()
	data, err := json.Marshal(review)
	return data, request.UID, err
}

// readResponse reads a webhook's answer to the request of that id.
func readResponse(data []byte, id types.UID, mutating bool) (*admissionv1.AdmissionResponse, error) {
	var review admissionv1.AdmissionReview
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &review); err != nil {
		return nil, fmt.Errorf("the response is no AdmissionReview: %w", err)
	}
	version, kind := reviewKind()
	r := review.Response
	switch {
	case r == nil:
		return nil, errors.New("webhook response was absent")
	case r.UID != id:
		return nil, fmt.Errorf("expected response.uid=%q, got %q", id, r.UID)
	case review.APIVersion != version || review.Kind != kind:
		return nil, fmt.Errorf("expected webhook response of %s, Kind=%s, got %s, Kind=%s", version, kind, review.APIVersion, review.Kind)
	case !mutating:
		return r, noPatch(r)
	case len(r.Patch) > 0 && r.PatchType == nil:
		return nil, errors.New("webhook returned response.patch but not response.patchType")
	case len(r.Patch) == 0 && r.PatchType != nil:
		return nil, errors.New("webhook returned response.patchType but not response.patch")
	case r.PatchType != nil && *r.PatchType != admissionv1.PatchTypeJSONPatch:
		return nil, fmt.Errorf("webhook returned invalid response.patchType of %q", *r.PatchType)
	}
	return r, nil
}

// noPatch refuses the patch of a webhook that only validates.
func noPatch(r *admissionv1.AdmissionResponse) error {
	switch {
	case len(r.Patch) > 0:
		return errors.New("validating webhook may not return response.patch")
	case r.PatchType != nil:
		return errors.New("validating webhook may not return response.patchType")
	}
	return nil
}

// decodePatch reads a JSON patch.
func decodePatch(data []byte) (jsonpatch.Patch, error) {
	patch, err := jsonpatch.DecodePatch(data)
	if err == nil && len(patch) > maxOperations {
		return nil, fmt.Errorf("the allowed maximum operations in a JSON patch is %d, got %d", maxOperations, len(patch))
	}
	return patch, err
}
