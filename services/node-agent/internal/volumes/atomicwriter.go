package volumes

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// fileSet are files by their paths below a volume's directory.
type fileSet map[string]file

type file struct {
	data []byte
	mode int32
	uid  int // its owner; 0 and below leaves it to root
}

const (
	dataLink    = "..data"
	dataLinkTmp = "..data_tmp"
)

// write puts files into the volume's directory so that readers see all of the
// old ones or all of the new:
//
//	<dir>/..2026_12_01_02_15_00.123456789/a/b   the files
//	<dir>/..data → ..2026_12_01_02_15_00.123456789
//	<dir>/a → ..data/a
//
// Nothing is written when nothing has changed.
func (r *request) write(files fileSet) (result, error) {
	done := result{path: r.dir, readOnly: true, live: true}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return done, err
	}
	group := fsGroup(r.pod)
	w := atomicWriter{dir: r.dir, prepare: func(dir string) error { return own(dir, group, true) }}
	if err := w.Write(files); err != nil {
		return done, fmt.Errorf("writing files: %w", err)
	}
	return done, nil
}

// atomicWriter keeps a directory's content. Prepare is called with the directory
// of new files before they can be seen.
type atomicWriter struct {
	dir     string
	prepare func(dir string) error
}

// Write replaces the content by files. It refuses paths that leave the directory.
func (w atomicWriter) Write(files fileSet) error {
	for path := range files {
		if err := checkFilePath(path); err != nil {
			return err
		}
	}
	old, err := os.Readlink(filepath.Join(w.dir, dataLink))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if old != "" && w.holds(old, files) {
		return w.link(files) // a link may be missing after a kill
	}
	fresh, err := w.writeFresh(files)
	if err != nil {
		return err
	}
	if err := w.publish(fresh, files); err != nil {
		return errors.Join(err, os.RemoveAll(filepath.Join(w.dir, fresh)))
	}
	return w.clean(fresh, files)
}

func checkFilePath(path string) error {
	if path == "" || !filepath.IsLocal(path) || slices.Contains(splitPath(path), "..") {
		return fmt.Errorf("path %q leaves the volume", path)
	}
	if strings.HasPrefix(path, "..") {
		return fmt.Errorf("path %q must not start with '..'", path)
	}
	if len(path) > 4096 || len(filepath.Base(path)) > 255 {
		return fmt.Errorf("path %q is too long", path[:64])
	}
	return nil
}

// holds tells whether the directory has exactly these files.
func (w atomicWriter) holds(data string, files fileSet) bool {
	root := filepath.Join(w.dir, data)
	found := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		want, ok := files[name]
		if !ok {
			return fs.ErrNotExist
		}
		have, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		info, err := entry.Info()
		// The group's rights may have been added to the mode.
		if err != nil || !bytes.Equal(have, want.data) || info.Mode().Perm()&fs.FileMode(want.mode) != fs.FileMode(want.mode).Perm() {
			return fs.ErrInvalid
		}
		found++
		return nil
	})
	return err == nil && found == len(files)
}

func (w atomicWriter) writeFresh(files fileSet) (string, error) {
	dir, err := os.MkdirTemp(w.dir, time.Now().UTC().Format("..2006_01_02_15_04_05."))
	if err != nil {
		return "", err
	}
	err = w.fill(dir, files)
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return filepath.Base(dir), nil
}

func (w atomicWriter) fill(dir string, files fileSet) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	for path, f := range files {
		full := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(full, f.data, 0o600); err != nil {
			return err
		}
		// The umask takes from the mode that WriteFile is told.
		if err := os.Chmod(full, fs.FileMode(f.mode)); err != nil {
			return err
		}
		if f.uid > 0 {
			if err := os.Chown(full, f.uid, -1); err != nil {
				return err
			}
		}
	}
	return w.prepare(dir)
}

// publish swings the link to the new files.
func (w atomicWriter) publish(fresh string, files fileSet) error {
	if err := w.link(files); err != nil {
		return err
	}
	tmp := filepath.Join(w.dir, dataLinkTmp)
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Symlink(fresh, tmp); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(w.dir, dataLink))
}

// topNames are the entries of the volume's directory that files are below.
func topNames(files fileSet) map[string]struct{} {
	names := map[string]struct{}{}
	for path := range files {
		top, _, _ := strings.Cut(path, "/")
		names[top] = struct{}{}
	}
	return names
}

func (w atomicWriter) link(files fileSet) error {
	for _, name := range slices.Sorted(maps.Keys(topNames(files))) {
		err := os.Symlink(filepath.Join(dataLink, name), filepath.Join(w.dir, name))
		if err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

// clean removes links of files that are gone, and directories of former files.
func (w atomicWriter) clean(current string, files fileSet) error {
	entries, err := os.ReadDir(w.dir)
	if err != nil {
		return err
	}
	names := topNames(files)
	for _, entry := range entries {
		name := entry.Name()
		_, wanted := names[name]
		if wanted || name == dataLink || name == current {
			continue
		}
		if err := os.RemoveAll(filepath.Join(w.dir, name)); err != nil {
			return err
		}
	}
	return nil
}
