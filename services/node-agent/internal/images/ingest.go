package images

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/sampan-io/sampan/services/node-agent/internal/layers"
)

// maxDocument bounds manifests and configurations, as registries do.
const maxDocument = 4 << 20

// ingest takes an image into the store: layers in parallel, the record last. Digests
// of all that is read are verified.
func (s *Store) ingest(ctx context.Context, source v1.Image, tags, digests []string, m *meter) (*Image, error) {
	image, err := describe(source)
	if err != nil {
		return nil, err
	}
	image.RepoTags, image.RepoDigests = tags, digests
	release := s.hold(append([]string{image.ID, image.Manifest}, image.Layers...))
	defer release()

	m.expect(image.Size)
	if err := s.ingestLayers(ctx, source, image.Layers, m); err != nil {
		return nil, err
	}
	if err := s.ingestDocuments(source, image); err != nil {
		return nil, err
	}
	if err := s.measure(image); err != nil {
		return nil, fmt.Errorf("measuring the layers: %w", err)
	}
	if err := s.sync(); err != nil {
		return nil, err
	}
	return s.add(image)
}

func describe(source v1.Image) (*Image, error) {
	manifest, err := source.Manifest()
	if err != nil {
		return nil, fmt.Errorf("reading the manifest: %w", err)
	}
	config, err := source.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("reading the image configuration: %w", err)
	}
	id, err := source.ConfigName()
	if err != nil {
		return nil, err
	}
	digest, err := source.Digest()
	if err != nil {
		return nil, err
	}
	if len(config.RootFS.DiffIDs) != len(manifest.Layers) {
		return nil, fmt.Errorf("the image has %d layers but names %d", len(manifest.Layers), len(config.RootFS.DiffIDs))
	}
	if config.OS != "" && config.OS != "linux" {
		return nil, fmt.Errorf("the image is for %s, not for linux", config.OS)
	}
	image := &Image{ID: id.String(), Manifest: digest.String(), Config: config.Config, Size: manifest.Config.Size}
	for i, layer := range manifest.Layers {
		diffID := config.RootFS.DiffIDs[i]
		if diffID.Algorithm != "sha256" || len(diffID.Hex) != 2*sha256.Size {
			return nil, fmt.Errorf("unsupported layer digest %q", diffID)
		}
		image.Size += layer.Size
		image.Layers = append(image.Layers, diffID.String())
	}
	return image, nil
}

func (s *Store) ingestLayers(ctx context.Context, source v1.Image, diffIDs []string, m *meter) error {
	sources, err := source.Layers()
	if err != nil {
		return fmt.Errorf("reading the layers: %w", err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(s.cfg.ParallelLayers)
	for i, diffID := range diffIDs {
		group.Go(func() error {
			if err := s.ingestLayer(ctx, sources[i], diffID, m); err != nil {
				return fmt.Errorf("layer %s: %w", diffID, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// ingestLayer unpacks a layer unless it is there. Pulls that need the same layer at
// the same time share the work; when the one that does it is cancelled, another
// takes over.
func (s *Store) ingestLayer(ctx context.Context, layer v1.Layer, diffID string, m *meter) error {
	for {
		if _, err := os.Stat(s.layerDir(diffID)); err == nil {
			return m.skip(layer)
		}
		mine := false
		_, err, _ := s.unpacks.Do(diffID, func() (any, error) {
			mine = true
			return nil, s.unpack(ctx, layer, diffID, m)
		})
		if mine || ctx.Err() != nil {
			return err
		}
	}
}

func (s *Store) unpack(ctx context.Context, layer v1.Layer, diffID string, m *meter) error {
	dir, err := os.MkdirTemp(s.ingestRoot(), "layer-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	blob, err := layer.Compressed()
	if err != nil {
		return err
	}
	defer blob.Close()
	// A blob that hangs is let go of when the pull is ended.
	stop := context.AfterFunc(ctx, func() { blob.Close() })
	defer stop()
	counted := &metered{Reader: blob, meter: m}
	if err := unpackVerified(ctx, counted, dir, diffID); err != nil {
		counted.undo()
		return err
	}
	if err := os.Rename(dir, s.layerDir(diffID)); err != nil && !errors.Is(err, os.ErrExist) && !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	return nil
}

// unpackVerified checks the uncompressed stream against diffID. The compressed one is
// checked by the reader itself, which gives an error at its end.
func unpackVerified(ctx context.Context, blob io.Reader, dir, diffID string) error {
	tar, closeTar, err := decompress(blob)
	if err != nil {
		return err
	}
	defer closeTar()
	hash := sha256.New()
	counted := io.TeeReader(tar, hash)
	if err := layers.Unpack(ctx, counted, dir, layers.DefaultLimits()); err != nil {
		return err
	}
	// What follows the end of the archive belongs to the digests too. It is padding, and
	// not much of it.
	const maxPadding = 64 << 20
	if n, err := io.CopyN(io.Discard, counted, maxPadding); err == nil {
		return fmt.Errorf("%w: more than %d bytes after the end", layers.ErrHostile, n)
	} else if !errors.Is(err, io.EOF) {
		return err
	}
	if _, err := io.Copy(io.Discard, blob); err != nil {
		return err
	}
	if got := "sha256:" + hex.EncodeToString(hash.Sum(nil)); got != diffID {
		return fmt.Errorf("its content has the digest %s", got)
	}
	return nil
}

// decompress tells by the first bytes how a stream is compressed.
func decompress(r io.Reader) (io.Reader, func(), error) {
	buffered := bufio.NewReaderSize(r, 64*1024)
	magic, err := buffered.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	switch {
	case len(magic) >= 2 && magic[0] == 0x1f && magic[1] == 0x8b:
		z, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, nil, err
		}
		return z, func() { z.Close() }, nil
	case len(magic) == 4 && string(magic) == "\x28\xb5\x2f\xfd":
		z, err := zstd.NewReader(buffered)
		if err != nil {
			return nil, nil, err
		}
		return z, z.Close, nil
	}
	return buffered, func() {}, nil
}

func (s *Store) ingestDocuments(source v1.Image, image *Image) error {
	manifest, err := source.RawManifest()
	if err != nil {
		return err
	}
	config, err := source.RawConfigFile()
	if err != nil {
		return err
	}
	for digest, data := range map[string][]byte{image.Manifest: manifest, image.ID: config} {
		if len(data) > maxDocument {
			return fmt.Errorf("document %s is larger than %d bytes", digest, maxDocument)
		}
		sum := sha256.Sum256(data)
		if "sha256:"+hex.EncodeToString(sum[:]) != digest {
			return fmt.Errorf("document %s has another digest", digest)
		}
		path := filepath.Join(s.blobDir(), hexOf(digest))
		tmp := filepath.Join(s.ingestRoot(), "blob-"+hexOf(digest))
		if err := os.WriteFile(tmp, data, 0o600); err != nil {
			return err
		}
		if err := os.Rename(tmp, path); err != nil {
			return err
		}
	}
	return nil
}

// sync makes layers and blobs durable before a record names them.
func (s *Store) sync() error {
	dir, err := os.Open(s.cfg.Root)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return fmt.Errorf("syncing the image store: %w", err)
	}
	return nil
}

// RawConfig is the image's configuration as its author wrote it.
func (s *Store) RawConfig(image *Image) ([]byte, error) {
	return os.ReadFile(filepath.Join(s.blobDir(), hexOf(image.ID)))
}
