package images

import (
	"errors"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Usage is that of all layers. It is known from when they were unpacked, so that
// asking often costs nothing.
func (s *Store) Usage() Usage {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var total Usage
	counted := map[string]bool{}
	for _, image := range s.byID {
		for i, layer := range image.Layers {
			if counted[layer] || i >= len(image.LayerUsage) {
				continue
			}
			counted[layer] = true
			total.Bytes += image.LayerUsage[i].Bytes
			total.Inodes += image.LayerUsage[i].Inodes
		}
	}
	return total
}

// measure fills in the usage of the image's layers.
func (s *Store) measure(image *Image) error {
	image.LayerUsage = make([]Usage, len(image.Layers))
	for i, layer := range image.Layers {
		if usage, known := s.layerUsage(layer); known {
			image.LayerUsage[i] = usage
			continue
		}
		usage, err := Measure(s.layerDir(layer))
		if err != nil {
			return err
		}
		image.LayerUsage[i] = usage
	}
	return nil
}

// layerUsage finds it with another image that has the layer.
func (s *Store) layerUsage(layer string) (Usage, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, image := range s.byID {
		for i, other := range image.Layers {
			if other == layer && i < len(image.LayerUsage) {
				return image.LayerUsage[i], true
			}
		}
	}
	return Usage{}, false
}

// Measure counts the blocks and inodes of a tree as du does; a file with several links
// counts for each. What vanishes meanwhile does not count.
func Measure(root string) (Usage, error) {
	var usage Usage
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		var stat unix.Stat_t
		if unix.Lstat(path, &stat) == nil {
			const block = 512
			usage.Bytes += uint64(stat.Blocks) * block
			usage.Inodes++
		}
		return nil
	})
	return usage, err
}
