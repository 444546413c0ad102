// Package fakecri is a container runtime in memory for tests: it keeps the state
// of sandboxes and containers, tells of changes, and fails or hangs where it is
// told to. It is served on a real unix socket.
package fakecri

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Runtime is the fake.
type Runtime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer

	// Socket is where it is served.
	Socket string

	mu         sync.Mutex
	next       int
	sandboxes  map[string]*runtimeapi.PodSandboxStatus
	containers map[string]*container
	images     map[string]bool
	listeners  map[chan string]struct{}
	faults     map[string]Fault
	calls      map[string]int
	noEvents   bool
}

type container struct {
	status  *runtimeapi.ContainerStatus
	sandbox string
}

// Fault changes what a call does: it returns an error at once, or waits until its
// context has ended. A nil error and false do nothing.
type Fault func(request any) (err error, hang bool)

// Start serves a fake until the test ends.
func Start(t testing.TB) *Runtime {
	t.Helper()
	r := &Runtime{
		Socket: filepath.Join(t.TempDir(), "cri.sock"), sandboxes: map[string]*runtimeapi.PodSandboxStatus{}, containers: map[string]*container{},
		images: map[string]bool{}, listeners: map[chan string]struct{}{}, faults: map[string]Fault{}, calls: map[string]int{},
	}
	listener, err := net.Listen("unix", r.Socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(r.intercept))
	runtimeapi.RegisterRuntimeServiceServer(server, r)
	runtimeapi.RegisterImageServiceServer(server, r)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return r
}

// Fail sets the fault of a method ("PullImage"); nil removes it.
func (r *Runtime) Fail(method string, fault Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults[method] = fault
}

// WithoutEvents makes it a runtime that has to be listed.
func (r *Runtime) WithoutEvents() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noEvents = true
}

// AddImage puts an image on the node.
func (r *Runtime) AddImage(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.images[name] = true
}

// Calls is how often a method was called.
func (r *Runtime) Calls(method string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[method]
}

// Exit ends the running container of that name in a pod.
func (r *Runtime) Exit(pod, name string, code int32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.containers {
		if c.status.GetMetadata().GetName() == name && r.sandboxes[c.sandbox].GetMetadata().GetName() == pod && c.status.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			r.exit(c, code)
			return true
		}
	}
	return false
}

// Dump is all that it holds, a line each.
func (r *Runtime) Dump() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out strings.Builder
	for id, sandbox := range r.sandboxes {
		fmt.Fprintf(&out, "sandbox %s %s %s\n", id, sandbox.GetMetadata().GetName(), sandbox.GetState())
	}
	for id, c := range r.containers {
		fmt.Fprintf(&out, "container %s %s in %s %s\n", id, c.status.GetMetadata().GetName(), c.sandbox, c.status.GetState())
	}
	return out.String()
}

func (r *Runtime) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	method := info.FullMethod[strings.LastIndexByte(info.FullMethod, '/')+1:]
	r.mu.Lock()
	r.calls[method]++
	fault := r.faults[method]
	r.mu.Unlock()
	if fault != nil {
		err, hang := fault(req)
		if hang {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		if err != nil {
			return nil, err
		}
	}
	return handler(ctx, req)
}

// id makes a new one. Caller must hold mu.
func (r *Runtime) id(prefix string) string {
	r.next++
	return fmt.Sprintf("%s-%d", prefix, r.next)
}

// emit tells listeners of a pod. Caller must hold mu.
func (r *Runtime) emit(sandbox string) {
	uid := r.sandboxes[sandbox].GetMetadata().GetUid()
	for listener := range r.listeners {
		select {
		case listener <- uid:
		default:
		}
	}
}

// exit ends a container. Caller must hold mu.
func (r *Runtime) exit(c *container, code int32) {
	c.status.State, c.status.ExitCode, c.status.FinishedAt = runtimeapi.ContainerState_CONTAINER_EXITED, code, time.Now().UnixNano()
	r.emit(c.sandbox)
}

func notFound(what, id string) error {
	return status.Errorf(codes.NotFound, "%s %q not found", what, id)
}

// Version implements the CRI.
func (r *Runtime) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{RuntimeName: "fake", RuntimeVersion: "1", RuntimeApiVersion: "v1"}, nil
}

// RunPodSandbox implements the CRI.
func (r *Runtime) RunPodSandbox(_ context.Context, req *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := r.id("sandbox")
	config := req.GetConfig()
	r.sandboxes[id] = &runtimeapi.PodSandboxStatus{
		Id: id, Metadata: config.GetMetadata(), Labels: config.GetLabels(), CreatedAt: time.Now().UnixNano(), State: runtimeapi.PodSandboxState_SANDBOX_READY,
		Network: &runtimeapi.PodSandboxNetworkStatus{Ip: fmt.Sprintf("10.0.0.%d", r.next)},
	}
	r.emit(id)
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, nil
}

// StopPodSandbox implements the CRI.
func (r *Runtime) StopPodSandbox(_ context.Context, req *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if sandbox, ok := r.sandboxes[req.GetPodSandboxId()]; ok {
		for _, c := range r.containers {
			if c.sandbox == sandbox.GetId() && c.status.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
				r.exit(c, 137)
			}
		}
		sandbox.State, sandbox.Network = runtimeapi.PodSandboxState_SANDBOX_NOTREADY, &runtimeapi.PodSandboxNetworkStatus{}
		r.emit(sandbox.GetId())
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

// RemovePodSandbox implements the CRI.
func (r *Runtime) RemovePodSandbox(ctx context.Context, req *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	if _, err := r.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: req.GetPodSandboxId()}); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, c := range r.containers {
		if c.sandbox == req.GetPodSandboxId() {
			delete(r.containers, id)
		}
	}
	delete(r.sandboxes, req.GetPodSandboxId())
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

// ListPodSandbox implements the CRI.
func (r *Runtime) ListPodSandbox(_ context.Context, req *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	response := &runtimeapi.ListPodSandboxResponse{}
	for _, sandbox := range r.sandboxes {
		if selects(req.GetFilter().GetLabelSelector(), sandbox.GetLabels()) {
			response.Items = append(response.Items, &runtimeapi.PodSandbox{Id: sandbox.GetId(), Metadata: sandbox.GetMetadata(), State: sandbox.GetState(), Labels: sandbox.GetLabels(), CreatedAt: sandbox.GetCreatedAt()})
		}
	}
	return response, nil
}

func selects(selector, labels map[string]string) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return true
}

// PodSandboxStatus implements the CRI. As some runtimes, it tells of no containers.
func (r *Runtime) PodSandboxStatus(_ context.Context, req *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	sandbox, ok := r.sandboxes[req.GetPodSandboxId()]
	if !ok {
		return nil, notFound("sandbox", req.GetPodSandboxId())
	}
	copied := &runtimeapi.PodSandboxStatus{
		Id: sandbox.GetId(), Metadata: sandbox.GetMetadata(), State: sandbox.GetState(), Labels: sandbox.GetLabels(), CreatedAt: sandbox.GetCreatedAt(), Network: sandbox.GetNetwork(),
	}
	return &runtimeapi.PodSandboxStatusResponse{Status: copied}, nil
}

// CreateContainer implements the CRI.
func (r *Runtime) CreateContainer(_ context.Context, req *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.sandboxes[req.GetPodSandboxId()]; !ok {
		return nil, notFound("sandbox", req.GetPodSandboxId())
	}
	id, config := r.id("container"), req.GetConfig()
	r.containers[id] = &container{sandbox: req.GetPodSandboxId(), status: &runtimeapi.ContainerStatus{
		Id: id, Metadata: config.GetMetadata(), Labels: config.GetLabels(), Annotations: config.GetAnnotations(), Image: config.GetImage(), ImageRef: config.GetImage().GetImage(),
		CreatedAt: time.Now().UnixNano(), State: runtimeapi.ContainerState_CONTAINER_CREATED, Mounts: config.GetMounts(),
	}}
	r.emit(req.GetPodSandboxId())
	return &runtimeapi.CreateContainerResponse{ContainerId: id}, nil
}

// StartContainer implements the CRI.
func (r *Runtime) StartContainer(_ context.Context, req *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.containers[req.GetContainerId()]
	if !ok {
		return nil, notFound("container", req.GetContainerId())
	}
	c.status.State, c.status.StartedAt = runtimeapi.ContainerState_CONTAINER_RUNNING, time.Now().UnixNano()
	r.emit(c.sandbox)
	return &runtimeapi.StartContainerResponse{}, nil
}

// StopContainer implements the CRI.
func (r *Runtime) StopContainer(_ context.Context, req *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c, ok := r.containers[req.GetContainerId()]; ok && c.status.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
		r.exit(c, 143)
	}
	return &runtimeapi.StopContainerResponse{}, nil
}

// UpdateContainerResources has nothing to change.
func (r *Runtime) UpdateContainerResources(context.Context, *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

// RemoveContainer implements the CRI.
func (r *Runtime) RemoveContainer(_ context.Context, req *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.containers, req.GetContainerId())
	return &runtimeapi.RemoveContainerResponse{}, nil
}

// ListContainers implements the CRI.
func (r *Runtime) ListContainers(_ context.Context, req *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	response := &runtimeapi.ListContainersResponse{}
	for _, c := range r.containers {
		if selects(req.GetFilter().GetLabelSelector(), c.status.GetLabels()) {
			response.Containers = append(response.Containers, &runtimeapi.Container{Id: c.status.GetId(), PodSandboxId: c.sandbox, Metadata: c.status.GetMetadata(), State: c.status.GetState(), Labels: c.status.GetLabels()})
		}
	}
	return response, nil
}

// ContainerStatus implements the CRI.
func (r *Runtime) ContainerStatus(_ context.Context, req *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.containers[req.GetContainerId()]
	if !ok {
		return nil, notFound("container", req.GetContainerId())
	}
	s := c.status
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{
		Id: s.Id, Metadata: s.Metadata, State: s.State, CreatedAt: s.CreatedAt, StartedAt: s.StartedAt, FinishedAt: s.FinishedAt, ExitCode: s.ExitCode,
		Image: s.Image, ImageRef: s.ImageRef, Reason: s.Reason, Message: s.Message, Labels: s.Labels, Annotations: s.Annotations, Mounts: s.Mounts,
	}}, nil
}

// ExecSync implements the CRI: every command succeeds.
func (r *Runtime) ExecSync(context.Context, *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	return &runtimeapi.ExecSyncResponse{}, nil
}

// GetContainerEvents implements the CRI.
func (r *Runtime) GetContainerEvents(_ *runtimeapi.GetEventsRequest, stream grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse]) error {
	const backlog = 1000
	events := make(chan string, backlog)
	r.mu.Lock()
	if r.noEvents {
		r.mu.Unlock()
		return status.Error(codes.Unimplemented, "no events here")
	}
	r.listeners[events] = struct{}{}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.listeners, events)
	}()
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	for {
		select {
		case uid := <-events:
			event := &runtimeapi.ContainerEventResponse{PodSandboxStatus: &runtimeapi.PodSandboxStatus{Metadata: &runtimeapi.PodSandboxMetadata{Uid: uid}}}
			if err := stream.Send(event); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// ImageStatus implements the CRI.
func (r *Runtime) ImageStatus(_ context.Context, req *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := req.GetImage().GetImage()
	if !r.images[name] {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	return &runtimeapi.ImageStatusResponse{Image: &runtimeapi.Image{Id: name, RepoTags: []string{name}, Size: 1}}, nil
}

// PullImage implements the CRI: every image can be pulled.
func (r *Runtime) PullImage(_ context.Context, req *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	r.AddImage(req.GetImage().GetImage())
	return &runtimeapi.PullImageResponse{ImageRef: req.GetImage().GetImage()}, nil
}
