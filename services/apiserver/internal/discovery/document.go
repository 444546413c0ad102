package discovery

import (
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/munnerz/goautoneg"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sampan-io/sampan/services/apiserver/internal/negotiation"
	"github.com/sampan-io/sampan/services/apiserver/internal/response"
)

// document is one discovery object with what is made of it.
type document struct {
	object runtime.Object
	json   []byte
	etag   string
}

func newDocument(object runtime.Object) document {
	data, err := response.JSON(object)
	if err != nil {
		panic("discovery: " + err.Error()) // plain structs always encode
	}
	return document{object: object, json: data, etag: fmt.Sprintf("%X", sha512.Sum512(data))}
}

// aggregatedJSON is the media type of the aggregated form.
const aggregatedParameters = ";g=apidiscovery.k8s.io;v=%s;as=APIGroupDiscoveryList"

// serve answers with the aggregated form if there is one and the client prefers
// it, with the plain one otherwise.
func serve(w http.ResponseWriter, r *http.Request, plain document, aggregated lazy) {
	w.Header().Set("Vary", "Accept")
	if aggregated != nil {
		if format, version, ok := wantsAggregated(r.Header.Get("Accept")); ok {
			serveAggregated(w, r, aggregated(), format, version)
			return
		}
	}
	out, err := negotiation.Accept(r, negotiation.Endpoint{})
	if err != nil {
		response.Error(w, r, err)
		return
	}
	var data []byte
	if out.Format == negotiation.Protobuf {
		data, err = response.Protobuf(plain.object)
	} else {
		data, err = response.FromJSON(plain.json, out)
	}
	if err != nil {
		response.Error(w, r, apierrors.NewInternalError(err))
		return
	}
	response.Bytes(w, r, http.StatusOK, out, data)
}

// wantsAggregated looks at the clauses that come before the first plain one.
func wantsAggregated(accept string) (negotiation.Format, string, bool) {
	for _, clause := range goautoneg.ParseAccept(accept) {
		format := negotiation.JSON
		switch clause.Type + "/" + clause.SubType {
		case "application/json":
		case "application/vnd.kubernetes.protobuf":
			format = negotiation.Protobuf
		case "*/*", "application/*":
			return format, "", false
		default:
			continue
		}
		if clause.Params["as"] == "" {
			return format, "", false
		}
		version := clause.Params["v"]
		if clause.Params["as"] == "APIGroupDiscoveryList" && clause.Params["g"] == "apidiscovery.k8s.io" && (version == "v2" || version == "v2beta1") {
			return format, version, true
		}
	}
	return negotiation.JSON, "", false
}

func serveAggregated(w http.ResponseWriter, r *http.Request, doc document, format negotiation.Format, version string) {
	etag := `"` + doc.etag + `"`
	w.Header().Set("Etag", etag)
	w.Header().Set("Cache-Control", "public")
	if r.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	data, err := doc.encode(format, version)
	if err != nil {
		response.Error(w, r, apierrors.NewInternalError(err))
		return
	}
	mediaType := format.MediaType() + fmt.Sprintf(aggregatedParameters, version)
	response.Parts(w, r, http.StatusOK, mediaType, [][]byte{data})
}

// encode is the document in a format. Versions v2 and v2beta1 have the same
// fields.
func (d *document) encode(format negotiation.Format, version string) ([]byte, error) {
	if version == "v2" && format == negotiation.JSON {
		return d.json, nil
	}
	object := d.object.DeepCopyObject()
	kind := object.GetObjectKind().GroupVersionKind()
	kind.Version = version
	object.GetObjectKind().SetGroupVersionKind(kind)
	if format == negotiation.Protobuf {
		return response.Protobuf(object)
	}
	return json.Marshal(object)
}
