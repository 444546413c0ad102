// Package overlay mounts container root file systems from image layers.
package overlay

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Mount describes a root file system. Lower holds the layers' directories, the
// base layer first. Upper and Work are empty for a read-only mount.
type Mount struct {
	Lower  []string
	Upper  string
	Work   string
	Target string
	// UserNS is the path of a user namespace in whose eyes the layers' files shall have
	// the owners that they have; empty is the caller's. The layers are mapped at
	// directories below Scratch then, which Do makes and removes.
	UserNS  string
	Scratch string
}

// Do mounts it. The directories must exist.
func (m Mount) Do() error {
	if m.UserNS != "" {
		return m.mapped()
	}
	lower := slices.Clone(m.Lower)
	slices.Reverse(lower) // overlayfs wants the uppermost first
	if m.Upper == "" && len(lower) == 1 {
		return bindReadOnly(lower[0], m.Target)
	}
	err := m.mountNew(lower)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) {
		// Kernels before 6.5 take all lower directories as one option.
		err = m.mountOld(lower)
	}
	if err != nil {
		return fmt.Errorf("mounting overlay at %s: %w", m.Target, err)
	}
	return nil
}

// mountNew passes each layer by an option of its own, so that no number of layers
// and no length of their paths meets a limit.
func (m Mount) mountNew(lower []string) error {
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fs)
	if err := unix.FsconfigSetString(fs, "source", "overlay"); err != nil {
		return err
	}
	for _, dir := range lower {
		if err := unix.FsconfigSetString(fs, "lowerdir+", dir); err != nil {
			return err
		}
	}
	if m.Upper != "" {
		if err := unix.FsconfigSetString(fs, "upperdir", m.Upper); err != nil {
			return err
		}
		if err := unix.FsconfigSetString(fs, "workdir", m.Work); err != nil {
			return err
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return err
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(mount)
	return unix.MoveMount(mount, "", unix.AT_FDCWD, m.Target, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// mountOld names layers by file descriptor: mount(2) takes one page of options.
func (m Mount) mountOld(lower []string) error {
	names := make([]string, 0, len(lower))
	for _, dir := range lower {
		file, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer file.Close()
		names = append(names, fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
	}
	options := "lowerdir=" + strings.Join(names, ":")
	if m.Upper != "" {
		options += ",upperdir=" + escape(m.Upper) + ",workdir=" + escape(m.Work)
	}
	return unix.Mount("overlay", m.Target, "overlay", 0, options)
}

func escape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `,`, `\,`, `:`, `\:`).Replace(filepath.Clean(path))
}

func bindReadOnly(source, target string) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("binding %s: %w", source, err)
	}
	if err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return errors.Join(fmt.Errorf("making %s read-only: %w", target, err), Unmount(target))
	}
	return nil
}

// Unmount detaches whatever is mounted at target; nothing there is no error.
func Unmount(target string) error {
	err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err == nil || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return fmt.Errorf("unmounting %s: %w", target, err)
}
