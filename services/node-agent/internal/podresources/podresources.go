// Package podresources tells monitoring agents on this node which devices, CPUs
// and memory pods have: the kubelet's pod resources API, v1.
package podresources

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/cpus"
	"github.com/sampan-io/sampan/services/node-agent/internal/devices"
	"github.com/sampan-io/sampan/services/node-agent/internal/numa"
)

// Server answers.
type Server struct {
	podresourcesv1.UnimplementedPodResourcesListerServer
	Pods    func() []*corev1.Pod
	Devices *devices.Store
	CPUs    *cpus.Pool // nil where all are shared
	Memory  *numa.Pool // nil where all is shared
}

// Run listens on a socket until ctx ends.
func (s *Server) Run(ctx context.Context, socket string) error {
	if err := os.MkdirAll(filepath.Dir(socket), 0o750); err != nil {
		return fmt.Errorf("making the directory of the pod resources API: %w", err)
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the old socket of the pod resources API: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("listening for the pod resources API: %w", err)
	}
	server := grpc.NewServer()
	podresourcesv1.RegisterPodResourcesListerServer(server, s)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		server.Stop()
	}()
	err = server.Serve(listener)
	if ctx.Err() != nil {
		<-stopped
		return nil
	}
	return fmt.Errorf("serving the pod resources API: %w", err)
}

// List implements the API.
func (s *Server) List(context.Context, *podresourcesv1.ListPodResourcesRequest) (*podresourcesv1.ListPodResourcesResponse, error) {
	out := &podresourcesv1.ListPodResourcesResponse{}
	for _, pod := range s.Pods() {
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		out.PodResources = append(out.PodResources, s.pod(pod))
	}
	return out, nil
}

// Get implements the API.
func (s *Server) Get(_ context.Context, request *podresourcesv1.GetPodResourcesRequest) (*podresourcesv1.GetPodResourcesResponse, error) {
	for _, pod := range s.Pods() {
		if pod.Namespace == request.GetPodNamespace() && pod.Name == request.GetPodName() {
			return &podresourcesv1.GetPodResourcesResponse{PodResources: s.pod(pod)}, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "pod %s in namespace %s not found", request.GetPodName(), request.GetPodNamespace())
}

// GetAllocatableResources implements the API.
func (s *Server) GetAllocatableResources(context.Context, *podresourcesv1.AllocatableResourcesRequest) (*podresourcesv1.AllocatableResourcesResponse, error) {
	out := &podresourcesv1.AllocatableResourcesResponse{}
	for _, known := range s.Devices.All() {
		out.Devices = append(out.Devices, &podresourcesv1.ContainerDevices{
			ResourceName: known.Resource, DeviceIds: []string{known.Device.GetID()}, Topology: topology(known),
		})
	}
	if s.CPUs != nil {
		out.CpuIds = ids(s.CPUs.All().Difference(s.CPUs.Reserved()).List())
	}
	if s.Memory != nil {
		for _, block := range s.Memory.Allocatable() {
			out.Memory = append(out.Memory, memory(block))
		}
	}
	return out, nil
}

func topology(known devices.Known) *podresourcesv1.TopologyInfo {
	if known.Device.GetTopology() == nil {
		return nil
	}
	out := &podresourcesv1.TopologyInfo{}
	for _, node := range known.Device.GetTopology().GetNodes() {
		out.Nodes = append(out.Nodes, &podresourcesv1.NUMANode{ID: node.GetID()})
	}
	return out
}

func (s *Server) pod(pod *corev1.Pod) *podresourcesv1.PodResources {
	out := &podresourcesv1.PodResources{Name: pod.Name, Namespace: pod.Namespace}
	for _, c := range slices.Concat(sidecars(pod), pod.Spec.Containers) {
		one := &podresourcesv1.ContainerResources{Name: c.Name}
		for _, given := range s.Devices.Of(pod.UID, c.Name) {
			one.Devices = append(one.Devices, &podresourcesv1.ContainerDevices{ResourceName: given.Resource, DeviceIds: given.Devices})
		}
		if s.CPUs != nil {
			if set, own := s.CPUs.Of(pod.UID, c.Name); own {
				one.CpuIds = ids(set.List())
			}
		}
		if s.Memory != nil {
			if block, own := s.Memory.Of(pod.UID, c.Name); own {
				one.Memory = append(one.Memory, memory(block))
			}
		}
		out.Containers = append(out.Containers, one)
	}
	return out
}

func sidecars(pod *corev1.Pod) []corev1.Container {
	var out []corev1.Container
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			out = append(out, c)
		}
	}
	return out
}

func ids(list []int) []int64 {
	out := make([]int64, 0, len(list))
	for _, n := range list {
		out = append(out, int64(n))
	}
	return out
}

func memory(block numa.Block) *podresourcesv1.ContainerMemory {
	out := &podresourcesv1.ContainerMemory{MemoryType: block.Type, Size: uint64(block.Size), Topology: &podresourcesv1.TopologyInfo{}}
	for _, id := range block.Nodes {
		out.Topology.Nodes = append(out.Topology.Nodes, &podresourcesv1.NUMANode{ID: int64(id)})
	}
	return out
}
