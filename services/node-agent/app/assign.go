package app

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/admission"
	"github.com/sampan-io/sampan/services/node-agent/internal/cpus"
	"github.com/sampan-io/sampan/services/node-agent/internal/criconfig"
	"github.com/sampan-io/sampan/services/node-agent/internal/devices"
	"github.com/sampan-io/sampan/services/node-agent/internal/node"
	"github.com/sampan-io/sampan/services/node-agent/internal/numa"
	"github.com/sampan-io/sampan/services/node-agent/internal/qos"
	"github.com/sampan-io/sampan/services/node-agent/internal/status"
	"github.com/sampan-io/sampan/services/node-agent/internal/topology"
)

// assigner gives pods what only one can have: devices, whole CPUs, memory of NUMA
// nodes. It implements podworker.Assigner.
type assigner struct {
	devices *devices.Store
	cpus    *cpus.Pool // nil without the static policy
	memory  *numa.Pool // nil without the Static policy

	policy topology.Policy
	scope  topology.Scope
	nodes  []int // the machine's NUMA nodes; only with a policy

	giving sync.Mutex    // held while a pod's CPUs and memory are chosen
	moved  chan struct{} // the shared CPUs have changed
}

// newAssigner reads what pods have from the files of earlier runs.
func (a *agent) newAssigner(machine node.Machine) (*assigner, error) {
	out := &assigner{moved: make(chan struct{}, 1), policy: topology.Policy(a.topologyPolicy), scope: topology.Scope(a.topologyScope)}
	var err error
	out.devices, err = devices.Open(devices.Config{
		Dir: filepath.Join(a.rootDir, "device-plugins"), Log: a.log, Changed: func() { a.node.Changed() },
	})
	if err != nil {
		return nil, err
	}
	if a.cpuPolicy == cpus.Policy {
		topology, err := cpus.ReadTopology("/sys")
		if err != nil {
			return nil, err
		}
		const milli = 1000
		reserved := a.reserved[corev1.ResourceCPU]
		whole := int((reserved.MilliValue() + milli - 1) / milli)
		if out.cpus, err = cpus.Open(filepath.Join(a.rootDir, "cpu_manager_state"), topology, whole, a.parsed.reservedCPUs); err != nil {
			return nil, err
		}
	}
	nodes, err := numa.ReadNodes("/sys", machine.Memory)
	if err != nil {
		return nil, err
	}
	if out.nodes = slices.Sorted(maps.Keys(nodes)); out.policy != topology.None && len(out.nodes) > topology.MaxNodes {
		return nil, fmt.Errorf("--topology-manager-policy=%s: this machine has %d NUMA nodes, which is more than %d", out.policy, len(out.nodes), topology.MaxNodes)
	}
	if a.memoryPolicy == numa.Policy {
		capacity, allocatable := a.node.Capacity(), a.node.Allocatable()
		kept := capacity.Memory().Value() - allocatable.Memory().Value()
		if out.memory, err = numa.Open(filepath.Join(a.rootDir, "memory_manager_state"), nodes, a.parsed.reservedMemory, kept); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Allocate implements podworker.Assigner.
func (s *assigner) Allocate(ctx context.Context, pod *corev1.Pod) error {
	if err := s.allocate(ctx, pod); err != nil {
		s.Release(pod.UID)
		return err
	}
	return nil
}

func (s *assigner) cpusMoved(changed bool) {
	if !changed {
		return
	}
	select {
	case s.moved <- struct{}{}:
	default:
	}
}

// Release implements podworker.Assigner.
func (s *assigner) Release(uid types.UID) {
	s.devices.Release(uid)
	if s.cpus != nil {
		changed, _ := s.cpus.Release(uid) // what is not kept is found at the next start
		s.cpusMoved(changed)
	}
	if s.memory != nil {
		_ = s.memory.Release(uid)
	}
}

// Prepare implements podworker.Assigner.
func (s *assigner) Prepare(ctx context.Context, uid types.UID, container string) error {
	return s.devices.Prepare(ctx, uid, container)
}

// Assigned implements podworker.Assigner.
func (s *assigner) Assigned(uid types.UID, container string) criconfig.Assigned {
	var out criconfig.Assigned
	if s.cpus != nil {
		set, _ := s.cpus.Of(uid, container)
		out.CPUs = set.String()
	}
	if s.memory != nil {
		if block, own := s.memory.Of(uid, container); own {
			out.Mems = joinInts(block.Nodes)
		}
	}
	for _, given := range s.devices.Of(uid, container) {
		r := given.Response
		for _, key := range slices.Sorted(maps.Keys(r.GetEnvs())) {
			out.Env = append(out.Env, &runtimeapi.KeyValue{Key: key, Value: []byte(r.GetEnvs()[key])})
		}
		for _, m := range r.GetMounts() {
			out.Mounts = append(out.Mounts, &runtimeapi.Mount{ContainerPath: m.GetContainerPath(), HostPath: m.GetHostPath(), Readonly: m.GetReadOnly()})
		}
		for _, d := range r.GetDevices() {
			out.Devices = append(out.Devices, &runtimeapi.Device{ContainerPath: d.GetContainerPath(), HostPath: d.GetHostPath(), Permissions: d.GetPermissions()})
		}
		for _, d := range r.GetCdiDevices() {
			out.CDI = append(out.CDI, &runtimeapi.CDIDevice{Name: d.GetName()})
		}
		for key, value := range r.GetAnnotations() {
			if out.Annotations == nil {
				out.Annotations = map[string]string{}
			}
			out.Annotations[key] = value
		}
	}
	return out
}

func joinInts(list []int) string {
	texts := make([]string, 0, len(list))
	for _, n := range list {
		texts = append(texts, strconv.Itoa(n))
	}
	return strings.Join(texts, ",")
}

// shareCPUs keeps the containers without CPUs of their own on the others, at each
// change and from time to time.
func (a *agent) shareCPUs(ctx context.Context) error {
	if a.assign.cpus == nil {
		<-ctx.Done()
		return nil
	}
	const every = 10 * time.Second
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	last := map[string]string{} // by container
	for {
		a.moveContainers(ctx, last)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-a.assign.moved:
		}
	}
}

func (a *agent) moveContainers(ctx context.Context, last map[string]string) {
	seen := map[string]bool{}
	var mu sync.Mutex
	var group sync.WaitGroup
	for _, state := range a.workers.States() {
		for _, c := range state.Runtime.Running() {
			id := c.GetId()
			seen[id] = true
			set, _ := a.assign.cpus.Of(state.Pod.UID, c.Name())
			if last[id] == set.String() || set.IsEmpty() {
				continue
			}
			group.Go(func() {
				callCtx, cancel := context.WithTimeout(ctx, a.runtimeTimeout)
				defer cancel()
				_, err := a.cri.UpdateContainerResources(callCtx, &runtimeapi.UpdateContainerResourcesRequest{
					ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{CpusetCpus: set.String()},
				})
				if err != nil {
					a.log.InfoContext(ctx, "Moving a container to other CPUs", "container", id, "err", err)
					return
				}
				mu.Lock()
				last[id] = set.String()
				mu.Unlock()
			})
		}
	}
	group.Wait()
	maps.DeleteFunc(last, func(id, _ string) bool { return !seen[id] })
}

// parseReservedMemory reads "0:memory=1Gi;1:memory=2Gi".
func parseReservedMemory(text string) (map[int]int64, error) {
	out := map[int]int64{}
	for part := range strings.SplitSeq(text, ";") {
		if part == "" {
			continue
		}
		id, rest, found := strings.Cut(part, ":")
		node, err := strconv.Atoi(id)
		if !found || err != nil {
			return nil, fmt.Errorf("%q is not NUMA-node:memory=amount", part)
		}
		for pair := range strings.SplitSeq(rest, ",") {
			name, amount, _ := strings.Cut(pair, "=")
			if name != string(corev1.ResourceMemory) {
				return nil, fmt.Errorf("%q: only memory is supported", pair)
			}
			n, err := parseBytes(amount)
			if err != nil {
				return nil, err
			}
			out[node] += n
		}
	}
	return out, nil
}

// resizable refuses to resize pods that have CPUs or memory for themselves.
func (a *agent) resizable(admit admission.Node) func(pod *corev1.Pod, others []*corev1.Pod) *status.End {
	return func(pod *corev1.Pod, others []*corev1.Pod) *status.End {
		policy := ""
		switch guaranteed := qos.Class(pod) == corev1.PodQOSGuaranteed; {
		case guaranteed && a.assign.cpus != nil:
			policy = "CPU Manager static policy"
		case guaranteed && a.assign.memory != nil:
			policy = "Memory Manager Static policy"
		default:
			return admit.Resizable(pod, others)
		}
		return &status.End{Reason: corev1.PodReasonInfeasible, Message: "Resize is infeasible for Guaranteed Pods alongside " + policy}
	}
}
