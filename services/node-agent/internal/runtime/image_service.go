package runtime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/images"
)

// ListImages lists the images of the store.
func (s *Server) ListImages(_ context.Context, req *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	return &runtimeapi.ListImagesResponse{Images: s.listImages(req.GetFilter())}, nil
}

// StreamImages is ListImages in batches.
func (s *Server) StreamImages(req *runtimeapi.StreamImagesRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamImagesResponse]) error {
	return inBatches(s.listImages(req.GetFilter()), func(batch []*runtimeapi.Image) error {
		return stream.Send(&runtimeapi.StreamImagesResponse{Images: batch})
	})
}

func (s *Server) listImages(filter *runtimeapi.ImageFilter) []*runtimeapi.Image {
	if want := filter.GetImage().GetImage(); want != "" {
		image, err := s.images.Resolve(want)
		if err != nil {
			return nil
		}
		return []*runtimeapi.Image{s.criImage(image)}
	}
	var list []*runtimeapi.Image
	for _, image := range s.images.List() {
		list = append(list, s.criImage(image))
	}
	return list
}

func (s *Server) criImage(image *images.Image) *runtimeapi.Image {
	out := &runtimeapi.Image{
		Id: image.ID, RepoTags: image.RepoTags, RepoDigests: image.RepoDigests, Size: uint64(image.Size),
		Spec: &runtimeapi.ImageSpec{Image: image.ID}, Pinned: s.images.Pinned(image),
	}
	user, _, _ := strings.Cut(image.Config.User, ":")
	if user == "" {
		return out
	}
	if uid, err := strconv.ParseInt(user, 10, 64); err == nil {
		out.Uid = &runtimeapi.Int64Value{Value: uid}
	} else {
		out.Username = user
	}
	return out
}

// ImageStatus tells of one image; of one that is not there it tells nothing, which is
// no error.
func (s *Server) ImageStatus(_ context.Context, req *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	image, err := s.images.Resolve(req.GetImage().GetImage())
	if errors.Is(err, images.ErrNotFound) {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	resp := &runtimeapi.ImageStatusResponse{Image: s.criImage(image)}
	if req.GetVerbose() {
		config, err := s.images.RawConfig(image)
		if err != nil {
			return nil, err
		}
		resp.Info = map[string]string{"info": fmt.Sprintf(`{"chainLayers":%d,"imageSpec":%s}`, len(image.Layers), config)}
	}
	return resp, nil
}

// PullImage pulls from a registry, and returns the image's id.
func (s *Server) PullImage(ctx context.Context, req *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	auth := req.GetAuth()
	image, err := s.images.Pull(ctx, req.GetImage().GetImage(), images.Credentials{
		Username: auth.GetUsername(), Password: auth.GetPassword(), Auth: auth.GetAuth(), ServerAddress: auth.GetServerAddress(),
		IdentityToken: auth.GetIdentityToken(), RegistryToken: auth.GetRegistryToken(),
	})
	if err != nil {
		return nil, err
	}
	return &runtimeapi.PullImageResponse{ImageRef: image.ID}, nil
}

// RemoveImage removes the image with all its names. One that a container uses is
// kept, and that is an error.
func (s *Server) RemoveImage(ctx context.Context, req *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	image, err := s.images.Resolve(req.GetImage().GetImage())
	if errors.Is(err, images.ErrNotFound) {
		return &runtimeapi.RemoveImageResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if user := s.imageUser(image.ID); user != "" {
		return nil, fmt.Errorf("%w: image %s is used by container %s", errState, image.ID, user)
	}
	if err := s.images.Remove(ctx, image.ID); err != nil && !errors.Is(err, images.ErrNotFound) {
		return nil, err
	}
	return &runtimeapi.RemoveImageResponse{}, nil
}

// ImageFsInfo tells how much of the disk images and writable layers take.
func (s *Server) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	imageUsage, err := filesystemUsage(s.images.Root())
	if err != nil {
		return nil, err
	}
	containerUsage, err := filesystemUsage(s.cfg.writable(""))
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ImageFsInfoResponse{
		ImageFilesystems:     []*runtimeapi.FilesystemUsage{imageUsage},
		ContainerFilesystems: []*runtimeapi.FilesystemUsage{containerUsage},
	}, nil
}

func filesystemUsage(root string) (*runtimeapi.FilesystemUsage, error) {
	bytes, inodes, err := diskUsage(root)
	if err != nil {
		return nil, fmt.Errorf("measuring %s: %w", root, err)
	}
	return &runtimeapi.FilesystemUsage{
		Timestamp: time.Now().UnixNano(), FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: root},
		UsedBytes: &runtimeapi.UInt64Value{Value: bytes}, InodesUsed: &runtimeapi.UInt64Value{Value: inodes},
	}, nil
}

// diskUsage counts blocks as du does; a file with several links counts for each.
func diskUsage(root string) (bytes, inodes uint64, err error) {
	err = filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		var stat unix.Stat_t
		if unix.Lstat(path, &stat) == nil {
			const block = 512
			bytes += uint64(stat.Blocks) * block
			inodes++
		}
		return nil
	})
	return bytes, inodes, err
}
