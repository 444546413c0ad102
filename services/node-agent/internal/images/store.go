// Package images keeps container images: pulled from registries or imported from
// archives, addressed by content, unpacked into one directory a layer.
//
// Below the root directory:
//
//	images/<id>.json          one record an image; it is written last, so that
//	                          whatever no record names is debris
//	blobs/sha256/<digest>     manifests and configurations
//	layers/<diff id>/         one unpacked layer each, shared by images
//	ingest/<random>/          layers being unpacked; emptied at start
//	import/                   archives put here are imported
package images

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/singleflight"

	"github.com/sampan-io/sampan/services/node-agent/internal/records"
)

// ErrNotFound says that the store has no such image.
var ErrNotFound = errors.New("image not found")

// ErrInUse says that an image is being pulled, or a container of it being made.
var ErrInUse = errors.New("image is in use")

// Image is one image of the store. It is not changed after it was handed out.
type Image struct {
	ID          string   `json:"id"` // digest of its configuration, sha256:…
	RepoTags    []string `json:"repoTags,omitempty"`
	RepoDigests []string `json:"repoDigests,omitempty"`
	Size        int64    `json:"size"` // bytes, compressed, as a registry counts them
	Manifest    string   `json:"manifest"`
	Layers      []string `json:"layers"`     // diff ids, the base first
	LayerUsage  []Usage  `json:"layerUsage"` // of each layer, on disk
	Config      v1.Config
}

// Usage is what something takes of a file system.
type Usage struct {
	Bytes  uint64 `json:"bytes"`
	Inodes uint64 `json:"inodes"`
}

// Config says where the store is and how it pulls.
type Config struct {
	Root string
	// HostsDir holds <registry>/hosts.toml files in containerd's form; empty for none.
	HostsDir string
	// Pinned names images, by reference or id, that are reported as pinned.
	Pinned []string
	// ParallelLayers bounds how many layers of one pull are fetched at a time; 0 means 3.
	ParallelLayers int
	// StallTimeout ends a pull that gets no data for so long; 0 means 5 minutes.
	StallTimeout time.Duration
	Log          *slog.Logger
}

// Store is the image store of one node. Its methods are safe for concurrent use.
type Store struct {
	cfg      Config
	records  *records.Dir
	platform v1.Platform
	unpacks  singleflight.Group

	mu   sync.RWMutex
	byID map[string]*Image
	// busy counts pulls that use a layer which no record names yet.
	busy map[string]int
	// pulls that run, by the image's full name.
	pulls map[string][]*meter
}

// Open reads the store, and clears what pulls that were cut off have left.
func Open(cfg Config) (*Store, error) {
	if cfg.ParallelLayers <= 0 {
		cfg.ParallelLayers = 3
	}
	if cfg.StallTimeout <= 0 {
		cfg.StallTimeout = 5 * time.Minute
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	s := &Store{
		cfg:      cfg,
		platform: v1.Platform{OS: "linux", Architecture: runtime.GOARCH},
		byID:     map[string]*Image{},
		busy:     map[string]int{},
		pulls:    map[string][]*meter{},
	}
	for _, dir := range []string{s.blobDir(), s.layerRoot(), s.ImportDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("making the image store: %w", err)
		}
	}
	if err := os.RemoveAll(s.ingestRoot()); err != nil {
		return nil, fmt.Errorf("clearing cut-off pulls: %w", err)
	}
	if err := os.Mkdir(s.ingestRoot(), 0o700); err != nil {
		return nil, err
	}
	var err error
	if s.records, err = records.Open(filepath.Join(cfg.Root, "images")); err != nil {
		return nil, err
	}
	if err := s.load(); err != nil {
		return nil, err
	}
	return s, s.sweep()
}

func (s *Store) blobDir() string    { return filepath.Join(s.cfg.Root, "blobs", "sha256") }
func (s *Store) layerRoot() string  { return filepath.Join(s.cfg.Root, "layers") }
func (s *Store) ingestRoot() string { return filepath.Join(s.cfg.Root, "ingest") }

// ImportDir is the folder whose archives Watch imports.
func (s *Store) ImportDir() string { return filepath.Join(s.cfg.Root, "import") }

// Root is the directory that all of the store is in.
func (s *Store) Root() string { return s.cfg.Root }

func (s *Store) load() error {
	ids, err := s.records.IDs()
	if err != nil {
		return err
	}
	for _, id := range ids {
		image := &Image{}
		err := s.records.Read(id, image)
		if err == nil {
			err = s.check(image)
		}
		if err != nil {
			s.cfg.Log.Warn("Forgetting a damaged image", "image", id, "err", err)
			if err := s.records.Delete(id); err != nil {
				return err
			}
			continue
		}
		s.byID[image.ID] = image
	}
	return nil
}

func (s *Store) check(image *Image) error {
	for _, layer := range image.Layers {
		if _, err := os.Stat(s.layerDir(layer)); err != nil {
			return err
		}
	}
	return nil
}

func hexOf(digest string) string { return strings.TrimPrefix(digest, "sha256:") }

func (s *Store) layerDir(diffID string) string { return filepath.Join(s.layerRoot(), hexOf(diffID)) }

// LayerDirs are the directories of the image's layers, the base first.
func (s *Store) LayerDirs(image *Image) []string {
	dirs := make([]string, 0, len(image.Layers))
	for _, layer := range image.Layers {
		dirs = append(dirs, s.layerDir(layer))
	}
	return dirs
}

// Resolve finds an image by its id, a part of the id, or a reference. It returns
// ErrNotFound.
func (s *Store) Resolve(ref string) (*Image, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if image, ok := s.byID[ref]; ok {
		return image, nil
	}
	if image, ok := s.byID["sha256:"+ref]; ok {
		return image, nil
	}
	if normal, err := Normalize(ref); err == nil {
		for _, image := range s.byID {
			if slices.Contains(image.RepoTags, normal) || slices.Contains(image.RepoDigests, normal) {
				return image, nil
			}
		}
	}
	if image := s.byPrefix(ref); image != nil {
		return image, nil
	}
	return nil, fmt.Errorf("%w: %s", ErrNotFound, ref)
}

// byPrefix takes the beginning of an id as people type it. Caller must hold mu.
func (s *Store) byPrefix(ref string) *Image {
	const shortest = 8
	var found *Image
	for id, image := range s.byID {
		if len(ref) >= shortest && strings.HasPrefix(hexOf(id), hexOf(ref)) {
			if found != nil {
				return nil
			}
			found = image
		}
	}
	return found
}

// List returns all images, sorted by id.
func (s *Store) List() []*Image {
	s.mu.RLock()
	defer s.mu.RUnlock()
	images := make([]*Image, 0, len(s.byID))
	for _, image := range s.byID {
		images = append(images, image)
	}
	slices.SortFunc(images, func(a, b *Image) int { return strings.Compare(a.ID, b.ID) })
	return images
}

// Pinned tells whether the image must not be removed to make room.
func (s *Store) Pinned(image *Image) bool {
	return slices.ContainsFunc(s.cfg.Pinned, func(pinned string) bool {
		if pinned == image.ID || "sha256:"+pinned == image.ID {
			return true
		}
		normal, err := Normalize(pinned)
		return err == nil && (slices.Contains(image.RepoTags, normal) || slices.Contains(image.RepoDigests, normal))
	})
}

// Use finds an image as Resolve does, and keeps it from being removed until release is
// called.
func (s *Store) Use(ref string) (image *Image, release func(), err error) {
	for {
		image, err := s.Resolve(ref)
		if err != nil {
			return nil, nil, err
		}
		release := s.hold([]string{image.ID})
		s.mu.RLock()
		_, still := s.byID[image.ID]
		s.mu.RUnlock()
		if still {
			return image, release, nil
		}
		release() // removed meanwhile; another may have the name now
	}
}

// Remove forgets the image with all its names, and deletes the layers that no other
// image has. Used tells whether a container has it, by an error that Remove returns;
// no container begins to use it meanwhile, and used must not ask the store.
func (s *Store) Remove(ctx context.Context, id string, used func() error) error {
	s.mu.Lock()
	image, ok := s.byID[id]
	if !ok {
		s.mu.Unlock()
		return fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	err := used()
	if s.busy[hexOf(id)] > 0 {
		err = fmt.Errorf("%w: %s", ErrInUse, id)
	}
	if err != nil {
		s.mu.Unlock()
		return err
	}
	if err := s.records.Delete(hexOf(id)); err != nil {
		s.mu.Unlock()
		return err
	}
	delete(s.byID, id)
	s.mu.Unlock()
	s.cfg.Log.InfoContext(ctx, "Removed an image", "image", image.ID, "tags", image.RepoTags)
	return s.sweep()
}

// add records an image whose layers are in place, and moves the name to it.
func (s *Store) add(image *Image) (*Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.byID[image.ID]; ok {
		image.RepoTags = union(old.RepoTags, image.RepoTags)
		image.RepoDigests = union(old.RepoDigests, image.RepoDigests)
	}
	if err := s.records.Write(hexOf(image.ID), image, true); err != nil {
		return nil, err
	}
	for id, other := range s.byID {
		if id == image.ID || !intersects(other.RepoTags, image.RepoTags) {
			continue
		}
		untagged := *other
		untagged.RepoTags = slices.DeleteFunc(slices.Clone(other.RepoTags), func(tag string) bool { return slices.Contains(image.RepoTags, tag) })
		if err := s.records.Write(hexOf(id), &untagged, true); err != nil {
			return nil, err
		}
		s.byID[id] = &untagged
	}
	s.byID[image.ID] = image
	return image, nil
}

func union(a, b []string) []string {
	out := slices.Clone(a)
	for _, s := range b {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

func intersects(a, b []string) bool {
	return slices.ContainsFunc(a, func(s string) bool { return slices.Contains(b, s) })
}
