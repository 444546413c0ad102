package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/scheme"
)

// protobufPrefix starts each value that is stored as a protobuf envelope.
var protobufPrefix = []byte("k8s\x00")

// codec turns a resource's objects into stored values and back.
type codec struct {
	resource *registry.Resource
	stored   schema.GroupVersionKind
	protobuf *protobuf.Serializer
}

func newCodec(resource *registry.Resource) codec {
	version := resource.StoredVersion
	if version.Empty() {
		version = resource.GroupVersion()
	}
	return codec{
		resource: resource, stored: version.WithKind(resource.Kind),
		protobuf: protobuf.NewSerializer(scheme.Scheme, scheme.Scheme),
	}
}

// encode is the object in the stored version, and its value. The resourceVersion
// is taken off: it is the revision of the write.
func (c codec) encode(ctx context.Context, obj registry.Object) (runtime.Object, []byte, error) {
	obj.SetResourceVersion("")
	var stored runtime.Object = obj
	if c.resource.ToStored != nil {
		converted, err := c.resource.ToStored(ctx, obj)
		if err != nil {
			return nil, nil, fmt.Errorf("converting %s to its stored version: %w", c.resource.Kind, err)
		}
		stored = converted
	}
	stored.GetObjectKind().SetGroupVersionKind(c.stored)
	if u, ok := stored.(*unstructured.Unstructured); ok {
		value, err := json.Marshal(u.Object) // which its own method does, and then compacts
		return stored, value, err
	}
	if c.resource.StoredAsJSON {
		value, err := json.Marshal(stored)
		return stored, value, err
	}
	var out bytes.Buffer
	if err := c.protobuf.Encode(stored, &out); err != nil {
		return nil, nil, fmt.Errorf("encoding %s: %w", c.resource.Kind, err)
	}
	return stored, out.Bytes(), nil
}

// decode reads a stored value, in the stored version.
func (c codec) decode(value []byte) (runtime.Object, error) {
	if c.resource.Untyped != nil {
		return decodeUntyped(value)
	}
	into, err := c.newStored()
	if err != nil {
		return nil, err
	}
	if bytes.HasPrefix(value, protobufPrefix) {
		if _, _, err := c.protobuf.Decode(value, &c.stored, into); err != nil {
			return nil, fmt.Errorf("decoding stored %s: %w", c.resource.Kind, err)
		}
	} else if err := json.Unmarshal(value, into); err != nil {
		return nil, fmt.Errorf("decoding stored %s: %w", c.resource.Kind, err)
	}
	into.GetObjectKind().SetGroupVersionKind(c.stored)
	return into, nil
}

// decodeUntyped keeps the version that the value was stored in.
func decodeUntyped(value []byte) (runtime.Object, error) {
	var content map[string]any
	if err := utiljson.Unmarshal(value, &content); err != nil {
		return nil, fmt.Errorf("decoding stored object: %w", err)
	}
	return &unstructured.Unstructured{Object: content}, nil
}

func (c codec) newStored() (runtime.Object, error) {
	if c.stored.GroupVersion() == c.resource.GroupVersion() {
		return c.resource.New(), nil
	}
	return scheme.Scheme.New(c.stored)
}
