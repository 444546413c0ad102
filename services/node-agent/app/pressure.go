package app

import (
	"context"
	"path"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/cri"
	"github.com/sampan-io/sampan/services/node-agent/internal/eviction"
	"github.com/sampan-io/sampan/services/node-agent/internal/node"
	"github.com/sampan-io/sampan/services/node-agent/internal/podworker"
	"github.com/sampan-io/sampan/services/node-agent/internal/status"
)

// evictions are the parts that end pods for the node's sake.
func (a *agent) evictions(machine node.Machine) *eviction.Manager {
	const every = 10 * time.Second
	return eviction.New(eviction.Config{
		Thresholds: a.parsed.thresholds, Every: every, Transition: a.evict.transition, MaxGrace: a.evict.maxGrace,
		Observe: eviction.Machine{Root: a.rootDir, Images: filepath.Join(a.rootDir, "images"), Memory: func() (int64, int64, error) {
			return a.memory(machine)
		}}.Observe,
		Usage: a.podUsage, Pods: evictor{a}, Reclaim: func(ctx context.Context, _ eviction.Signal) { a.removeUnusedImages(ctx) },
		Changed: func() { a.node.Changed() }, Evicted: a.tellEvicted, Log: a.log,
	})
}

// evictor finds the workers late: they are made after what refers to them.
type evictor struct{ a *agent }

// Pods implements eviction.Pods.
func (e evictor) Pods() []*corev1.Pod { return e.a.workers.Pods() }

// Runs implements eviction.Pods.
func (e evictor) Runs(uid types.UID) bool { return e.a.workers.Runs(uid) }

// Evict implements eviction.Pods.
func (e evictor) Evict(uid types.UID, end status.End) { e.a.workers.Evict(uid, end) }

func (a *agent) tellEvicted(pod *corev1.Pod, signal eviction.Signal, message string) {
	a.metrics.ObserveEviction(string(signal))
	a.events.Event(pod, nil, true, status.ReasonEvicted, message)
}

// memory is what the machine has, and what of it is in use for good.
func (a *agent) memory(machine node.Machine) (capacity, used int64, err error) {
	if root, err := a.cgroups.Hierarchy.Stats("/"); err == nil && root.MemoryUsage > 0 {
		return machine.Memory, int64(root.MemoryWorkingSet), nil
	}
	available, err := node.MemoryAvailable()
	return machine.Memory, machine.Memory - available, err
}

// podUsage measures the pods that run, also on the disk, which takes a while.
func (a *agent) podUsage(ctx context.Context) []eviction.Usage {
	var out []eviction.Usage
	for _, state := range a.workers.States() {
		if len(state.Runtime.Running()) == 0 {
			continue
		}
		out = append(out, a.usageOf(ctx, state))
	}
	return out
}

func (a *agent) usageOf(ctx context.Context, state podworker.State) eviction.Usage {
	pod := state.Pod
	u := eviction.Usage{Pod: pod}
	group := a.cgroups.Pod(pod)
	if used, err := a.cgroups.Hierarchy.Stats(group); err == nil {
		u.Memory, u.PIDs = int64(used.MemoryWorkingSet), int64(used.PIDs)
	}
	for _, c := range state.Runtime.Running() {
		one := eviction.ContainerUsage{Name: c.Name()}
		if used, err := a.cgroups.Hierarchy.Stats(path.Join(group, c.GetId())); err == nil {
			one.Memory = int64(used.MemoryWorkingSet)
		}
		written, logs := a.writable(ctx, c), eviction.Size(ctx, filepath.Join(a.podLogsDir(pod), c.Name()))
		one.Disk = written.Bytes + logs.Bytes
		u.Disk += one.Disk
		u.Inodes += written.Inodes + logs.Inodes
		u.Containers = append(u.Containers, one)
	}
	volumes := eviction.EmptyDirs(ctx, pod, a.volumes.EmptyDir)
	u.Disk += volumes.Bytes
	u.Inodes += volumes.Inodes
	return u
}

// writable is what a container has written to its root file system.
func (a *agent) writable(ctx context.Context, c cri.Container) eviction.Taken {
	response, err := a.cri.ContainerStats(ctx, &runtimeapi.ContainerStatsRequest{ContainerId: c.GetId()})
	if err != nil {
		return eviction.Taken{}
	}
	layer := response.GetStats().GetWritableLayer()
	return eviction.Taken{Bytes: int64(layer.GetUsedBytes().GetValue()), Inodes: int64(layer.GetInodesUsed().GetValue())}
}

func (a *agent) podLogsDir(pod *corev1.Pod) string {
	return filepath.Join(a.podLogs, pod.Namespace+"_"+pod.Name+"_"+string(pod.UID))
}

// podDisk implements eviction.Disk.
type podDisk struct{ a *agent }

// EmptyDir implements eviction.Disk.
func (d podDisk) EmptyDir(uid types.UID, volume string) string {
	return d.a.volumes.EmptyDir(uid, volume)
}

// Container implements eviction.Disk.
func (d podDisk) Container(ctx context.Context, pod *corev1.Pod, container string) int64 {
	total := eviction.Size(ctx, filepath.Join(d.a.podLogsDir(pod), container)).Bytes
	state, known := d.a.workers.State(pod.Namespace, pod.Name, pod.UID)
	if !known {
		return total
	}
	if last, has := state.Runtime.Latest(container); has {
		total += d.a.writable(ctx, last).Bytes
	}
	return total
}

// removeUnusedImages is the last thing to do before a pod has to go.
func (a *agent) removeUnusedImages(ctx context.Context) {
	if err := a.imageGC.RemoveUnused(ctx); err != nil {
		a.log.WarnContext(ctx, "Removing unused images", "err", err)
	}
}
