package devices

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
)

// saved is what outlives this program.
type saved struct {
	Given     []Given  `json:"podDeviceEntries"`
	Resources []string `json:"registeredResources"`
}

// sealed is how it lies in the file.
type sealed struct {
	Data     json.RawMessage `json:"data"`
	Checksum uint32          `json:"checksum"`
}

// load reads a file; one that is not there has nothing.
func load(path string) (saved, error) {
	var out saved
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return out, fmt.Errorf("reading who has which devices: %w", err)
	}
	var whole sealed
	if err := json.Unmarshal(data, &whole); err != nil {
		return out, fmt.Errorf("reading who has which devices from %s: %w", path, err)
	}
	if crc32.ChecksumIEEE(whole.Data) != whole.Checksum {
		return out, fmt.Errorf("reading who has which devices from %s: its checksum is wrong", path)
	}
	if err := json.Unmarshal(whole.Data, &out); err != nil {
		return out, fmt.Errorf("reading who has which devices from %s: %w", path, err)
	}
	return out, nil
}

// store writes a file, whole or not at all.
func store(path string, content saved) error {
	data, err := json.Marshal(content)
	if err != nil {
		return err
	}
	whole, err := json.Marshal(sealed{Data: data, Checksum: crc32.ChecksumIEEE(data)})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	part := path + ".part"
	if err := os.WriteFile(part, whole, 0o600); err != nil {
		return err
	}
	return os.Rename(part, path)
}
