package podworker

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/criconfig"
	"github.com/sampan-io/sampan/services/node-agent/internal/env"
	"github.com/sampan-io/sampan/services/node-agent/internal/volumes"
)

func (s *starter) mounts(spec *corev1.Container, vars []env.Var) ([]*runtimeapi.Mount, error) {
	if len(spec.VolumeDevices) > 0 {
		return nil, errors.New("block volumes are not supported by this node")
	}
	var mounts []*runtimeapi.Mount
	ownHosts := false
	for i := range spec.VolumeMounts {
		mount, err := s.mount(spec, i, vars)
		if err != nil {
			return nil, err
		}
		ownHosts = ownHosts || mount.GetContainerPath() == hostsPath
		mounts = append(mounts, mount)
	}
	if !ownHosts && len(s.podIPs) > 0 {
		file := filepath.Join(s.cfg.Volumes.PodDir(s.pod.UID), "etc-hosts")
		if err := s.cfg.Node.HostsFile(s.pod, file, s.podIPs); err != nil {
			return nil, err
		}
		readOnly := spec.SecurityContext != nil && spec.SecurityContext.ReadOnlyRootFilesystem != nil && *spec.SecurityContext.ReadOnlyRootFilesystem
		mounts = append(mounts, &runtimeapi.Mount{ContainerPath: hostsPath, HostPath: file, Readonly: readOnly})
	}
	return mounts, nil
}

func (s *starter) mount(spec *corev1.Container, index int, vars []env.Var) (*runtimeapi.Mount, error) {
	wanted := &spec.VolumeMounts[index]
	volume, known := s.mounted[wanted.Name]
	if !known {
		return nil, fmt.Errorf("cannot find volume %q to mount into container %q", wanted.Name, spec.Name)
	}
	subPath, err := expandSubPath(wanted, vars)
	if err != nil {
		return nil, err
	}
	if volume.Image != "" {
		return s.imageMount(wanted, volume.Image, subPath)
	}
	path := volume.HostPath
	if subPath != "" {
		var err error
		if path, err = s.cfg.Volumes.SubPath(s.pod.UID, wanted.Name, spec.Name, index, volume.HostPath, subPath); err != nil {
			return nil, fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q: %w", wanted.Name, spec.Name, err)
		}
	}
	return criconfig.Mount(wanted, criconfig.VolumePath{HostPath: path, ReadOnly: volume.ReadOnly})
}

// imageMount is the mount of a volume that the runtime makes from an image.
func (s *starter) imageMount(wanted *corev1.VolumeMount, reference, subPath string) (*runtimeapi.Mount, error) {
	mount, err := criconfig.Mount(wanted, criconfig.VolumePath{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	mount.Image = &runtimeapi.ImageSpec{Image: s.volumeImages[wanted.Name], UserSpecifiedImage: reference}
	mount.ImageSubPath = subPath
	return mount, nil
}

func mountsVolume(spec *corev1.Container, volume string) bool {
	return slices.ContainsFunc(spec.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volume })
}

func expandSubPath(wanted *corev1.VolumeMount, vars []env.Var) (string, error) {
	subPath := wanted.SubPath
	if wanted.SubPathExpr != "" {
		var missing []string
		lookup := env.Lookup(vars)
		subPath = env.Expand(wanted.SubPathExpr, func(name string) (string, bool) {
			value, ok := lookup(name)
			if !ok {
				missing = append(missing, name)
			}
			return value, ok
		})
		if len(missing) > 0 {
			return "", fmt.Errorf("missing value for %q", missing[0])
		}
		if err := volumes.CheckSubPathExpansion(subPath); err != nil {
			return "", err
		}
	}
	return subPath, nil
}

// messageFile makes the file that the termination message goes to.
func (s *starter) messageFile(spec *corev1.Container) (string, error) {
	if spec.TerminationMessagePath == "" {
		return "", nil
	}
	dir := filepath.Join(s.cfg.Volumes.PodDir(s.pod.UID), "containers", spec.Name)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", fmt.Errorf("making directory for the termination message: %w", err)
	}
	var id [4]byte
	_, _ = rand.Read(id[:])
	path := filepath.Join(dir, hex.EncodeToString(id[:]))
	if err := os.WriteFile(path, nil, 0o666); err != nil {
		return "", fmt.Errorf("making the termination message file: %w", err)
	}
	return path, os.Chmod(path, 0o666) // whoever the container runs as must write it
}
