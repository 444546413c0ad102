package namespaces

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// User is the namespace of user and group ids. It can be made (CreateOwned) and pinned.
const User Kind = "user"

// IDMap shows the ids from Host on as those from Container on.
type IDMap struct{ Container, Host, Length uint32 }

// Mapping is that of a user namespace.
type Mapping struct{ UIDs, GIDs IDMap }

func (m IDMap) sys() []syscall.SysProcIDMap {
	return []syscall.SysProcIDMap{{ContainerID: int(m.Container), HostID: int(m.Host), Size: int(m.Length)}}
}

// CreateOwned makes a user namespace with the mapping and, owned by it, one namespace
// of each other kind; it pins all of them as Create does. Program is a static one that
// waits: a user namespace can be made only for a process of one thread, which lives no
// longer than this call.
func CreateOwned(dir string, kinds []Kind, mapping Mapping, program string, setup func() error) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making %s: %w", dir, err)
	}
	done := make(chan error, 1)
	go func() {
		// The process dies with its parent's thread; see also Create.
		runtime.LockOSThread()
		done <- createOwned(dir, kinds, mapping, program, setup)
	}()
	if err := <-done; err != nil {
		return errors.Join(err, Unpin(dir))
	}
	return nil
}

func createOwned(dir string, kinds []Kind, mapping Mapping, program string, setup func() error) error {
	flags := unix.CLONE_NEWUSER
	for _, kind := range kinds {
		flags |= kind.flag()
	}
	cmd := exec.Command(program)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: uintptr(flags), UidMappings: mapping.UIDs.sys(), GidMappings: mapping.GIDs.sys(), GidMappingsEnableSetgroups: true,
		Pdeathsig: syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("making a user namespace: %w", err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	for _, kind := range append([]Kind{User}, kinds...) {
		if err := PinProcess(dir, kind, cmd.Process.Pid); err != nil {
			return err
		}
	}
	// This thread's user namespace stays as it is: it may do in those that it owns what
	// their own root may.
	for _, kind := range kinds {
		if err := enter(filepath.Join(dir, string(kind)), kind); err != nil {
			return err
		}
	}
	return setup()
}

// enter moves the calling thread into the namespace pinned at path.
func enter(path string, kind Kind) error {
	ns, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("opening the namespace: %w", err)
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), kind.flag()); err != nil {
		return fmt.Errorf("entering %s: %w", path, err)
	}
	return nil
}
