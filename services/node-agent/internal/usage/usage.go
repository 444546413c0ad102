// Package usage measures what the node, its pods and their containers use, read
// from their control groups.
package usage

import (
	"context"
	"maps"
	"path"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

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
	Images  runtimeapi.ImageServiceClient // may be nil
	Started time.Time                     // of the machine
	Memory  int64                         // of the machine, in bytes
	// VolumePath is where a pod's volume is mounted, "" if it is not.
	VolumePath func(uid types.UID, volume string) string

	mu   sync.Mutex
	last map[string]sample // by control group
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

// cpuStats tells what a group has used, and at which rate since it was last asked
// after, if that was a while ago.
func (m *Meter) cpuStats(group string, s cgroups.Stats) *stats.CPUStats {
	out := &stats.CPUStats{Time: metav1.NewTime(s.Time), UsageCoreNanoSeconds: pointer(s.CPU)}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last == nil {
		m.last = map[string]sample{}
	}
	last, known := m.last[group]
	if elapsed := s.Time.Sub(last.at); known && elapsed > 0 && s.CPU >= last.cpu {
		out.UsageNanoCores = pointer(uint64(float64(s.CPU-last.cpu) / elapsed.Seconds()))
	}
	const least = time.Second
	if !known || s.Time.Sub(last.at) > least {
		m.last[group] = sample{cpu: s.CPU, at: s.Time}
	}
	return out
}

// sample is what a group had used at a moment.
type sample struct {
	cpu uint64 // nanoseconds
	at  time.Time
}

// forget drops the samples of groups that were not asked after for long.
func (m *Meter) forget(now time.Time) {
	const kept = 10 * time.Minute
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.last, func(_ string, s sample) bool { return now.Sub(s.at) > kept })
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
	summary := &stats.Summary{Node: stats.NodeStats{
		NodeName: m.Node, StartTime: metav1.NewTime(m.Started), Fs: m.disk(), Rlimit: m.limits(),
		Runtime: m.images(ctx), Network: nil, SystemContainers: m.systemContainers(),
	}, Pods: []stats.PodStats{}}
	written := m.written(ctx)
	m.forget(time.Now())
	if used, err := m.node(); err == nil {
		summary.Node.CPU, summary.Node.Memory = m.cpuStats("/", used), memoryStats(used)
	}
	for _, state := range m.Pods() {
		if len(state.Runtime.Running()) == 0 {
			continue
		}
		summary.Pods = append(summary.Pods, m.pod(state, network[string(state.Pod.UID)], written))
	}
	return summary, nil
}

func (m *Meter) pod(state podworker.State, network *stats.NetworkStats, written map[string]*stats.FsStats) stats.PodStats {
	pod := stats.PodStats{
		PodRef:    stats.PodReference{Name: state.Pod.Name, Namespace: state.Pod.Namespace, UID: string(state.Pod.UID)},
		StartTime: metav1.NewTime(time.Unix(0, state.Runtime.Sandbox().GetCreatedAt())), Containers: []stats.ContainerStats{}, Network: network,
	}
	if used, err := m.Cgroups.Hierarchy.Stats(m.Cgroups.Pod(state.Pod)); err == nil {
		pod.CPU, pod.Memory = m.cpuStats(m.Cgroups.Pod(state.Pod), used), memoryStats(used)
		pod.ProcessStats = &stats.ProcessStats{ProcessCount: pointer(used.PIDs)}
	}
	for _, c := range m.containers(state) {
		pod.Containers = append(pod.Containers, stats.ContainerStats{
			Name: c.status.Name(), StartTime: metav1.NewTime(time.Unix(0, c.status.GetStartedAt())), CPU: m.cpuStats(path.Join(m.Cgroups.Pod(state.Pod), c.status.GetId()), c.stats), Memory: memoryStats(c.stats),
			Rootfs: written[c.status.GetId()],
		})
	}
	pod.VolumeStats = m.volumes(state.Pod)
	return pod
}

// node measures the whole machine.
func (m *Meter) node() (cgroups.Stats, error) { return m.Cgroups.Hierarchy.Stats("/") }

func (m *Meter) disk() *stats.FsStats { return fileSystem(m.Root) }

// limits are how many processes there can be and are.
func (m *Meter) limits() *stats.RlimitStats {
	most := int64(single("/proc/sys/kernel/pid_max"))
	if threads := int64(single("/proc/sys/kernel/threads-max")); threads > 0 && threads < most {
		most = threads
	}
	out := &stats.RlimitStats{Time: metav1.Now(), MaxPID: &most}
	const tasks = 3 // "0.1 0.2 0.3 running/all last"
	if fields := strings.Fields(text("/proc/loadavg")); len(fields) > tasks {
		_, all, _ := strings.Cut(fields[tasks], "/")
		now := int64(parse(all))
		out.NumOfRunningProcesses = &now
	}
	return out
}

// images is the disk of images and of what containers write.
func (m *Meter) images(ctx context.Context) *stats.RuntimeStats {
	if m.Images == nil {
		return nil
	}
	response, err := m.Images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
	if err != nil {
		return nil
	}
	convert := func(list []*runtimeapi.FilesystemUsage) *stats.FsStats {
		if len(list) == 0 {
			return nil
		}
		fs := fileSystem(list[0].GetFsId().GetMountpoint())
		if fs == nil {
			fs = m.disk()
		}
		if fs != nil {
			fs.UsedBytes, fs.InodesUsed = pointer(list[0].GetUsedBytes().GetValue()), pointer(list[0].GetInodesUsed().GetValue())
		}
		return fs
	}
	return &stats.RuntimeStats{ImageFs: convert(response.GetImageFilesystems()), ContainerFs: convert(response.GetContainerFilesystems())}
}

// systemContainers are all pods together, under upstream's name for them.
func (m *Meter) systemContainers() []stats.ContainerStats {
	used, err := m.Cgroups.Hierarchy.Stats(m.Cgroups.Top())
	if err != nil {
		return nil
	}
	return []stats.ContainerStats{{Name: stats.SystemContainerPods, StartTime: metav1.NewTime(m.Started), CPU: m.cpuStats(m.Cgroups.Top(), used), Memory: memoryStats(used)}}
}

// written is what each container has written to its root file system.
func (m *Meter) written(ctx context.Context) map[string]*stats.FsStats {
	out := map[string]*stats.FsStats{}
	response, err := m.Runtime.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{})
	if err != nil {
		return out
	}
	disk := m.disk()
	for _, c := range response.GetStats() {
		layer := c.GetWritableLayer()
		if layer == nil || disk == nil {
			continue
		}
		fs := *disk
		fs.UsedBytes, fs.InodesUsed = pointer(layer.GetUsedBytes().GetValue()), pointer(layer.GetInodesUsed().GetValue())
		out[c.GetAttributes().GetId()] = &fs
	}
	return out
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
