package bolt

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
)

// The layout of the file:
//
//	log   revision (8 bytes, big-endian) → entry: checksums of header and value
//	      (4 bytes each), operation, create revision, previous revision, expiry,
//	      key, value
//	keys  key → record: revision, create revision
//	ttl   expiry (8 bytes, Unix nanoseconds, big-endian), key → revision
//	meta  "revision" → newest, "compacted" → compacted revision, "format" → 2
//
// A value lives once, in the log. The entry of a live key stays there whatever
// its age; other entries go when they are below the compacted revision.
var (
	logBucket  = []byte("log")
	keysBucket = []byte("keys")
	ttlBucket  = []byte("ttl")
	metaBucket = []byte("meta")

	revisionKey  = []byte("revision")
	compactedKey = []byte("compacted")
	formatKey    = []byte("format")
)

const format = 2

// errCorrupt says that the file holds what no store has written.
var errCorrupt = errors.New("the store's file is corrupt")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const checksums = 8 // bytes of the two checksums

// entry is one write in the log.
type entry struct {
	operation storage.Operation
	create    int64
	previous  int64
	expiry    int64 // Unix nanoseconds; 0 is never
	key       string
	value     []byte
}

func (e *entry) encode() []byte {
	out := make([]byte, checksums, checksums+1+4*binary.MaxVarintLen64+len(e.key)+len(e.value))
	out = append(out, byte(e.operation))
	out = binary.AppendUvarint(out, uint64(e.create))
	out = binary.AppendUvarint(out, uint64(e.previous))
	out = binary.AppendUvarint(out, uint64(e.expiry))
	out = binary.AppendUvarint(out, uint64(len(e.key)))
	out = append(out, e.key...)
	binary.BigEndian.PutUint32(out, crc32.Checksum(out[checksums:], castagnoli))
	binary.BigEndian.PutUint32(out[4:], crc32.Checksum(e.value, castagnoli))
	return append(out, e.value...)
}

// decodeEntry reads an entry. Its value is a part of data, which belongs to the
// transaction it was read in.
func decodeEntry(data []byte) (entry, error) {
	e, err := decodeHeader(data)
	if err != nil {
		return entry{}, err
	}
	if crc32.Checksum(e.value, castagnoli) != binary.BigEndian.Uint32(data[4:]) {
		return entry{}, fmt.Errorf("%w: value of %s does not match its checksum", errCorrupt, e.key)
	}
	return e, nil
}

// decodeHeader reads an entry without looking at its value, which may be large
// and not in memory.
func decodeHeader(data []byte) (entry, error) {
	if len(data) <= checksums || data[checksums] < byte(storage.Create) || data[checksums] > byte(storage.Delete) {
		return entry{}, fmt.Errorf("%w: entry without operation", errCorrupt)
	}
	e := entry{operation: storage.Operation(data[checksums])}
	rest := data[checksums+1:]
	var length int64
	for _, number := range []*int64{&e.create, &e.previous, &e.expiry, &length} {
		value, n := binary.Uvarint(rest)
		if n <= 0 || value > 1<<63-1 {
			return entry{}, fmt.Errorf("%w: entry with a broken number", errCorrupt)
		}
		*number, rest = int64(value), rest[n:]
	}
	if length > int64(len(rest)) {
		return entry{}, fmt.Errorf("%w: entry shorter than its key", errCorrupt)
	}
	e.key, e.value = string(rest[:length]), rest[length:]
	if crc32.Checksum(data[checksums:len(data)-len(e.value)], castagnoli) != binary.BigEndian.Uint32(data) {
		return entry{}, fmt.Errorf("%w: entry does not match its checksum", errCorrupt)
	}
	return e, nil
}

// record is where a live key's newest value is.
type record struct{ revision, create int64 }

func (r record) encode() []byte {
	out := make([]byte, 16)
	binary.BigEndian.PutUint64(out, uint64(r.revision))
	binary.BigEndian.PutUint64(out[8:], uint64(r.create))
	return out
}

func decodeRecord(data []byte) (record, error) {
	if len(data) != 16 {
		return record{}, fmt.Errorf("%w: record of %d bytes", errCorrupt, len(data))
	}
	return record{int64(binary.BigEndian.Uint64(data)), int64(binary.BigEndian.Uint64(data[8:]))}, nil
}

func revisionBytes(revision int64) []byte {
	return binary.BigEndian.AppendUint64(make([]byte, 0, 8), uint64(revision))
}

func decodeRevision(data []byte) (int64, error) {
	if len(data) != 8 {
		return 0, fmt.Errorf("%w: revision of %d bytes", errCorrupt, len(data))
	}
	return int64(binary.BigEndian.Uint64(data)), nil
}
