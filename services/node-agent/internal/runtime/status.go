package runtime

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"google.golang.org/grpc"

	"github.com/sampan-io/sampan/services/node-agent/internal/images"
)

// PodSandboxStatus tells the state of one sandbox.
func (s *Server) PodSandboxStatus(_ context.Context, req *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	sb, err := s.objects.sandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	resp := &runtimeapi.PodSandboxStatusResponse{
		Status:             sandboxStatus(sb.get()),
		ContainersStatuses: s.containerStatuses(sb.id),
		Timestamp:          time.Now().UnixNano(),
	}
	if req.GetVerbose() {
		if resp.Info, err = verbose(sb.get()); err != nil {
			return nil, err
		}
	}
	return resp, nil
}

func verbose(record any) (map[string]string, error) {
	data, err := json.Marshal(record)
	if err != nil {
		return nil, err
	}
	return map[string]string{"info": string(data)}, nil
}

func sandboxStatus(record *sandboxRecord) *runtimeapi.PodSandboxStatus {
	status := &runtimeapi.PodSandboxStatus{
		Id: record.ID, Metadata: record.Config.GetMetadata(), State: sandboxState(record), CreatedAt: record.CreatedAt,
		Labels: record.Config.GetLabels(), Annotations: record.Config.GetAnnotations(), RuntimeHandler: record.Handler,
		Network: &runtimeapi.PodSandboxNetworkStatus{},
		Linux:   &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{Options: sandboxNamespaces(record.Config)}},
	}
	if record.Phase == ready && len(record.IPs) > 0 {
		status.Network.Ip = record.IPs[0]
		for _, ip := range record.IPs[1:] {
			status.Network.AdditionalIps = append(status.Network.AdditionalIps, &runtimeapi.PodIP{Ip: ip})
		}
	}
	return status
}

func sandboxState(record *sandboxRecord) runtimeapi.PodSandboxState {
	if record.Phase == ready {
		return runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
}

// ListPodSandbox lists sandboxes, the newest first.
func (s *Server) ListPodSandbox(_ context.Context, req *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{Items: s.podSandboxes(req.GetFilter())}, nil
}

// StreamPodSandboxes is ListPodSandbox in batches.
func (s *Server) StreamPodSandboxes(req *runtimeapi.StreamPodSandboxesRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxesResponse]) error {
	return inBatches(s.podSandboxes(req.GetFilter()), func(batch []*runtimeapi.PodSandbox) error {
		return stream.Send(&runtimeapi.StreamPodSandboxesResponse{PodSandboxes: batch})
	})
}

// inBatches keeps messages far below the limit of their size.
func inBatches[T any](items []T, send func([]T) error) error {
	const batch = 200
	for part := range slices.Chunk(items, batch) {
		if err := send(part); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) podSandboxes(filter *runtimeapi.PodSandboxFilter) []*runtimeapi.PodSandbox {
	var items []*runtimeapi.PodSandbox
	for _, sb := range s.objects.listSandboxes() {
		record := sb.get()
		state := sandboxState(record)
		if filter.GetState() != nil && filter.GetState().GetState() != state {
			continue
		}
		if !matches(filter.GetId(), record.ID) || !selects(filter.GetLabelSelector(), record.Config.GetLabels()) {
			continue
		}
		items = append(items, &runtimeapi.PodSandbox{
			Id: record.ID, Metadata: record.Config.GetMetadata(), State: state, CreatedAt: record.CreatedAt,
			Labels: record.Config.GetLabels(), Annotations: record.Config.GetAnnotations(), RuntimeHandler: record.Handler,
		})
	}
	return items
}

// matches compares with the id or the beginning of it that a filter has.
func matches(want, id string) bool {
	return want == "" || (len(want) <= len(id) && id[:len(want)] == want)
}

func selects(selector, labels map[string]string) bool {
	for key, value := range selector {
		if got, ok := labels[key]; !ok || got != value {
			return false
		}
	}
	return true
}

// ContainerStatus tells the state of one container.
func (s *Server) ContainerStatus(_ context.Context, req *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	c, err := s.objects.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	resp := &runtimeapi.ContainerStatusResponse{Status: s.containerStatus(c.get())}
	if req.GetVerbose() {
		if resp.Info, err = verbose(struct {
			Record *containerRecord `json:"record"`
			PID    int              `json:"pid"`
			Bundle string           `json:"bundle"`
		}{c.get(), c.get().Init.PID, s.cfg.bundle(c.id)}); err != nil {
			return nil, err
		}
	}
	return resp, nil
}

func (s *Server) containerStatuses(sandboxID string) []*runtimeapi.ContainerStatus {
	var statuses []*runtimeapi.ContainerStatus
	for _, c := range s.objects.listContainers(sandboxID) {
		statuses = append(statuses, s.containerStatus(c.get()))
	}
	return statuses
}

func (s *Server) containerStatus(record *containerRecord) *runtimeapi.ContainerStatus {
	config := record.Config
	return &runtimeapi.ContainerStatus{
		Id: record.ID, Metadata: config.GetMetadata(), State: containerState(record),
		CreatedAt: record.CreatedAt, StartedAt: record.StartedAt, FinishedAt: record.FinishedAt,
		ExitCode: record.ExitCode, Reason: record.Reason, Message: record.Message,
		Image: s.imageName(record), ImageRef: record.ImageRef, ImageId: record.ImageID,
		Labels: config.GetLabels(), Annotations: config.GetAnnotations(), Mounts: config.GetMounts(), LogPath: record.LogPath,
		Resources:  &runtimeapi.ContainerResources{Linux: config.GetLinux().GetResources()},
		User:       &runtimeapi.ContainerUser{Linux: &runtimeapi.LinuxContainerUser{Uid: record.UID, Gid: record.GID, SupplementalGroups: record.Groups}},
		StopSignal: runtimeapi.Signal(runtimeapi.Signal_value[stopSignalName(record.StopSignal)]),
	}
}

// imageName is the name of the image as its user knows it.
func (s *Server) imageName(record *containerRecord) *runtimeapi.ImageSpec {
	spec := &runtimeapi.ImageSpec{Image: record.Config.GetImage().GetImage(), Annotations: record.Config.GetImage().GetAnnotations()}
	if name := record.Config.GetImage().GetUserSpecifiedImage(); name != "" {
		spec.UserSpecifiedImage = name
	}
	if image, err := s.images.Resolve(record.ImageID); err == nil && len(image.RepoTags) > 0 {
		spec.Image = image.RepoTags[0]
		if want, err := images.Normalize(record.Config.GetImage().GetImage()); err == nil && slices.Contains(image.RepoTags, want) {
			spec.Image = want
		}
	}
	return spec
}

func containerState(record *containerRecord) runtimeapi.ContainerState {
	switch record.Phase {
	case created, creating:
		return runtimeapi.ContainerState_CONTAINER_CREATED
	case running:
		return runtimeapi.ContainerState_CONTAINER_RUNNING
	case exited:
		return runtimeapi.ContainerState_CONTAINER_EXITED
	}
	return runtimeapi.ContainerState_CONTAINER_UNKNOWN
}

// ListContainers lists containers, the newest first.
func (s *Server) ListContainers(_ context.Context, req *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: s.containers(req.GetFilter())}, nil
}

// StreamContainers is ListContainers in batches.
func (s *Server) StreamContainers(req *runtimeapi.StreamContainersRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamContainersResponse]) error {
	return inBatches(s.containers(req.GetFilter()), func(batch []*runtimeapi.Container) error {
		return stream.Send(&runtimeapi.StreamContainersResponse{Containers: batch})
	})
}

func (s *Server) containers(filter *runtimeapi.ContainerFilter) []*runtimeapi.Container {
	var items []*runtimeapi.Container
	for _, c := range s.objects.listContainers("") {
		record := c.get()
		state := containerState(record)
		if filter.GetState() != nil && filter.GetState().GetState() != state {
			continue
		}
		if !matches(filter.GetId(), record.ID) || !matches(filter.GetPodSandboxId(), record.SandboxID) || !selects(filter.GetLabelSelector(), record.Config.GetLabels()) {
			continue
		}
		items = append(items, &runtimeapi.Container{
			Id: record.ID, PodSandboxId: record.SandboxID, Metadata: record.Config.GetMetadata(),
			Image: s.imageName(record), ImageRef: record.ImageRef, ImageId: record.ImageID, State: state, CreatedAt: record.CreatedAt,
			Labels: maps.Clone(record.Config.GetLabels()), Annotations: record.Config.GetAnnotations(),
		})
	}
	return items
}
