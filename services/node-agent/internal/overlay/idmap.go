package overlay

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// mapped mounts each layer id-mapped, and the whole over these. The overlay keeps
// clones of the layers' mounts, so that they need not stay.
func (m Mount) mapped() (err error) {
	userns, err := os.Open(m.UserNS)
	if err != nil {
		return fmt.Errorf("opening the user namespace: %w", err)
	}
	defer userns.Close()
	plain := m
	plain.UserNS, plain.Lower = "", nil
	for i, layer := range m.Lower {
		dir := filepath.Join(m.Scratch, "layer-"+strconv.Itoa(i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, Unmount(dir), os.Remove(dir)) }()
		if err := bindMapped(layer, dir, userns); err != nil {
			return err
		}
		plain.Lower = append(plain.Lower, dir)
	}
	return plain.Do()
}

// bindMapped binds source at target, with owners as the user namespace maps them.
func bindMapped(source, target string, userns *os.File) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("cloning the mount of %s: %w", source, err)
	}
	defer unix.Close(tree)
	attributes := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(userns.Fd())}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attributes); err != nil {
		return fmt.Errorf("mapping the owners of %s: %w", source, err)
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mounting %s: %w", target, err)
	}
	return nil
}

// Mappable tells whether directories of the file system that dir is on can be mounted
// id-mapped. Userns is the path of any user namespace but the first.
func Mappable(dir, userns string) error {
	file, err := os.Open(userns)
	if err != nil {
		return err
	}
	defer file.Close()
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("cloning the mount of %s: %w", dir, err)
	}
	defer unix.Close(tree)
	attributes := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(file.Fd())}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attributes); err != nil {
		return fmt.Errorf("mapping the owners of %s: %w", dir, err)
	}
	return nil
}
