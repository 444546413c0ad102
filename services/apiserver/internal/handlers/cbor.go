package handlers

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/sampan-io/sampan/services/apiserver/internal/negotiation"
	"github.com/sampan-io/sampan/services/apiserver/internal/response"
	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
)

// selfDescribed is the tag that starts each CBOR document of the API (RFC 8949,
// section 3.4.6); members of lists are without it.
var selfDescribed = []byte{0xd9, 0xd9, 0xf7}

// Major types of CBOR (RFC 8949, section 3.1) in the upper three bits of an
// item's first byte.
const (
	cborArray byte = 4 << 5
	cborMap   byte = 5 << 5
)

// cborHead starts an array or a map of that many members.
func cborHead(major byte, members int) []byte {
	switch {
	case members < 24:
		return []byte{major | byte(members)}
	case members <= 0xff:
		return []byte{major | 24, byte(members)}
	case members <= 0xffff:
		return binary.BigEndian.AppendUint16([]byte{major | 25}, uint16(members))
	default:
		return binary.BigEndian.AppendUint32([]byte{major | 26}, uint32(members))
	}
}

func (e *endpoint) encodeCBOR(ctx context.Context, obj runtime.Object) ([]byte, error) {
	obj, err := e.view(ctx, obj)
	if err != nil {
		return nil, err
	}
	return response.CBOR(obj)
}

// encodeCBORItem is an object as a member of a list: as in JSON without its
// kind, which the list's tells, unless it has no Go type.
func (e *endpoint) encodeCBORItem(ctx context.Context, obj runtime.Object) ([]byte, error) {
	obj, err := e.view(ctx, obj)
	if err != nil {
		return nil, err
	}
	if e.resource.Untyped == nil {
		obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	}
	data, err := response.CBOR(obj)
	return bytes.TrimPrefix(data, selfDescribed), err
}

func encodePartialCBOR(_ context.Context, obj runtime.Object) ([]byte, error) {
	partial, err := partialOf(obj)
	if err != nil {
		return nil, err
	}
	return response.CBOR(partial)
}

// cborList is a list in CBOR, as parts. The keys are in the order of
// deterministic encoding: shorter ones first.
func (e *endpoint) cborList(ctx context.Context, list *watch.List, meta metav1.ListMeta, out negotiation.Output) ([][]byte, error) {
	kind, version := e.listKind, e.kind.GroupVersion().String()
	item := e.cborItem
	if out.View == negotiation.Metadata {
		kind, version = "PartialObjectMetadataList", "meta.k8s.io/"+out.Version
		item = e.partCBOR
	}
	start, err := cborSequence("kind", kind, "items")
	if err != nil {
		return nil, err
	}
	end, err := cborSequence("metadata", meta, "apiVersion", version)
	if err != nil {
		return nil, err
	}
	start = append(append(append(bytes.Clone(selfDescribed), cborHead(cborMap, 4)...), start...), cborHead(cborArray, len(list.Objects))...)
	parts := make([][]byte, 0, len(list.Objects)+2)
	parts = append(parts, start)
	items, err := e.encodeAll(ctx, list.Objects, item)
	if err != nil {
		return nil, err
	}
	for _, data := range items {
		parts = append(parts, bytes.TrimPrefix(data, selfDescribed))
	}
	return append(parts, end), nil
}

// cborSequence is the encoding of values, one behind the other.
func cborSequence(values ...any) ([]byte, error) {
	var all []byte
	for _, value := range values {
		data, err := direct.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("encoding %v: %w", value, err)
		}
		all = append(all, data...)
	}
	return all, nil
}

// cborEvent is a watch event around an encoded object.
func cborEvent(to []byte, kind string, object []byte) ([]byte, error) {
	head, err := cborSequence("type", kind, "object")
	if err != nil {
		return to, err
	}
	to = append(append(append(to, selfDescribed...), cborHead(cborMap, 2)...), head...)
	return append(to, object...), nil
}

func (p *patchRequest) format() string {
	if p.cbor {
		return "CBOR"
	}
	return "YAML"
}

// applied is the configuration in the body of an apply patch, and what is wrong
// with its form in a strict reading.
func (p *patchRequest) applied() (content map[string]any, strict, err error) {
	content = map[string]any{}
	if p.cbor {
		err = direct.Unmarshal(p.body, &content)
		return content, nil, err
	}
	data, err := yaml.YAMLToJSON(p.body)
	if err == nil {
		err = utiljson.Unmarshal(data, &content) // which tells integers from other numbers
	}
	return content, yaml.UnmarshalStrict(p.body, &map[string]any{}), err
}
