package negotiation_test

import (
	"errors"
	"net/http/httptest"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/sampan-io/sampan/services/apiserver/internal/negotiation"
)

func FuzzAccept(f *testing.F) {
	for _, seed := range []string{
		"", "*/*", "application/json", "application/vnd.kubernetes.protobuf;stream=watch,application/json;q=0.5",
		"application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "application/json;as=PartialObjectMetadataList;v=v9;g=x",
		"application/yaml", "text/html;q=2", ";;;", "a/b;c=\"", "application/json;as=Table;as=Table;q=NaN", "*/json", "application/cbor-seq",
	} {
		f.Add(seed, seed, true, false)
		f.Add(seed, "", false, true)
	}
	f.Fuzz(func(t *testing.T, accept, contentType string, views, stream bool) {
		r := httptest.NewRequest("POST", "/", nil)
		r.Header.Set("Accept", accept)
		r.Header.Set("Content-Type", contentType)
		out, err := negotiation.Accept(r, negotiation.Endpoint{Views: views, Stream: stream})
		assertCode(t, err, 406)
		if err == nil && (out.View != negotiation.Whole && !views || stream && out.Format == negotiation.YAML || out.Format.MediaType() == "") {
			t.Errorf("%q is answered with %+v", accept, out)
		}
		_, err = negotiation.Body(r)
		assertCode(t, err, 415)
	})
}

func assertCode(t *testing.T, err error, want int32) {
	t.Helper()
	var status apierrors.APIStatus
	if err != nil && (!errors.As(err, &status) || status.Status().Code != want) {
		t.Errorf("the error is %v, want one with code %d", err, want)
	}
}
