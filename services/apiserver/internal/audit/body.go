package audit

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"sigs.k8s.io/yaml"

	"github.com/sampan-io/sampan/services/apiserver/internal/scheme"
)

func rawObject(data []byte) *runtime.Unknown {
	return &runtime.Unknown{Raw: data, ContentType: runtime.ContentTypeJSON}
}

// protobufs reads typed bodies.
var protobufs = sync.OnceValue(func() runtime.Decoder {
	return protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
})

// toJSON brings a body into JSON, of whatever media type it is; nil when it cannot be
// read.
func toJSON(contentType, encoding string, data []byte, omitManaged bool) []byte {
	if encoding == "gzip" {
		reader, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			return nil
		}
		if data, err = io.ReadAll(reader); err != nil {
			return nil
		}
	}
	media, _, _ := mime.ParseMediaType(contentType)
	var out []byte
	var err error
	switch media {
	case "application/vnd.kubernetes.protobuf":
		var obj runtime.Object
		if obj, _, err = protobufs().Decode(data, nil, nil); err == nil {
			out, err = json.Marshal(obj)
		}
	case "application/cbor", "application/apply-patch+cbor":
		var value any
		if err = direct.Unmarshal(data, &value); err == nil {
			out, err = json.Marshal(value)
		}
	case "application/yaml", "application/apply-patch+yaml":
		out, err = yaml.YAMLToJSON(data)
	default:
		out = bytes.TrimSpace(data)
		if !json.Valid(out) {
			out, err = json.Marshal(string(data))
		}
	}
	if err != nil {
		return nil
	}
	if omitManaged {
		return withoutManagedFields(out)
	}
	return out
}

// withoutManagedFields drops the managed fields of an object, or of a list's.
func withoutManagedFields(data []byte) []byte {
	var object map[string]any
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	if decoder.Decode(&object) != nil {
		return data
	}
	drop := func(object map[string]any) {
		if meta, ok := object["metadata"].(map[string]any); ok {
			delete(meta, "managedFields")
		}
	}
	drop(object)
	items, _ := object["items"].([]any)
	for _, item := range items {
		if object, ok := item.(map[string]any); ok {
			drop(object)
		}
	}
	out, err := json.Marshal(object)
	if err != nil {
		return data
	}
	return out
}

// statusOf reads an answer's Status without its details; nil when it is another object.
func statusOf(header http.Header, data []byte) *metav1.Status {
	var status metav1.Status
	body := toJSON(header.Get("Content-Type"), header.Get("Content-Encoding"), data, false)
	if json.Unmarshal(body, &status) != nil || status.Kind != "Status" {
		return nil
	}
	return &metav1.Status{Status: status.Status, Message: status.Message, Reason: status.Reason, Details: status.Details}
}
