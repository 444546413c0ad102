package images

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Annotations that name an image in an OCI layout.
const (
	refName        = "org.opencontainers.image.ref.name"
	containerdName = "io.containerd.image.name"
)

// Import takes in all images of an archive: a docker archive, or an OCI layout as a
// tar file or as a directory; a tar file may be compressed. It returns what it has
// taken in.
func (s *Store) Import(ctx context.Context, path string) ([]*Image, error) {
	images, err := s.importPath(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("importing %s: %w", path, err)
	}
	return images, nil
}

func (s *Store) importPath(ctx context.Context, path string) ([]*Image, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return s.importLayout(ctx, path)
	}
	dir, err := os.MkdirTemp(s.ingestRoot(), "import-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	docker, err := extractLayout(path, dir)
	if err != nil {
		return nil, err
	}
	if docker {
		return s.importDocker(ctx, path)
	}
	return s.importLayout(ctx, dir)
}

func layoutFile() *regexp.Regexp {
	return regexp.MustCompile(`^(\./)?(oci-layout|index\.json|blobs/[a-z0-9]+/[a-f0-9]+)$`)
}

// extractLayout copies the files of an OCI layout out of the archive, and nothing
// else. It tells when the archive is a docker archive instead.
func extractLayout(path, dir string) (docker bool, err error) {
	archive, err := openArchive(path)
	if err != nil {
		return false, err
	}
	defer archive.Close()
	wanted := layoutFile()
	isLayout := false
	tr := tar.NewReader(archive)
	for {
		header, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return false, err
		}
		name := filepath.Clean(header.Name)
		if name == "manifest.json" {
			return true, nil
		}
		if header.Typeflag != tar.TypeReg || !wanted.MatchString(header.Name) {
			continue
		}
		isLayout = isLayout || name == "oci-layout"
		if err := extractFile(tr, filepath.Join(dir, name)); err != nil {
			return false, err
		}
	}
	if !isLayout {
		return false, errors.New("neither a docker archive nor an OCI layout")
	}
	return false, nil
}

func extractFile(r io.Reader, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, r)
	return errors.Join(err, file.Close())
}

type archive struct {
	io.Reader
	close func() error
}

func (a archive) Close() error { return a.close() }

func openArchive(path string) (io.ReadCloser, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	tar, closeTar, err := decompress(file)
	if err != nil {
		file.Close()
		return nil, err
	}
	return archive{Reader: tar, close: func() error { closeTar(); return file.Close() }}, nil
}

func (s *Store) importDocker(ctx context.Context, path string) ([]*Image, error) {
	opener := func() (io.ReadCloser, error) { return openArchive(path) }
	manifest, err := tarball.LoadManifest(opener)
	if err != nil {
		return nil, err
	}
	var images []*Image
	for _, entry := range manifest {
		source, err := dockerImage(opener, entry, len(manifest))
		if err != nil {
			return nil, err
		}
		tags, err := normalizeAll(entry.RepoTags)
		if err != nil {
			return nil, err
		}
		image, err := s.ingest(ctx, source, tags, nil, nil)
		if err != nil {
			return nil, err
		}
		images = append(images, image)
	}
	return images, nil
}

func dockerImage(opener tarball.Opener, entry tarball.Descriptor, of int) (v1.Image, error) {
	if len(entry.RepoTags) == 0 {
		if of > 1 {
			return nil, errors.New("an archive of several images must name each")
		}
		return tarball.Image(opener, nil)
	}
	tag, err := name.NewTag(entry.RepoTags[0])
	if err != nil {
		return nil, err
	}
	return tarball.Image(opener, &tag)
}

func normalizeAll(refs []string) ([]string, error) {
	var out []string
	for _, ref := range refs {
		normal, err := Normalize(ref)
		if err != nil {
			return nil, err
		}
		out = append(out, normal)
	}
	return out, nil
}

func (s *Store) importLayout(ctx context.Context, dir string) ([]*Image, error) {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	var images []*Image
	for _, descriptor := range manifest.Manifests {
		source, err := s.fromIndex(index, descriptor)
		if errors.Is(err, errOtherPlatform) {
			continue
		}
		if err != nil {
			return nil, err
		}
		tags, digests := layoutNames(descriptor)
		image, err := s.ingest(ctx, source, tags, digests, nil)
		if err != nil {
			return nil, err
		}
		images = append(images, image)
	}
	if len(images) == 0 {
		return nil, fmt.Errorf("it has no image for %s", s.platform.String())
	}
	return images, nil
}

var errOtherPlatform = errors.New("no image for this platform")

// fromIndex finds the image for this platform behind an entry of an index.
func (s *Store) fromIndex(index v1.ImageIndex, descriptor v1.Descriptor) (v1.Image, error) {
	if descriptor.MediaType.IsIndex() {
		inner, err := index.ImageIndex(descriptor.Digest)
		if err != nil {
			return nil, err
		}
		manifest, err := inner.IndexManifest()
		if err != nil {
			return nil, err
		}
		for _, descriptor := range manifest.Manifests {
			image, err := s.fromIndex(inner, descriptor)
			if !errors.Is(err, errOtherPlatform) {
				return image, err
			}
		}
		return nil, errOtherPlatform
	}
	if descriptor.Platform != nil && !descriptor.Platform.Satisfies(s.platform) {
		return nil, errOtherPlatform
	}
	if !descriptor.MediaType.IsImage() && descriptor.MediaType != types.MediaType("") {
		return nil, errOtherPlatform
	}
	return index.Image(descriptor.Digest)
}

// layoutNames reads the image's name from the annotations; a bare tag, as the OCI
// layout allows, names nothing.
func layoutNames(descriptor v1.Descriptor) (tags, digests []string) {
	for _, key := range []string{containerdName, refName} {
		value := descriptor.Annotations[key]
		parsed, err := name.ParseReference(value, name.StrictValidation)
		if value == "" || err != nil {
			continue
		}
		return []string{familiar(parsed.Name())}, []string{familiar(parsed.Context().Name()) + "@" + descriptor.Digest.String()}
	}
	return nil, nil
}
