package runtime

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

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
	used := func() error {
		if user := s.imageUser(image.ID); user != "" {
			return fmt.Errorf("%w: image %s is used by container %s", errState, image.ID, user)
		}
		return nil
	}
	if err := s.images.Remove(ctx, image.ID, used); err != nil && !errors.Is(err, images.ErrNotFound) {
		return nil, err
	}
	return &runtimeapi.RemoveImageResponse{}, nil
}

// ImageFsInfo tells how much of the disk images and writable layers take.
func (s *Server) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	var writable images.Usage
	for _, c := range s.objects.listContainers("") {
		usage, _, err := s.writableUsage(c.id)
		if err != nil {
			return nil, err
		}
		writable.Bytes += usage.Bytes
		writable.Inodes += usage.Inodes
	}
	now := time.Now()
	return &runtimeapi.ImageFsInfoResponse{
		ImageFilesystems:     []*runtimeapi.FilesystemUsage{filesystemUsage(s.images.Root(), s.images.Usage(), now)},
		ContainerFilesystems: []*runtimeapi.FilesystemUsage{filesystemUsage(s.cfg.writable(""), writable, now)},
	}, nil
}

func filesystemUsage(root string, usage images.Usage, at time.Time) *runtimeapi.FilesystemUsage {
	return &runtimeapi.FilesystemUsage{
		Timestamp: at.UnixNano(), FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: root},
		UsedBytes: number(usage.Bytes), InodesUsed: number(usage.Inodes),
	}
}
