package runtime

import (
	"fmt"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/overlay"
)

// imageVolumes finds the images that are mounted as volumes. It returns the
// configuration with the id of each, which keeps it from being removed as long as the
// container is there; until then release must not be called.
func (s *Server) imageVolumes(config *runtimeapi.ContainerConfig) (with *runtimeapi.ContainerConfig, release func(), err error) {
	var releases []func()
	release = func() {
		for _, fn := range releases {
			fn()
		}
	}
	for i, mount := range config.GetMounts() {
		ref := mount.GetImage().GetImage()
		if ref == "" {
			continue
		}
		if err = checkImageVolume(mount); err != nil {
			break
		}
		image, done, useErr := s.images.Use(ref)
		if err = useErr; err != nil {
			break
		}
		releases = append(releases, done)
		if with == nil {
			with = proto.CloneOf(config)
		}
		with.Mounts[i].Image.ImageRef = image.ID
	}
	if err != nil {
		release()
		return nil, nil, fmt.Errorf("image volume: %w", err)
	}
	if with == nil {
		with = config
	}
	return with, release, nil
}

func checkImageVolume(mount *runtimeapi.Mount) error {
	switch {
	case !mount.GetReadonly():
		return fmt.Errorf("%w: %s: an image can only be mounted read-only", errInvalid, mount.GetContainerPath())
	case mount.GetHostPath() != "":
		return fmt.Errorf("%w: %s: a mount has a host path or an image", errInvalid, mount.GetContainerPath())
	}
	return nil
}

// imageMounts mounts the images that serve as volumes, read-only, and turns them into
// bind mounts of the container.
func (s *Server) imageMounts(sb *sandboxRecord, record *containerRecord) ([]*runtimeapi.Mount, error) {
	var mounts []*runtimeapi.Mount
	for i, mount := range record.Config.GetMounts() {
		if mount.GetImage().GetImage() == "" {
			mounts = append(mounts, mount)
			continue
		}
		host, err := s.mountImage(sb, record.ID, i, mount)
		if err != nil {
			return nil, fmt.Errorf("image volume %s: %w", mount.GetContainerPath(), err)
		}
		mounts = append(mounts, &runtimeapi.Mount{
			ContainerPath: mount.GetContainerPath(), HostPath: host, Readonly: true, RecursiveReadOnly: mount.GetRecursiveReadOnly(),
			MountOptions: mount.GetMountOptions(),
		})
	}
	return mounts, nil
}

func (s *Server) mountImage(sb *sandboxRecord, id string, index int, mount *runtimeapi.Mount) (string, error) {
	image, err := s.images.Resolve(mount.GetImage().GetImageRef())
	if err != nil {
		return "", err
	}
	target := filepath.Join(s.cfg.bundle(id), fmt.Sprintf("image-%d", index))
	if err := os.Mkdir(target, 0o755); err != nil {
		return "", err
	}
	volume := overlay.Mount{Lower: s.images.LayerDirs(image), Target: target, UserNS: s.userNamespace(sb), Scratch: s.cfg.bundle(id)}
	if err := volume.Do(); err != nil {
		return "", err
	}
	if sub := mount.GetImageSubPath(); sub != "" {
		return subPath(target, sub)
	}
	return target, nil
}
