// Package negotiation reads what form of answer a client accepts, and what form
// its body has.
package negotiation

import (
	"fmt"
	"mime"
	"net/http"
	"strings"

	"github.com/munnerz/goautoneg"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Format is a serialization.
type Format uint8

// The formats.
const (
	JSON Format = iota
	YAML
	Protobuf
	CBOR
)

// MediaType is the format's name on the wire.
func (f Format) MediaType() string {
	switch f {
	case YAML:
		return runtime.ContentTypeYAML
	case Protobuf:
		return runtime.ContentTypeProtobuf
	case CBOR:
		return runtime.ContentTypeCBOR
	default:
		return runtime.ContentTypeJSON
	}
}

// StreamType is the name of a sequence of such documents.
func (f Format) StreamType() string {
	switch f {
	case Protobuf:
		return runtime.ContentTypeProtobuf + ";stream=watch"
	case CBOR:
		return runtime.ContentTypeCBORSequence
	default:
		return f.MediaType()
	}
}

// View is what is sent of objects.
type View uint8

// The views.
const (
	Whole    View = iota
	Table         // printed columns
	Metadata      // PartialObjectMetadata or a list of them
)

// Output is the form of an answer.
type Output struct {
	Format Format
	View   View
	// Version of meta.k8s.io in which a Table or partial metadata is asked for.
	Version string
	Pretty  bool
}

// Endpoint says what an endpoint can answer with.
type Endpoint struct {
	Views  bool // Tables and partial metadata
	Stream bool // a watch: no YAML
	// TextOnly endpoints do not have whole objects in protobuf.
	TextOnly bool
}

// Accept chooses the form of the answer. It returns a 406 when the client takes
// none that there is.
func Accept(r *http.Request, endpoint Endpoint) (Output, error) {
	header := r.Header.Get("Accept")
	if header == "" || header == "application/json" || header == "*/*" {
		return Output{Pretty: prettyQuery(r)}, nil
	}
	for _, clause := range goautoneg.ParseAccept(header) {
		if out, ok := match(clause, endpoint); ok {
			out.Pretty = out.Pretty || prettyQuery(r)
			return out, nil
		}
	}
	return Output{}, notAcceptable(endpoint)
}

func match(clause goautoneg.Accept, endpoint Endpoint) (Output, bool) {
	var out Output
	switch clause.Type + "/" + clause.SubType {
	case "application/json", "*/*", "application/*":
	case "application/yaml":
		out.Format = YAML
	case "application/vnd.kubernetes.protobuf":
		out.Format = Protobuf
	case runtime.ContentTypeCBOR:
		out.Format = CBOR
	default:
		return out, false
	}
	if endpoint.Stream && out.Format == YAML || endpoint.TextOnly && out.Format == Protobuf && clause.Params["as"] == "" {
		return out, false
	}
	if stream := clause.Params["stream"]; stream != "" && (!endpoint.Stream || stream != "watch") {
		return out, false
	}
	out.Pretty = clause.Params["pretty"] == "1"
	kind, asked := clause.Params["as"]
	if !asked {
		return out, clause.Params["g"] == "" && clause.Params["v"] == ""
	}
	return out, endpoint.Views && out.view(kind, clause.Params["g"], clause.Params["v"])
}

// view takes the view that a clause asks for, and says whether there is such a
// one in the format.
func (o *Output) view(kind, group, version string) bool {
	o.Version = version
	if group != metav1.GroupName || version != "v1" && version != "v1beta1" {
		return false
	}
	switch kind {
	case "Table":
		o.View = Table
		return o.Format != Protobuf
	case "PartialObjectMetadata", "PartialObjectMetadataList":
		o.View = Metadata
		return true
	}
	return false
}

// prettyQuery follows ?pretty, and indents for people's command-line tools and
// browsers when it is not given.
func prettyQuery(r *http.Request) bool {
	if strings.Contains(r.URL.RawQuery, "pretty") {
		if values, ok := r.URL.Query()["pretty"]; ok && len(values) > 0 {
			return values[0] != "" && values[0] != "0" && !strings.EqualFold(values[0], "false")
		}
	}
	agent := r.Header.Get("User-Agent")
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
}

func notAcceptable(endpoint Endpoint) error {
	types := []string{runtime.ContentTypeJSON, runtime.ContentTypeYAML, runtime.ContentTypeCBOR, runtime.ContentTypeProtobuf}
	if endpoint.Stream {
		types = []string{runtime.ContentTypeJSON + ";stream=watch", runtime.ContentTypeCBORSequence, runtime.ContentTypeProtobuf + ";stream=watch"}
	}
	if endpoint.TextOnly {
		types = types[:len(types)-1]
	}
	return statusError(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
		fmt.Sprintf("only the following media types are accepted: %v", strings.Join(types, ", ")))
}

// Body says what format a request's body is in: JSON when nothing is said. It
// returns a 415 for others.
func Body(r *http.Request) (Format, error) {
	header := r.Header.Get("Content-Type")
	if header == "" || header == runtime.ContentTypeJSON {
		return JSON, nil
	}
	mediaType, _, err := mime.ParseMediaType(header)
	if err == nil {
		switch mediaType {
		case runtime.ContentTypeJSON:
			return JSON, nil
		case runtime.ContentTypeYAML:
			return YAML, nil
		case runtime.ContentTypeProtobuf:
			return Protobuf, nil
		case runtime.ContentTypeCBOR:
			return CBOR, nil
		}
	}
	return JSON, UnsupportedBody([]string{runtime.ContentTypeJSON, runtime.ContentTypeYAML, runtime.ContentTypeCBOR, runtime.ContentTypeProtobuf})
}

// UnsupportedBody is the 415 of an endpoint that takes these media types.
func UnsupportedBody(accepted []string) error {
	return statusError(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType,
		fmt.Sprintf("the body of the request was in an unknown format - accepted media types include: %v", strings.Join(accepted, ", ")))
}

func statusError(code int32, reason metav1.StatusReason, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message,
	}}
}
