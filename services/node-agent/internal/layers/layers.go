// Package layers unpacks image layers into directories that overlayfs can stack.
// Layers are hostile input: nothing in one reaches outside its directory.
package layers

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	whiteoutPrefix = ".wh."
	opaqueWhiteout = ".wh..wh..opq"
	opaqueXattr    = "trusted.overlay.opaque"
)

// Limits bound what one layer may become on disk. A few bytes of a compressed or
// sparse archive can stand for more than any disk holds.
type Limits struct {
	Bytes   int64
	Entries int
}

// DefaultLimits are beyond every honest layer.
func DefaultLimits() Limits { return Limits{Bytes: 256 << 30, Entries: 5_000_000} }

// ErrHostile marks a layer that tries what no honest layer does.
var ErrHostile = errors.New("malicious image layer")

// Unpack reads an uncompressed tar stream into dir, which must exist and be
// empty. Whiteouts become those of overlayfs. Names and links are resolved as if
// dir were the root directory. Device nodes and sockets are left out: the runtime
// makes /dev, and an image needs no other. On an error dir holds a part of the
// layer.
func Unpack(ctx context.Context, r io.Reader, dir string, limits Limits) error {
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening the layer directory: %w", err)
	}
	u := &unpacker{ctx: ctx, root: root, parent: -1, buf: make([]byte, 256*1024), left: limits.Bytes}
	defer u.close()
	tr := tar.NewReader(r)
	for n := 0; ; n++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		header, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return u.setDirTimes()
		}
		if err != nil {
			return fmt.Errorf("reading the layer: %w", err)
		}
		if n >= limits.Entries {
			return fmt.Errorf("%w: more than %d entries", ErrHostile, limits.Entries)
		}
		if u.left -= header.Size; u.left < 0 || header.Size < 0 {
			return fmt.Errorf("%w: more than %d bytes", ErrHostile, limits.Bytes)
		}
		if err := u.entry(header, tr); err != nil {
			return fmt.Errorf("unpacking %q: %w", header.Name, err)
		}
	}
}

type unpacker struct {
	ctx  context.Context // of the one call of Unpack
	root int
	buf  []byte
	left int64 // bytes that may still come
	// The directory used last, since entries of one directory follow each other.
	parentName string
	parent     int
	// Directories get their times last: entries made in them change those.
	dirs []dirTime
}

type dirTime struct {
	name         string
	atime, mtime unix.Timespec
}

func (u *unpacker) close() {
	u.dropParent()
	unix.Close(u.root)
}

func (u *unpacker) dropParent() {
	if u.parent >= 0 {
		unix.Close(u.parent)
	}
	u.parent = -1
}

func (u *unpacker) entry(header *tar.Header, content io.Reader) error {
	name, err := clean(header.Name)
	if err != nil {
		return err
	}
	if name == "." {
		return u.rootEntry(header)
	}
	dir, base := path.Dir(name), path.Base(name)
	parent, err := u.openParent(dir)
	if err != nil {
		return fmt.Errorf("opening its directory: %w", err)
	}
	if strings.HasPrefix(base, whiteoutPrefix) {
		return whiteout(parent, base)
	}
	return u.create(parent, base, name, header, content)
}

// clean makes the name relative and refuses one that climbs out.
func clean(name string) (string, error) {
	if strings.ContainsRune(name, 0) {
		return "", fmt.Errorf("%w: NUL in a name", ErrHostile)
	}
	cleaned := path.Clean(strings.TrimLeft(name, "/"))
	if cleaned == ".." || strings.HasPrefix(cleaned, "../") {
		return "", fmt.Errorf("%w: the name leaves the layer", ErrHostile)
	}
	return cleaned, nil
}

func (u *unpacker) rootEntry(header *tar.Header) error {
	if header.Typeflag != tar.TypeDir {
		return fmt.Errorf("%w: the root is not a directory", ErrHostile)
	}
	dir, err := u.openIn(".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return setMeta(dir, header)
}

// openIn opens a name as if the layer directory were the root directory: absolute
// links and .. lead no further than that.
func (u *unpacker) openIn(name string, flags int) (int, error) {
	return unix.Openat2(u.root, name, &unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC),
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
}

// openParent opens a directory and makes what is missing on the way. The
// descriptor stays valid until the next call.
func (u *unpacker) openParent(dir string) (int, error) {
	if u.parent >= 0 && u.parentName == dir {
		return u.parent, nil
	}
	fd, err := u.openIn(dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) && dir != "." {
		fd, err = u.makeDirs(dir)
	}
	if err != nil {
		return -1, err
	}
	u.dropParent()
	u.parent, u.parentName = fd, dir
	return fd, nil
}

func (u *unpacker) makeDirs(dir string) (int, error) {
	made := ""
	for _, part := range strings.Split(dir, "/") {
		above, err := u.openIn(path.Join(".", made), unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return -1, err
		}
		err = unix.Mkdirat(above, part, 0o755)
		unix.Close(above)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return -1, err
		}
		made = path.Join(made, part)
	}
	return u.openIn(dir, unix.O_RDONLY|unix.O_DIRECTORY)
}

// whiteout hides what lower layers have under the name, or in the directory.
func whiteout(parent int, base string) error {
	if base == opaqueWhiteout {
		return unix.Fsetxattr(parent, opaqueXattr, []byte("y"), 0)
	}
	hidden := strings.TrimPrefix(base, whiteoutPrefix)
	if strings.HasPrefix(hidden, whiteoutPrefix) {
		return nil // other marks of AUFS mean nothing to overlayfs
	}
	if hidden == "" || hidden == "." || hidden == ".." {
		return fmt.Errorf("%w: whiteout of %q", ErrHostile, hidden)
	}
	err := unix.Mknodat(parent, hidden, unix.S_IFCHR, 0)
	if errors.Is(err, unix.EEXIST) {
		// The layer itself has the name; only what is below is hidden.
		return hideBelow(parent, hidden)
	}
	return err
}

// hideBelow makes an existing directory opaque; other files hide what is below
// anyway.
func hideBelow(parent int, name string) error {
	dir, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(dir)
	return unix.Fsetxattr(dir, opaqueXattr, []byte("y"), 0)
}

func (u *unpacker) setDirTimes() error {
	// From the last to the first: a directory comes before what is in it.
	for i := len(u.dirs) - 1; i >= 0; i-- {
		dir := u.dirs[i]
		fd, err := u.openIn(dir.name, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			continue // a later entry has replaced it
		}
		err = unix.UtimesNanoAt(fd, "", []unix.Timespec{dir.atime, dir.mtime}, unix.AT_EMPTY_PATH)
		unix.Close(fd)
		if err != nil {
			return fmt.Errorf("setting the times of %q: %w", dir.name, err)
		}
	}
	return nil
}
