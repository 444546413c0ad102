package archive_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sampan-io/sampan/services/sampan/internal/archive"
)

// answer writes what an agent would, once the file is there.
func answer(t *testing.T, folder, name string, more map[string]any) {
	t.Helper()
	target := filepath.Join(folder, name)
	for {
		info, err := os.Stat(target)
		if errors.Is(err, os.ErrNotExist) {
			time.Sleep(time.Millisecond)
			continue
		}
		if err != nil {
			t.Error(err)
			return
		}
		more["size"], more["modified"] = info.Size(), info.ModTime().UnixNano()
		data, err := json.Marshal(more)
		if err != nil {
			t.Error(err)
		}
		if err := os.WriteFile(filepath.Join(folder, "."+name+".result"), data, 0o600); err != nil {
			t.Error(err)
		}
		return
	}
}

func source(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "app.tar")
	if err := os.WriteFile(path, []byte("archive"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestImportWaitsForTheAgentsAnswer(t *testing.T) {
	path, folder := source(t), t.TempDir()
	// An answer to an older file of that name is none to this one.
	if err := os.WriteFile(filepath.Join(folder, ".app.tar.result"), []byte(`{"size":7,"modified":1,"error":"old"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	go answer(t, folder, "app.tar", map[string]any{"images": []any{map[string]any{"id": "sha256:1", "tags": []string{"app:v1"}}}})
	images, err := archive.Import(t.Context(), path, folder)
	if err != nil || len(images) != 1 || images[0].Tags[0] != "app:v1" {
		t.Errorf("%v, %v", images, err)
	}
	if data, err := os.ReadFile(filepath.Join(folder, "app.tar")); err != nil || string(data) != "archive" {
		t.Errorf("the copy has %q, %v", data, err)
	}
}

func TestImportTellsWhyItFailed(t *testing.T) {
	path, folder := source(t), t.TempDir()
	go answer(t, folder, "app.tar", map[string]any{"error": "neither a docker archive nor an OCI layout"})
	if _, err := archive.Import(t.Context(), path, folder); err == nil || !strings.Contains(err.Error(), "neither a docker") {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := archive.Import(ctx, path, t.TempDir()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without an agent: %v", err)
	}
	if _, err := archive.Import(t.Context(), filepath.Join(folder, "missing"), folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without an archive: %v", err)
	}
}
