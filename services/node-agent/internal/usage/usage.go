// Package usage measures what the node, its pods and their containers use, read
// from their control groups.
package usage

import (
	"context"
	"path"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"golang.org/x/sys/unix"

	"github.com/sampan-io/sampan/services/node-agent/internal/cgroups"
	"github.com/sampan-io/sampan/services/node-agent/internal/cri"
	"github.com/sampan-io/sampan/services/node-agent/internal/podworker"
	"github.com/sampan-io/sampan/services/node-agent/internal/qos"
)

// Meter measures.
type Meter struct {
	Node    string
	Root    string // the agent's directory, whose disk is measured
	Cgroups qos.Tree
	Pods    func() []podworker.State
	Runtime runtimeapi.RuntimeServiceClient
	Started time.Time // of the machine
}

// container is one that runs, with what it uses.
type container struct {
	pod    *corev1.Pod
	status cri.Container
	stats  cgroups.Stats
}

// containers measures all that run.
func (m *Meter) containers(state podworker.State) []container {
	var list []container
	for _, c := range state.Runtime.Running() {
		used, err := m.Cgroups.Hierarchy.Stats(path.Join(m.Cgroups.Pod(state.Pod), c.GetId()))
		if err != nil {
			continue // it has just ended
		}
		list = append(list, container{pod: state.Pod, status: c, stats: used})
	}
	return list
}

func pointer(n uint64) *uint64 { return &n }

func cpuStats(s cgroups.Stats) *stats.CPUStats {
	return &stats.CPUStats{Time: metav1.NewTime(s.Time), UsageCoreNanoSeconds: pointer(s.CPU)}
}

func memoryStats(s cgroups.Stats) *stats.MemoryStats {
	out := &stats.MemoryStats{
		Time: metav1.NewTime(s.Time), UsageBytes: pointer(s.MemoryUsage), WorkingSetBytes: pointer(s.MemoryWorkingSet), RSSBytes: pointer(s.MemoryRSS),
		PageFaults: pointer(s.PageFaults), MajorPageFaults: pointer(s.MajorPageFaults),
	}
	if s.MemoryAvailable > 0 {
		out.AvailableBytes = pointer(s.MemoryAvailable)
	}
	return out
}

// Summary is /stats/summary.
func (m *Meter) Summary(ctx context.Context) (*stats.Summary, error) {
	network := m.network(ctx)
	summary := &stats.Summary{Node: stats.NodeStats{NodeName: m.Node, StartTime: metav1.NewTime(m.Started), Fs: m.disk()}, Pods: []stats.PodStats{}}
	if used, err := m.node(); err == nil {
		summary.Node.CPU, summary.Node.Memory = cpuStats(used), memoryStats(used)
	}
	for _, state := range m.Pods() {
		if len(state.Runtime.Running()) == 0 {
			continue
		}
		summary.Pods = append(summary.Pods, m.pod(state, network[string(state.Pod.UID)]))
	}
	return summary, nil
}

func (m *Meter) pod(state podworker.State, network *stats.NetworkStats) stats.PodStats {
	pod := stats.PodStats{
		PodRef:    stats.PodReference{Name: state.Pod.Name, Namespace: state.Pod.Namespace, UID: string(state.Pod.UID)},
		StartTime: metav1.NewTime(time.Unix(0, state.Runtime.Sandbox().GetCreatedAt())), Containers: []stats.ContainerStats{}, Network: network,
	}
	if used, err := m.Cgroups.Hierarchy.Stats(m.Cgroups.Pod(state.Pod)); err == nil {
		pod.CPU, pod.Memory = cpuStats(used), memoryStats(used)
		pod.ProcessStats = &stats.ProcessStats{ProcessCount: pointer(used.PIDs)}
	}
	for _, c := range m.containers(state) {
		pod.Containers = append(pod.Containers, stats.ContainerStats{
			Name: c.status.Name(), StartTime: metav1.NewTime(time.Unix(0, c.status.GetStartedAt())), CPU: cpuStats(c.stats), Memory: memoryStats(c.stats),
		})
	}
	return pod
}

// node measures the whole machine.
func (m *Meter) node() (cgroups.Stats, error) { return m.Cgroups.Hierarchy.Stats("/") }

func (m *Meter) disk() *stats.FsStats {
	var fs unix.Statfs_t
	if unix.Statfs(m.Root, &fs) != nil {
		return nil
	}
	block := uint64(fs.Bsize)
	return &stats.FsStats{
		Time: metav1.Now(), AvailableBytes: pointer(fs.Bavail * block), CapacityBytes: pointer(fs.Blocks * block), UsedBytes: pointer((fs.Blocks - fs.Bfree) * block),
		InodesFree: pointer(fs.Ffree), Inodes: pointer(fs.Files), InodesUsed: pointer(fs.Files - fs.Ffree),
	}
}

// network is the traffic of each pod, by its UID.
func (m *Meter) network(ctx context.Context) map[string]*stats.NetworkStats {
	out := map[string]*stats.NetworkStats{}
	response, err := m.Runtime.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{})
	if err != nil {
		return out
	}
	for _, sandbox := range response.GetStats() {
		usage := sandbox.GetLinux().GetNetwork()
		if usage.GetDefaultInterface() == nil {
			continue
		}
		device := usage.GetDefaultInterface()
		out[sandbox.GetAttributes().GetMetadata().GetUid()] = &stats.NetworkStats{
			Time: metav1.NewTime(time.Unix(0, usage.GetTimestamp())),
			InterfaceStats: stats.InterfaceStats{
				Name: device.GetName(), RxBytes: pointer(device.GetRxBytes().GetValue()), RxErrors: pointer(device.GetRxErrors().GetValue()),
				TxBytes: pointer(device.GetTxBytes().GetValue()), TxErrors: pointer(device.GetTxErrors().GetValue()),
			},
		}
	}
	return out
}
