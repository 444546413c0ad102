// Package archive hands image archives to node agents on this machine: each imports
// what is put into a folder of its own, and writes beside it what became of it.
package archive

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Image is one that an agent has imported.
type Image struct {
	ID   string   `json:"id"`
	Tags []string `json:"tags"`
}

// result is what the agent writes.
type result struct {
	Size     int64   `json:"size"`
	Modified int64   `json:"modified"`
	Error    string  `json:"error"`
	Images   []Image `json:"images"`
}

// Import puts a copy of the archive into the folder and waits until the agent has
// imported it. The copy stays, also when ctx ends: an agent that is down takes it later.
func Import(ctx context.Context, path, folder string) ([]Image, error) {
	target := filepath.Join(folder, filepath.Base(path))
	info, err := place(path, target)
	if err != nil {
		return nil, err
	}
	const pause = 50 * time.Millisecond
	for {
		found, err := read(target, info)
		if err != nil || found != nil {
			return found, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the node agent has not imported it yet; is it running? %w", ctx.Err())
		case <-time.After(pause):
		}
	}
}

// place copies the file under its name at once, so that the agent never sees a part, and
// with a time of its own, so that the agent's answer can be told from an older one.
func place(path, target string) (fs.FileInfo, error) {
	temporary := target + ".part"
	if err := copyFile(path, temporary); err != nil {
		return nil, errors.Join(err, os.Remove(temporary))
	}
	now := time.Now()
	if err := os.Chtimes(temporary, now, now); err != nil {
		return nil, err
	}
	if err := os.Rename(temporary, target); err != nil {
		return nil, err
	}
	return os.Stat(target)
}

func copyFile(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	copied, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(copied, source)
	return errors.Join(err, copied.Close())
}

// read returns nothing while there is no answer to this very file.
func read(target string, info fs.FileInfo) ([]Image, error) {
	data, err := os.ReadFile(filepath.Join(filepath.Dir(target), "."+filepath.Base(target)+".result"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var answer result
	if err := json.Unmarshal(data, &answer); err != nil {
		return nil, fmt.Errorf("reading the node agent's answer: %w", err)
	}
	if answer.Size != info.Size() || answer.Modified != info.ModTime().UnixNano() {
		return nil, nil
	}
	if answer.Error != "" {
		return nil, errors.New(answer.Error)
	}
	if len(answer.Images) == 0 {
		return nil, errors.New("the archive has no images")
	}
	return answer.Images, nil
}
