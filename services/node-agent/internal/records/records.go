// Package records keeps small JSON documents, one file an object, that survive
// the death of the process at any moment. A file is replaced by rename, so that
// a reader finds the old document or the new one, never a part.
package records

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const suffix = ".json"

// Dir is a directory of records. The zero value is not usable; call Open.
type Dir struct{ path string }

// Open makes the directory when it is missing, and removes what a write that
// was cut off has left.
func Open(path string) (*Dir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("making the record directory: %w", err)
	}
	leftovers, err := filepath.Glob(filepath.Join(path, ".*.tmp"))
	if err != nil {
		return nil, err
	}
	for _, leftover := range leftovers {
		if err := os.Remove(leftover); err != nil {
			return nil, fmt.Errorf("removing a cut-off record: %w", err)
		}
	}
	return &Dir{path: path}, nil
}

// Write replaces the record id by v. It survives a kill of the process as soon
// as it returns; it survives a power cut too, but not necessarily in this
// version unless durable is true.
func (d *Dir) Write(id string, v any, durable bool) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encoding record %s: %w", id, err)
	}
	tmp := filepath.Join(d.path, "."+id+".tmp")
	if err := writeFile(tmp, data, durable); err != nil {
		return fmt.Errorf("writing record %s: %w", id, err)
	}
	if err := os.Rename(tmp, d.file(id)); err != nil {
		return fmt.Errorf("replacing record %s: %w", id, err)
	}
	if !durable {
		return nil
	}
	return d.sync()
}

// Sync makes what was written of the record durable; one that is gone needs nothing.
func (d *Dir) Sync(id string) error {
	file, err := os.Open(d.file(id))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("syncing record %s: %w", id, err)
	}
	defer file.Close()
	if err := unix.Fdatasync(int(file.Fd())); err != nil {
		return fmt.Errorf("syncing record %s: %w", id, err)
	}
	return d.sync()
}

// Delete removes the record; that it is missing is no error.
func (d *Dir) Delete(id string) error {
	if err := os.Remove(d.file(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("deleting record %s: %w", id, err)
	}
	return nil
}

// IDs lists the records.
func (d *Dir) IDs() ([]string, error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, fmt.Errorf("listing records: %w", err)
	}
	var ids []string
	for _, entry := range entries {
		if id, ok := strings.CutSuffix(entry.Name(), suffix); ok && !strings.HasPrefix(id, ".") {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// Read decodes the record into v. A record that a power cut has torn gives a
// *json.SyntaxError.
func (d *Dir) Read(id string, v any) error {
	data, err := os.ReadFile(d.file(id))
	if err != nil {
		return fmt.Errorf("reading record %s: %w", id, err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("decoding record %s: %w", id, err)
	}
	return nil
}

func (d *Dir) file(id string) string { return filepath.Join(d.path, id+suffix) }

func (d *Dir) sync() error {
	dir, err := os.Open(d.path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

func writeFile(path string, data []byte, durable bool) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.Write(data); err != nil {
		return err
	}
	if durable {
		return unix.Fdatasync(int(file.Fd()))
	}
	return nil
}

// Has tells whether there is such a record.
func (d *Dir) Has(id string) bool {
	_, err := os.Stat(d.file(id))
	return err == nil
}
