package ocispec

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (b *builder) mounts() error {
	mounts := b.systemMounts()
	wanted := b.c.Config.GetMounts()
	for _, mount := range b.c.Mounts {
		if !slices.ContainsFunc(wanted, func(m *runtimeapi.Mount) bool { return filepath.Clean(m.GetContainerPath()) == mount.Destination }) {
			mounts = append(mounts, mount)
		}
	}
	var own []specs.Mount
	for _, m := range wanted {
		mount, err := b.bind(m)
		if err != nil {
			return fmt.Errorf("mount %s: %w", m.GetContainerPath(), err)
		}
		mounts = slices.DeleteFunc(mounts, func(other specs.Mount) bool { return other.Destination == mount.Destination })
		own = append(own, mount)
	}
	// A mount goes before those below it.
	slices.SortStableFunc(own, func(x, y specs.Mount) int { return depth(x.Destination) - depth(y.Destination) })
	b.spec.Mounts = append(mounts, own...)
	return nil
}

func depth(path string) int { return strings.Count(strings.TrimSuffix(path, "/"), "/") }

func (b *builder) systemMounts() []specs.Mount {
	sys, cgroup := "ro", "ro"
	if b.privileged() {
		sys, cgroup = "rw", "rw"
	}
	mounts := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", sys}},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", cgroup}},
	}
	if b.c.Namespaces.IPC == "" {
		// The queues of the host's IPC namespace are mounted where they are.
		mounts[3] = specs.Mount{Destination: "/dev/mqueue", Type: "bind", Source: "/dev/mqueue", Options: []string{"rbind", "nosuid", "noexec", "nodev"}}
		if _, err := os.Stat("/dev/mqueue"); err != nil {
			mounts = slices.Delete(mounts, 3, 4)
		}
	}
	return mounts
}

func (b *builder) bind(m *runtimeapi.Mount) (specs.Mount, error) {
	destination := filepath.Clean(m.GetContainerPath())
	if !filepath.IsAbs(destination) {
		// The CRI suite and old clients give relative ones; they mean from the root.
		destination = filepath.Join("/", destination)
	}
	if (len(m.GetUidMappings()) > 0) != (len(m.GetGidMappings()) > 0) {
		return specs.Mount{}, errors.New("uids and gids are mapped together or not at all")
	}
	source := m.GetHostPath()
	if _, err := os.Stat(source); errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(source, 0o755); err != nil {
			return specs.Mount{}, err
		}
	} else if err != nil {
		return specs.Mount{}, err
	}
	propagation, err := b.propagation(m, source)
	if err != nil {
		return specs.Mount{}, err
	}
	options := []string{"rbind", propagation}
	switch {
	case m.GetRecursiveReadOnly():
		if !m.GetReadonly() || m.GetPropagation() != runtimeapi.MountPropagation_PROPAGATION_PRIVATE {
			return specs.Mount{}, errors.New("recursive read-only needs read-only and private propagation")
		}
		options = append(options, "rro")
	case m.GetReadonly():
		options = append(options, "ro")
	default:
		options = append(options, "rw")
	}
	options = append(options, m.GetMountOptions()...)
	return specs.Mount{
		Destination: destination, Type: "bind", Source: source, Options: options,
		UIDMappings: idMappings(m.GetUidMappings()), GIDMappings: idMappings(m.GetGidMappings()),
	}, nil
}

func idMappings(list []*runtimeapi.IDMapping) []specs.LinuxIDMapping {
	var out []specs.LinuxIDMapping
	for _, m := range list {
		out = append(out, specs.LinuxIDMapping{ContainerID: m.GetContainerId(), HostID: m.GetHostId(), Size: m.GetLength()})
	}
	return out
}

func (b *builder) propagation(m *runtimeapi.Mount, source string) (string, error) {
	switch m.GetPropagation() {
	case runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL:
		if err := checkPropagation(source, false); err != nil {
			return "", err
		}
		b.spec.Linux.RootfsPropagation = "rshared"
		return "rshared", nil
	case runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER:
		if err := checkPropagation(source, true); err != nil {
			return "", err
		}
		if b.spec.Linux.RootfsPropagation == "" {
			b.spec.Linux.RootfsPropagation = "rslave"
		}
		return "rslave", nil
	}
	return "rprivate", nil
}

// checkPropagation makes sure that mounts under the source can propagate at all.
func checkPropagation(source string, slaveIsEnough bool) error {
	real, err := filepath.EvalSymlinks(source)
	if err != nil {
		return err
	}
	infos, err := mountinfo.GetMounts(mountinfo.ParentsFilter(real))
	if err != nil {
		return fmt.Errorf("reading mounts: %w", err)
	}
	var nearest *mountinfo.Info
	for _, info := range infos {
		if nearest == nil || len(info.Mountpoint) >= len(nearest.Mountpoint) {
			nearest = info
		}
	}
	if nearest == nil {
		return fmt.Errorf("%s is in no mount", source)
	}
	shared := strings.Contains(nearest.Optional, "shared:")
	slave := strings.Contains(nearest.Optional, "master:")
	if shared || (slaveIsEnough && slave) {
		return nil
	}
	return fmt.Errorf("path %q is mounted on %q but it is not a shared mount", source, nearest.Mountpoint)
}
