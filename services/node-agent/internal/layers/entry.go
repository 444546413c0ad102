package layers

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// create makes one entry in the directory parent. Whatever has the name goes first,
// unless both are directories.
func (u *unpacker) create(parent int, base, name string, header *tar.Header, content io.Reader) error {
	switch header.Typeflag {
	case tar.TypeChar, tar.TypeBlock:
		return nil
	case tar.TypeDir:
		return u.directory(parent, base, name, header)
	}
	if err := u.clear(parent, base); err != nil {
		return err
	}
	switch header.Typeflag {
	case tar.TypeReg:
		return u.regular(parent, base, header, content)
	case tar.TypeLink:
		return u.hardLink(parent, base, header.Linkname)
	case tar.TypeSymlink:
		if err := unix.Symlinkat(header.Linkname, parent, base); err != nil {
			return err
		}
		return setLinkMeta(parent, base, header)
	case tar.TypeFifo:
		if err := unix.Mkfifoat(parent, base, 0o600); err != nil {
			return err
		}
		return u.setFIFOMeta(parent, base, header)
	case tar.TypeXGlobalHeader:
		return nil
	}
	return fmt.Errorf("entries of type %q are not supported", header.Typeflag)
}

func (u *unpacker) directory(parent int, base, name string, header *tar.Header) error {
	opaque, err := u.makeDirectory(parent, base)
	if err != nil {
		return err
	}
	dir, err := unix.Openat(parent, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if opaque {
		if err := unix.Fsetxattr(dir, opaqueXattr, []byte("y"), 0); err != nil {
			return err
		}
	}
	if err := setMeta(dir, header); err != nil {
		return err
	}
	u.dirs = append(u.dirs, dirTime{name: name, atime: timespec(header.AccessTime, header.ModTime), mtime: timespec(header.ModTime, header.ModTime)})
	return nil
}

// makeDirectory tells whether the directory takes the place of a whiteout, so that
// it must hide what lower layers have in it.
func (u *unpacker) makeDirectory(parent int, base string) (opaque bool, err error) {
	err = unix.Mkdirat(parent, base, 0o700)
	if !errors.Is(err, unix.EEXIST) {
		return false, err
	}
	var stat unix.Stat_t
	if err := unix.Fstatat(parent, base, &stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return false, err
	}
	if stat.Mode&unix.S_IFMT == unix.S_IFDIR {
		return false, nil
	}
	if err := unix.Unlinkat(parent, base, 0); err != nil {
		return false, err
	}
	return stat.Mode&unix.S_IFMT == unix.S_IFCHR, unix.Mkdirat(parent, base, 0o700)
}

func (u *unpacker) regular(parent int, base string, header *tar.Header, content io.Reader) error {
	fd, err := unix.Openat(parent, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for {
		if err := u.ctx.Err(); err != nil {
			return err
		}
		n, err := content.Read(u.buf)
		if err := writeAll(fd, u.buf[:n]); err != nil {
			return err
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	if err := setMeta(fd, header); err != nil {
		return err
	}
	return unix.UtimesNanoAt(fd, "", []unix.Timespec{timespec(header.AccessTime, header.ModTime), timespec(header.ModTime, header.ModTime)}, unix.AT_EMPTY_PATH)
}

func writeAll(fd int, p []byte) error {
	for len(p) > 0 {
		n, err := unix.Write(fd, p)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// hardLink links to another file of the layer; the target is never followed if it
// is a symbolic link.
func (u *unpacker) hardLink(parent int, base, target string) error {
	name, err := clean(target)
	if err != nil {
		return err
	}
	if name == "." {
		return fmt.Errorf("%w: link to the root", ErrHostile)
	}
	dir, err := u.openIn(path.Dir(name), unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("opening the directory of its target %q: %w", target, err)
	}
	defer unix.Close(dir)
	if err := unix.Linkat(dir, path.Base(name), parent, base, 0); err != nil {
		return fmt.Errorf("linking to %q: %w", target, err)
	}
	return nil
}

// clear removes what has the name already, whole trees too, without following
// links.
func (u *unpacker) clear(parent int, base string) error {
	err := unix.Unlinkat(parent, base, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	u.forgetParentBelow()
	return removeTree(parent, base)
}

// forgetParentBelow lets go of the cached directory when a tree is removed that may
// hold it. The descriptor in use stays open until the next entry.
func (u *unpacker) forgetParentBelow() { u.parentName = "\x00" }

func removeTree(parent int, base string) error {
	dir, err := unix.Openat(parent, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	names, err := readNames(dir)
	for _, name := range names {
		if err != nil {
			break
		}
		err = unix.Unlinkat(dir, name, 0)
		if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
			err = removeTree(dir, name)
		}
	}
	unix.Close(dir)
	if err != nil {
		return err
	}
	return unix.Unlinkat(parent, base, unix.AT_REMOVEDIR)
}

func readNames(dir int) ([]string, error) {
	var names []string
	buf := make([]byte, 8192)
	for {
		n, err := unix.ReadDirent(dir, buf)
		if err != nil || n <= 0 {
			return names, err
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
}

// setMeta sets owner, mode and extended attributes. The owner comes first: a
// change of it clears the set-user-id bit and capabilities.
func setMeta(fd int, header *tar.Header) error {
	if err := unix.Fchown(fd, header.Uid, header.Gid); err != nil {
		return fmt.Errorf("setting its owner: %w", err)
	}
	if err := unix.Fchmod(fd, uint32(header.Mode)&0o7777); err != nil {
		return fmt.Errorf("setting its mode: %w", err)
	}
	for key, value := range header.PAXRecords {
		name, ok := strings.CutPrefix(key, "SCHILY.xattr.")
		if !ok || !allowedXattr(name) {
			continue
		}
		if err := unix.Fsetxattr(fd, name, []byte(value), 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
			return fmt.Errorf("setting its attribute %s: %w", name, err)
		}
	}
	return nil
}

// allowedXattr keeps attributes out that overlayfs acts upon.
func allowedXattr(name string) bool {
	if strings.HasPrefix(name, "user.overlay.") {
		return false
	}
	return name == "security.capability" || strings.HasPrefix(name, "user.") || strings.HasPrefix(name, "system.posix_acl_")
}

func setLinkMeta(parent int, base string, header *tar.Header) error {
	if err := unix.Fchownat(parent, base, header.Uid, header.Gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("setting its owner: %w", err)
	}
	mtime := timespec(header.ModTime, header.ModTime)
	return unix.UtimesNanoAt(parent, base, []unix.Timespec{mtime, mtime}, unix.AT_SYMLINK_NOFOLLOW)
}

func (u *unpacker) setFIFOMeta(parent int, base string, header *tar.Header) error {
	if err := unix.Fchownat(parent, base, header.Uid, header.Gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("setting its owner: %w", err)
	}
	// The name was just made by us, so it is no link that fchmodat would follow.
	return unix.Fchmodat(parent, base, uint32(header.Mode)&0o7777, 0)
}

// timespec turns a time into the kernel's form; an unset one becomes the other.
func timespec(t, other time.Time) unix.Timespec {
	if t.IsZero() {
		t = other
	}
	spec, err := unix.TimeToTimespec(t)
	if err != nil || t.IsZero() || spec.Sec < 0 {
		return unix.Timespec{}
	}
	return spec
}
