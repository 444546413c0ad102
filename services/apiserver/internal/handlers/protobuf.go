package handlers

import (
	"context"
	"encoding/binary"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sampan-io/sampan/services/apiserver/internal/negotiation"
	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
)

// envelope starts each protobuf body.
const envelope = "k8s\x00"

// Tags of the protobuf messages that are put together here: field number << 3 |
// 2, for a length-delimited field.
const (
	tagUnknownType            = 0x0a // Unknown.typeMeta
	tagUnknownRaw             = 0x12 // Unknown.raw
	tagUnknownContentEncoding = 0x1a
	tagUnknownContentType     = 0x22
	tagListMeta               = 0x0a // metadata of every list
	tagListItems              = 0x12 // items of every list
	tagEventType              = 0x0a // WatchEvent.type
	tagEventObject            = 0x12 // WatchEvent.object
	tagExtensionRaw           = 0x0a // RawExtension.raw
)

var errEnvelope = errors.New("malformed protobuf envelope")

// protobufList is a list in the protobuf envelope, as parts.
func (e *endpoint) protobufList(ctx context.Context, list *watch.List, meta metav1.ListMeta, out negotiation.Output) ([][]byte, error) {
	head, err := meta.Marshal()
	if err != nil {
		return nil, err
	}
	kind := metav1.TypeMeta{APIVersion: e.kind.GroupVersion().String(), Kind: e.listKind}
	if out.View == negotiation.Metadata {
		kind = metav1.TypeMeta{APIVersion: "meta.k8s.io/" + out.Version, Kind: "PartialObjectMetadataList"}
	}
	body := appendField(nil, tagListMeta, head)
	parts := make([][]byte, 0, 2*len(list.Objects)+3)
	parts = append(parts, nil, body)
	size := len(body)
	for _, o := range list.Objects {
		data, err := e.encoded(ctx, o, out)
		if err != nil {
			return nil, err
		}
		raw, err := rawOf(data)
		if err != nil {
			return nil, err
		}
		header := appendHeader(nil, tagListItems, len(raw))
		parts = append(parts, header, raw)
		size += len(header) + len(raw)
	}
	parts[0], err = envelopeHead(kind, size)
	return append(parts, []byte{tagUnknownContentEncoding, 0, tagUnknownContentType, 0}), err
}

// envelopeHead is what comes before size bytes of a message in the envelope.
func envelopeHead(kind metav1.TypeMeta, size int) ([]byte, error) {
	typeMeta, err := (&runtime.TypeMeta{APIVersion: kind.APIVersion, Kind: kind.Kind}).Marshal()
	if err != nil {
		return nil, err
	}
	head := appendField([]byte(envelope), tagUnknownType, typeMeta)
	return appendHeader(head, tagUnknownRaw, size), nil
}

func appendHeader(to []byte, tag byte, size int) []byte {
	return binary.AppendUvarint(append(to, tag), uint64(size))
}

func appendField(to []byte, tag byte, data []byte) []byte {
	return append(appendHeader(to, tag, len(data)), data...)
}

// rawOf is the message within an envelope.
func rawOf(data []byte) ([]byte, error) {
	if len(data) < len(envelope) || string(data[:len(envelope)]) != envelope {
		return nil, errEnvelope
	}
	for data = data[len(envelope):]; len(data) > 0; {
		tag := data[0]
		size, n := binary.Uvarint(data[1:])
		if n <= 0 || uint64(len(data)-1-n) < size || tag&7 != 2 {
			return nil, errEnvelope
		}
		field := data[1+n : 1+n+int(size)]
		if tag == tagUnknownRaw {
			return field, nil
		}
		data = data[1+n+int(size):]
	}
	return nil, nil // an empty message has no raw field
}
