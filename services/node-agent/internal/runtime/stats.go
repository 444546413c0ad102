package runtime

import (
	"context"
	"errors"
	"path"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/cgroups"
)

// ContainerStats tells what a container uses.
func (s *Server) ContainerStats(_ context.Context, req *runtimeapi.ContainerStatsRequest) (*runtimeapi.ContainerStatsResponse, error) {
	c, err := s.objects.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	stats, err := s.containerStats(c.get())
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ContainerStatsResponse{Stats: stats}, nil
}

// ListContainerStats tells what running containers use.
func (s *Server) ListContainerStats(_ context.Context, req *runtimeapi.ListContainerStatsRequest) (*runtimeapi.ListContainerStatsResponse, error) {
	stats, err := s.listContainerStats(req.GetFilter())
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ListContainerStatsResponse{Stats: stats}, nil
}

// StreamContainerStats is ListContainerStats in batches.
func (s *Server) StreamContainerStats(req *runtimeapi.StreamContainerStatsRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamContainerStatsResponse]) error {
	list, err := s.listContainerStats(req.GetFilter())
	if err != nil {
		return err
	}
	return inBatches(list, func(batch []*runtimeapi.ContainerStats) error {
		return stream.Send(&runtimeapi.StreamContainerStatsResponse{ContainerStats: batch})
	})
}

func (s *Server) listContainerStats(filter *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error) {
	var list []*runtimeapi.ContainerStats
	for _, c := range s.objects.listContainers("") {
		record := c.get()
		if record.Phase != running || !matches(filter.GetId(), record.ID) || !matches(filter.GetPodSandboxId(), record.SandboxID) ||
			!selects(filter.GetLabelSelector(), record.Config.GetLabels()) {
			continue
		}
		stats, err := s.containerStats(record)
		if errors.Is(err, cgroups.ErrNoGroup) {
			continue // it has just ended
		}
		if err != nil {
			return nil, err
		}
		list = append(list, stats)
	}
	return list, nil
}

func (s *Server) containerStats(record *containerRecord) (*runtimeapi.ContainerStats, error) {
	out := &runtimeapi.ContainerStats{Attributes: &runtimeapi.ContainerAttributes{
		Id: record.ID, Metadata: record.Config.GetMetadata(), Labels: record.Config.GetLabels(), Annotations: record.Config.GetAnnotations(),
	}}
	usage, at, err := s.writableUsage(record.ID)
	if err != nil {
		return nil, err
	}
	out.WritableLayer = filesystemUsage(s.cfg.writable(""), usage, at)
	if record.Phase != running {
		return out, nil
	}
	stats, err := s.cgroups.Stats(record.Cgroup)
	if err != nil {
		return nil, err
	}
	out.Cpu, out.Memory, out.Swap = s.cpuUsage(record.Cgroup, stats), s.memoryUsage(record.Cgroup, stats), swapUsage(stats)
	return out, nil
}

func number(n uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: n} }

func (s *Server) cpuUsage(group string, stats cgroups.Stats) *runtimeapi.CpuUsage {
	return &runtimeapi.CpuUsage{Timestamp: stats.Time.UnixNano(), UsageCoreNanoSeconds: number(stats.CPU), Psi: s.pressure(group, "cpu")}
}

func (s *Server) memoryUsage(group string, stats cgroups.Stats) *runtimeapi.MemoryUsage {
	return &runtimeapi.MemoryUsage{
		Timestamp: stats.Time.UnixNano(), WorkingSetBytes: number(stats.MemoryWorkingSet), AvailableBytes: number(stats.MemoryAvailable),
		UsageBytes: number(stats.MemoryUsage), RssBytes: number(stats.MemoryRSS),
		PageFaults: number(stats.PageFaults), MajorPageFaults: number(stats.MajorPageFaults), Psi: s.pressure(group, "memory"),
	}
}

func swapUsage(stats cgroups.Stats) *runtimeapi.SwapUsage {
	return &runtimeapi.SwapUsage{Timestamp: stats.Time.UnixNano(), SwapUsageBytes: number(stats.SwapUsage), SwapAvailableBytes: number(stats.SwapAvailable)}
}

func (s *Server) pressure(group, resource string) *runtimeapi.PsiStats {
	pressure, found := s.cgroups.Pressure(group, resource)
	if !found {
		return nil
	}
	convert := func(share cgroups.PressureShare) *runtimeapi.PsiData {
		return &runtimeapi.PsiData{Total: share.Total, Avg10: share.Avg10, Avg60: share.Avg60, Avg300: share.Avg300}
	}
	return &runtimeapi.PsiStats{Some: convert(pressure.Some), Full: convert(pressure.Full)}
}

// PodSandboxStats tells what a pod uses.
func (s *Server) PodSandboxStats(_ context.Context, req *runtimeapi.PodSandboxStatsRequest) (*runtimeapi.PodSandboxStatsResponse, error) {
	sb, err := s.objects.sandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	stats, err := s.sandboxStats(sb)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.PodSandboxStatsResponse{Stats: stats}, nil
}

// ListPodSandboxStats tells what ready pods use.
func (s *Server) ListPodSandboxStats(_ context.Context, req *runtimeapi.ListPodSandboxStatsRequest) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	stats, err := s.listSandboxStats(req.GetFilter())
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ListPodSandboxStatsResponse{Stats: stats}, nil
}

// StreamPodSandboxStats is ListPodSandboxStats in batches.
func (s *Server) StreamPodSandboxStats(req *runtimeapi.StreamPodSandboxStatsRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxStatsResponse]) error {
	list, err := s.listSandboxStats(req.GetFilter())
	if err != nil {
		return err
	}
	return inBatches(list, func(batch []*runtimeapi.PodSandboxStats) error {
		return stream.Send(&runtimeapi.StreamPodSandboxStatsResponse{PodSandboxStats: batch})
	})
}

func (s *Server) listSandboxStats(filter *runtimeapi.PodSandboxStatsFilter) ([]*runtimeapi.PodSandboxStats, error) {
	var list []*runtimeapi.PodSandboxStats
	for _, sb := range s.objects.listSandboxes() {
		record := sb.get()
		if record.Phase != ready || !matches(filter.GetId(), record.ID) || !selects(filter.GetLabelSelector(), record.Config.GetLabels()) {
			continue
		}
		stats, err := s.sandboxStats(sb)
		if err != nil {
			return nil, err
		}
		list = append(list, stats)
	}
	return list, nil
}

func (s *Server) sandboxStats(sb *sandbox) (*runtimeapi.PodSandboxStats, error) {
	record := sb.get()
	containers, err := s.listContainerStats(&runtimeapi.ContainerStatsFilter{PodSandboxId: sb.id})
	if err != nil {
		return nil, err
	}
	linux := &runtimeapi.LinuxPodSandboxStats{Containers: containers, Network: s.networkUsage(record)}
	if parent := record.Config.GetLinux().GetCgroupParent(); parent != "" {
		group := path.Clean("/" + parent)
		if stats, err := s.cgroups.Stats(group); err == nil {
			linux.Cpu, linux.Memory = s.cpuUsage(group, stats), s.memoryUsage(group, stats)
			linux.Process = &runtimeapi.ProcessUsage{Timestamp: stats.Time.UnixNano(), ProcessCount: number(stats.PIDs)}
		}
	}
	return &runtimeapi.PodSandboxStats{
		Attributes: &runtimeapi.PodSandboxAttributes{
			Id: record.ID, Metadata: record.Config.GetMetadata(), Labels: record.Config.GetLabels(), Annotations: record.Config.GetAnnotations(),
		},
		Linux: linux,
	}, nil
}
