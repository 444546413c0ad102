package bolt

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
)

// bbolt's file format: two meta pages at the start, of which the one with the
// higher transaction id and a right checksum counts.
const (
	pageHeader   = 16
	metaBytes    = 64
	metaMagic    = 0xED0CDAED
	offPageSize  = 8
	offHighWater = 40
	offTx        = 48
	offChecksum  = 56
)

// checkLength refuses a file that is shorter than its pages. bbolt maps the file
// without looking, and reading beyond its end kills the process.
func checkLength(path string) error {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("opening the store: %w", err)
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("opening the store: %w", err)
	}
	if info.Size() == 0 {
		return nil // made and not yet written: bbolt starts it anew
	}
	first, pageSize, err := readMeta(file, 0)
	if err != nil {
		pageSize = int64(os.Getpagesize())
	}
	second, size, secondErr := readMeta(file, pageSize)
	if err != nil && secondErr != nil {
		return fmt.Errorf("%w: %s: no valid meta page", errCorrupt, path)
	}
	newest := first
	if err != nil || (secondErr == nil && second.tx > first.tx) {
		newest, pageSize = second, size
	}
	if want := int64(newest.highWater) * pageSize; info.Size() < want {
		return fmt.Errorf("%w: %s: %d bytes of at least %d", errCorrupt, path, info.Size(), want)
	}
	return nil
}

type metaPage struct{ highWater, tx uint64 }

func readMeta(file io.ReaderAt, at int64) (metaPage, int64, error) {
	data := make([]byte, metaBytes)
	if _, err := file.ReadAt(data, at+pageHeader); err != nil {
		return metaPage{}, 0, err
	}
	sum := fnv.New64a()
	_, _ = sum.Write(data[:offChecksum])
	if binary.LittleEndian.Uint32(data) != metaMagic || binary.LittleEndian.Uint64(data[offChecksum:]) != sum.Sum64() {
		return metaPage{}, 0, errCorrupt
	}
	return metaPage{binary.LittleEndian.Uint64(data[offHighWater:]), binary.LittleEndian.Uint64(data[offTx:])},
		int64(binary.LittleEndian.Uint32(data[offPageSize:])), nil
}
