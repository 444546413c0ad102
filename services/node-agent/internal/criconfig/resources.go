package criconfig

import (
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/qos"
)

// resources are the limits of one container.
func (n Node) resources(pod *corev1.Pod, spec *corev1.Container) *runtimeapi.LinuxContainerResources {
	request, hasRequest := spec.Resources.Requests[corev1.ResourceCPU]
	limit := spec.Resources.Limits[corev1.ResourceCPU]
	if !hasRequest && !limit.IsZero() {
		request = limit
	}
	out := &runtimeapi.LinuxContainerResources{
		CpuShares:   qos.Shares(request.MilliValue()),
		OomScoreAdj: n.oomScore(pod, spec),
	}
	if n.Cgroups.CFSQuota {
		out.CpuPeriod, out.CpuQuota = qos.QuotaPeriod, qos.Quota(limit.MilliValue())
	}
	if n.Cgroups.Hierarchy.Unified() {
		// A container that outgrows its memory ends as a whole, as upstream has it.
		out.Unified = map[string]string{"memory.oom.group": "1"}
	}
	if memory := spec.Resources.Limits[corev1.ResourceMemory]; !memory.IsZero() {
		out.MemoryLimitInBytes = memory.Value()
		out.MemorySwapLimitInBytes = memory.Value() // no swap
	}
	return out
}

// UpdatedResources are the limits that a running container is given when the pod's
// have changed.
func (n Node) UpdatedResources(pod *corev1.Pod, spec *corev1.Container) *runtimeapi.LinuxContainerResources {
	return n.resources(pod, spec)
}

// oomScore says how soon the kernel ends the container when memory runs out.
func (n Node) oomScore(pod *corev1.Pod, spec *corev1.Container) int64 {
	const (
		guaranteed = -997
		bestEffort = 1000
		lowest     = 1000 + guaranteed
		critical   = 2000001000 // the priority of system-node-critical
	)
	if pod.Spec.Priority != nil && *pod.Spec.Priority >= critical {
		return guaranteed
	}
	switch qos.Class(pod) {
	case corev1.PodQOSGuaranteed:
		return guaranteed
	case corev1.PodQOSBestEffort:
		return bestEffort
	}
	if n.MemoryCapacity <= 0 {
		return bestEffort - 1
	}
	request := spec.Resources.Requests[corev1.ResourceMemory]
	score := bestEffort - bestEffort*request.Value()/n.MemoryCapacity
	return min(max(score, lowest), bestEffort-1)
}
