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
	pages := readMetas(file)
	if len(pages) == 0 {
		return fmt.Errorf("%w: %s: no valid meta page", errCorrupt, path)
	}
	newest := pages[0]
	if len(pages) > 1 && pages[1].tx > newest.tx {
		newest = pages[1]
	}
	if want := int64(newest.highWater) * newest.pageSize; info.Size() < want {
		return fmt.Errorf("%w: %s: %d bytes of at least %d", errCorrupt, path, info.Size(), want)
	}
	return nil
}

// metasBefore says that both meta pages are whole and of transactions before
// tx: nothing of tx counts.
func metasBefore(path string, tx uint64) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }()
	pages := readMetas(file)
	return len(pages) == 2 && pages[0].tx < tx && pages[1].tx < tx
}

type metaPage struct {
	highWater, tx uint64
	pageSize      int64
}

// readMetas are the valid ones of the two meta pages.
func readMetas(file io.ReaderAt) []metaPage {
	var out []metaPage
	pageSize := int64(os.Getpagesize())
	if first, err := readMeta(file, 0); err == nil {
		out, pageSize = append(out, first), first.pageSize
	}
	if second, err := readMeta(file, pageSize); err == nil {
		out = append(out, second)
	}
	return out
}

func readMeta(file io.ReaderAt, at int64) (metaPage, error) {
	data := make([]byte, metaBytes)
	if _, err := file.ReadAt(data, at+pageHeader); err != nil {
		return metaPage{}, err
	}
	sum := fnv.New64a()
	_, _ = sum.Write(data[:offChecksum])
	if binary.LittleEndian.Uint32(data) != metaMagic || binary.LittleEndian.Uint64(data[offChecksum:]) != sum.Sum64() {
		return metaPage{}, errCorrupt
	}
	return metaPage{
		highWater: binary.LittleEndian.Uint64(data[offHighWater:]),
		tx:        binary.LittleEndian.Uint64(data[offTx:]),
		pageSize:  int64(binary.LittleEndian.Uint32(data[offPageSize:])),
	}, nil
}
