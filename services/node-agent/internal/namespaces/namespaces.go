// Package namespaces makes Linux namespaces and keeps them alive by bind mounts,
// without a process in them.
package namespaces

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// Kind names a namespace as /proc/<pid>/ns does.
type Kind string

// The kinds that this package can make. A PID namespace lives only as long as
// its first process, so that it can be pinned (PinProcess) but not made.
const (
	Network Kind = "net"
	IPC     Kind = "ipc"
	UTS     Kind = "uts"
	PID     Kind = "pid"
)

func (k Kind) flag() int {
	switch k {
	case Network:
		return unix.CLONE_NEWNET
	case IPC:
		return unix.CLONE_NEWIPC
	case UTS:
		return unix.CLONE_NEWUTS
	}
	return 0
}

// Create makes one new namespace of each kind, runs setup inside all of them, and
// pins each at dir/<kind>. On an error nothing stays pinned. Setup runs on a
// thread of its own that ends afterwards; it must not start goroutines that
// count on the namespaces.
func Create(dir string, kinds []Kind, setup func() error) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making %s: %w", dir, err)
	}
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread carries foreign namespaces and ends with the goroutine.
		runtime.LockOSThread()
		done <- create(dir, kinds, setup)
	}()
	if err := <-done; err != nil {
		return errors.Join(err, Unpin(dir))
	}
	return nil
}

func create(dir string, kinds []Kind, setup func() error) error {
	flags := 0
	for _, kind := range kinds {
		flags |= kind.flag()
	}
	if err := unix.Unshare(flags); err != nil {
		return fmt.Errorf("making namespaces %v: %w", kinds, err)
	}
	if err := setup(); err != nil {
		return err
	}
	for _, kind := range kinds {
		if err := pin(fmt.Sprintf("/proc/self/task/%d/ns/%s", unix.Gettid(), kind), filepath.Join(dir, string(kind))); err != nil {
			return err
		}
	}
	return nil
}

// PinProcess keeps the namespace of the process alive at dir/<kind>.
func PinProcess(dir string, kind Kind, pid int) error {
	return pin(fmt.Sprintf("/proc/%d/ns/%s", pid, kind), filepath.Join(dir, string(kind)))
}

func pin(source, target string) error {
	file, err := os.OpenFile(target, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return fmt.Errorf("making the pin: %w", err)
	}
	file.Close()
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("pinning %s at %s: %w", source, target, err)
	}
	return nil
}

// Unpin lets go of every namespace pinned under dir and removes dir. That
// nothing is pinned there is no error.
func Unpin(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading pins: %w", err)
	}
	var errs []error
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, fmt.Errorf("unpinning %s: %w", path, err))
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	return os.Remove(dir)
}

// Pinned tells whether a namespace is pinned at the path. After a reboot the
// file is there, the namespace is not.
func Pinned(path string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(path, &fs) == nil && fs.Type == unix.NSFS_MAGIC
}

// Do runs fn on a thread inside the namespace pinned at path. Fn must not start
// goroutines that count on the namespace. The thread ends afterwards.
func Do(path string, kind Kind, fn func() error) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked: see Create.
		runtime.LockOSThread()
		err := enter(path, kind)
		if err == nil {
			err = fn()
		}
		done <- err
	}()
	return <-done
}
