package ocispec

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

func (b *builder) devices() error {
	rules := []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
	if b.privileged() {
		// Everything that is in the agent's /dev, and the right to make more.
		devices, err := devicesUnder("/dev", "/dev")
		if err != nil {
			return err
		}
		b.spec.Linux.Devices = devices
		b.spec.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
		return nil
	}
	for _, wanted := range b.c.Config.GetDevices() {
		devices, err := devicesUnder(wanted.GetHostPath(), wanted.GetContainerPath())
		if err != nil {
			return fmt.Errorf("device %s: %w", wanted.GetHostPath(), err)
		}
		if len(devices) == 0 {
			return fmt.Errorf("device %s: not a device", wanted.GetHostPath())
		}
		access := wanted.GetPermissions()
		if access == "" {
			access = "rwm"
		}
		for _, device := range devices {
			rules = append(rules, specs.LinuxDeviceCgroup{Allow: true, Type: device.Type, Major: &device.Major, Minor: &device.Minor, Access: access})
		}
		b.spec.Linux.Devices = append(b.spec.Linux.Devices, devices...)
	}
	b.spec.Linux.Resources.Devices = rules
	return nil
}

// devicesUnder finds the device at the path, or all below it when it is a
// directory, without those that each container has of its own.
func devicesUnder(host, container string) ([]specs.LinuxDevice, error) {
	real, err := filepath.EvalSymlinks(host)
	if err != nil {
		return nil, err
	}
	var devices []specs.LinuxDevice
	err = filepath.WalkDir(real, func(path string, entry os.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil // devices come and go
		}
		if err != nil {
			return err
		}
		if entry.IsDir() && ownInContainer(path) {
			return filepath.SkipDir
		}
		if entry.Type()&os.ModeDevice == 0 || path == "/dev/console" {
			return nil
		}
		device, err := device(path)
		if err != nil {
			return err
		}
		device.Path = container + strings.TrimPrefix(path, real)
		devices = append(devices, device)
		return nil
	})
	return devices, err
}

func ownInContainer(dir string) bool {
	switch dir {
	case "/dev/pts", "/dev/shm", "/dev/fd", "/dev/mqueue", "/dev/.lxc", "/dev/.lxd-mounts", "/dev/.udev":
		return true
	}
	return false
}

func device(path string) (specs.LinuxDevice, error) {
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); err != nil {
		return specs.LinuxDevice{}, err
	}
	kind := "c"
	if stat.Mode&unix.S_IFMT == unix.S_IFBLK {
		kind = "b"
	}
	mode := os.FileMode(stat.Mode & 0o777)
	return specs.LinuxDevice{
		Type: kind, FileMode: &mode, UID: &stat.Uid, GID: &stat.Gid,
		Major: int64(unix.Major(uint64(stat.Rdev))), Minor: int64(unix.Minor(uint64(stat.Rdev))),
	}, nil
}
