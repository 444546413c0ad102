package images

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// settle is how long an archive must not have been written to before it is taken as
// whole; whoever moves it into the folder under its final name need not wait.
const settle = 500 * time.Millisecond

// Watch imports archives that are put into the import folder, until ctx ends. An
// archive stays there; it is imported again when it changes. Names that begin with a
// dot or end in .tmp or .part are left alone. What became of an archive is written
// beside it, as a Result.
func (s *Store) Watch(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching the import folder: %w", err)
	}
	defer watcher.Close()
	if err := watcher.Add(s.ImportDir()); err != nil {
		return fmt.Errorf("watching the import folder: %w", err)
	}
	w := importWatch{store: s, due: map[string]time.Time{}, timer: time.NewTimer(time.Hour)}
	defer w.timer.Stop()
	if err := w.scan(); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-watcher.Events:
			if event.Has(fsnotify.Create) || event.Has(fsnotify.Write) {
				w.touch(event.Name)
			}
		case err := <-watcher.Errors:
			s.cfg.Log.WarnContext(ctx, "Watching the import folder", "err", err)
			if err := w.scan(); err != nil {
				return err
			}
		case <-w.timer.C:
			w.run(ctx)
		}
	}
}

type importWatch struct {
	store *Store
	due   map[string]time.Time
	timer *time.Timer
}

func (w *importWatch) scan() error {
	entries, err := os.ReadDir(w.store.ImportDir())
	if err != nil {
		return fmt.Errorf("reading the import folder: %w", err)
	}
	for _, entry := range entries {
		w.touch(filepath.Join(w.store.ImportDir(), entry.Name()))
	}
	return nil
}

func (w *importWatch) touch(path string) {
	name := filepath.Base(path)
	if strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".tmp") || strings.HasSuffix(name, ".part") {
		return
	}
	w.due[path] = time.Now().Add(settle)
	w.arm()
}

// arm sets the timer for what is due first.
func (w *importWatch) arm() {
	var first time.Time
	for _, at := range w.due {
		if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	if !first.IsZero() {
		w.timer.Reset(time.Until(first))
	}
}

func (w *importWatch) run(ctx context.Context) {
	for path, at := range w.due {
		if time.Now().Before(at) {
			continue
		}
		delete(w.due, path)
		w.importFile(ctx, path)
	}
	w.arm()
}

func (w *importWatch) importFile(ctx context.Context, path string) {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return // gone again, or not an archive
	}
	images, err := w.store.Import(ctx, path)
	if ctx.Err() != nil {
		return // the next start tries again
	}
	if err := writeResult(path, info, images, err); err != nil {
		w.store.cfg.Log.WarnContext(ctx, "Writing down what was imported", "file", path, "err", err)
	}
	if err != nil {
		w.store.cfg.Log.WarnContext(ctx, "Importing images", "file", path, "err", err)
		return
	}
	for _, image := range images {
		w.store.cfg.Log.InfoContext(ctx, "Imported an image", "file", path, "id", image.ID, "tags", image.RepoTags)
	}
}
