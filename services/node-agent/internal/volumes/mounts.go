package volumes

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// mountMemory mounts a tmpfs of at most size bytes on dir, once. Size 0 is the
// kernel's default.
func mountMemory(dir string, size int64) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	mounted, err := isMountPoint(dir)
	if err != nil || mounted {
		return err
	}
	options := "mode=0777"
	if size > 0 {
		options += fmt.Sprintf(",size=%d", size)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		return fmt.Errorf("mounting memory on %s: %w", dir, err)
	}
	return nil
}

func isMountPoint(dir string) (bool, error) {
	mounted, err := mountinfo.Mounted(dir)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return mounted, err
}

// removeTree unmounts all below root, which may be missing, and removes it.
func removeTree(root string) error {
	if _, err := os.Lstat(root); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := unmountBelow(root); err != nil {
		return err
	}
	// What is mounted belongs to others and must not be removed with the tree.
	left, err := mountinfo.GetMounts(mountinfo.PrefixFilter(root))
	if err != nil {
		return fmt.Errorf("reading mounts: %w", err)
	}
	if len(left) > 0 {
		return fmt.Errorf("%s is still mounted", left[0].Mountpoint)
	}
	if err := os.RemoveAll(root); err != nil {
		return fmt.Errorf("removing %s: %w", root, err)
	}
	return nil
}

// unmountBelow unmounts root and what is mounted below, the deepest first.
func unmountBelow(root string) error {
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(root))
	if err != nil {
		return fmt.Errorf("reading mounts: %w", err)
	}
	var points []string
	for _, info := range infos {
		points = append(points, info.Mountpoint)
	}
	slices.SortFunc(points, func(a, b string) int { return strings.Count(b, "/") - strings.Count(a, "/") })
	for _, point := range points {
		err := unix.Unmount(point, unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EBUSY) {
			err = unix.Unmount(point, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
		}
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmounting %s: %w", point, err)
		}
	}
	return nil
}
