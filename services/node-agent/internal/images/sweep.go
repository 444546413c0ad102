package images

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// sweep deletes the layers and blobs that neither an image nor a running pull
// needs. Directories are moved away under the lock and deleted outside of it.
func (s *Store) sweep() error {
	s.mu.Lock()
	needed := s.needed()
	var doomed []string
	var errs []error
	for _, root := range []string{s.layerRoot(), s.blobDir()} {
		entries, err := os.ReadDir(root)
		errs = append(errs, err)
		for _, entry := range entries {
			if needed[entry.Name()] {
				continue
			}
			grave := filepath.Join(s.ingestRoot(), "removed-"+entry.Name())
			if err := os.Rename(filepath.Join(root, entry.Name()), grave); err != nil {
				errs = append(errs, err)
				continue
			}
			doomed = append(doomed, grave)
		}
	}
	s.mu.Unlock()
	for _, path := range doomed {
		errs = append(errs, os.RemoveAll(path))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("clearing the image store: %w", err)
	}
	return nil
}

// needed holds the file names of layers and blobs in use. Caller must hold mu.
func (s *Store) needed() map[string]bool {
	needed := map[string]bool{}
	for _, image := range s.byID {
		needed[hexOf(image.ID)] = true
		needed[hexOf(image.Manifest)] = true
		for _, layer := range image.Layers {
			needed[hexOf(layer)] = true
		}
	}
	for name := range s.busy {
		needed[name] = true
	}
	return needed
}

// hold keeps the names from being swept until the returned function is called.
func (s *Store) hold(names []string) func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		s.busy[hexOf(name)]++
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, name := range names {
			if s.busy[hexOf(name)]--; s.busy[hexOf(name)] <= 0 {
				delete(s.busy, hexOf(name))
			}
		}
	}
}
