package watch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
)

// envelopePrefix starts each protobuf value.
var envelopePrefix = []byte("k8s\x00")

var errNoEnvelope = errors.New("value is neither a protobuf envelope nor a JSON object")

const (
	wireBytes           = 2
	unknownRaw          = 2 // field of runtime.Unknown that holds the object
	objectMetadata      = 1 // field of every object that holds its ObjectMeta
	metaResourceVersion = 6 // field of ObjectMeta
)

// splice is value with metadata.resourceVersion set to revision, without
// decoding the object: for the protobuf envelope the same bytes that encoding
// the object with that resourceVersion gives.
func splice(value []byte, revision int64) ([]byte, error) {
	version := strconv.AppendInt(nil, revision, 10)
	if !bytes.HasPrefix(value, envelopePrefix) {
		return spliceJSON(value, string(version))
	}
	unknown := value[len(envelopePrefix):]
	raw, err := find(unknown, unknownRaw)
	if err != nil {
		return nil, fmt.Errorf("reading envelope: %w", err)
	}
	object := raw.content(unknown)
	metaField, err := find(object, objectMetadata)
	if err != nil {
		return nil, fmt.Errorf("reading object: %w", err)
	}
	meta := metaField.content(object)
	old, err := placeFor(meta, metaResourceVersion)
	if err != nil {
		return nil, fmt.Errorf("reading metadata: %w", err)
	}
	metaLength := len(meta) - old.length() + fieldLength(len(version))
	objectLength := len(object) - metaField.length() + fieldLength(metaLength)
	out := make([]byte, 0, len(value)-raw.length()+fieldLength(objectLength))
	out = append(out, envelopePrefix...)
	out = append(out, unknown[:raw.start]...)
	out = appendHeader(out, unknownRaw, objectLength)
	out = append(out, object[:metaField.start]...)
	out = appendHeader(out, objectMetadata, metaLength)
	out = append(out, meta[:old.start]...)
	out = appendHeader(out, metaResourceVersion, len(version))
	out = append(out, version...)
	out = append(out, meta[old.end:]...)
	out = append(out, object[metaField.end:]...)
	return append(out, unknown[raw.end:]...), nil
}

// span is one length-delimited field of a message: header and content.
type span struct{ start, data, end int }

func (s span) content(message []byte) []byte { return message[s.data:s.end] }
func (s span) length() int                   { return s.end - s.start }

// fieldLength is the length of a field with that much content and a number
// below 16.
func fieldLength(content int) int {
	return 1 + len(binary.AppendUvarint(make([]byte, 0, binary.MaxVarintLen64), uint64(content))) + content
}

func appendHeader(out []byte, number uint64, content int) []byte {
	out = binary.AppendUvarint(out, number<<3|wireBytes)
	return binary.AppendUvarint(out, uint64(content))
}

var errTruncated = errors.New("truncated protobuf message")

// find is the first length-delimited field of that number.
func find(message []byte, number uint64) (span, error) {
	for at := 0; at < len(message); {
		field, s, err := next(message, at)
		if err != nil {
			return span{}, err
		}
		if field == number && s.data > 0 {
			return s, nil
		}
		at = s.end
	}
	return span{}, fmt.Errorf("no field %d", number)
}

// placeFor is the length-delimited field of that number or, when there is none,
// an empty span where the order of numbers wants it.
func placeFor(message []byte, number uint64) (span, error) {
	at := 0
	for at < len(message) {
		field, s, err := next(message, at)
		if err != nil {
			return span{}, err
		}
		if field == number && s.data > 0 {
			return s, nil
		}
		if field > number {
			break
		}
		at = s.end
	}
	return span{start: at, end: at}, nil
}

// next is the field at a position. Its span has data 0 when it is not
// length-delimited.
func next(message []byte, at int) (number uint64, s span, err error) {
	tag, n := binary.Uvarint(message[at:])
	if n <= 0 {
		return 0, span{}, errTruncated
	}
	s.start = at
	at += n
	length := uint64(0)
	switch tag & 7 {
	case 0:
		if _, n = binary.Uvarint(message[at:]); n <= 0 {
			return 0, span{}, errTruncated
		}
		length = uint64(n)
	case 1:
		length = 8
	case 5:
		length = 4
	case wireBytes:
		if length, n = binary.Uvarint(message[at:]); n <= 0 {
			return 0, span{}, errTruncated
		}
		at += n
		s.data = at
	default:
		return 0, span{}, fmt.Errorf("wire type %d", tag&7)
	}
	if length > uint64(len(message)-at) {
		return 0, span{}, errTruncated
	}
	s.end = at + int(length)
	return tag >> 3, s, nil
}
