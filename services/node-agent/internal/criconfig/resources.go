package criconfig

import (
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
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
		if n.Cgroups.LimitsSwap() {
			out.Unified["memory.swap.max"] = strconv.FormatInt(n.swap(pod, spec), 10)
		}
	}
	out.HugepageLimits = n.hugePages(spec)
	if memory := spec.Resources.Limits[corev1.ResourceMemory]; !memory.IsZero() {
		out.MemoryLimitInBytes = memory.Value()
		out.MemorySwapLimitInBytes = memory.Value() + n.swap(pod, spec) // memory and swap
	}
	return out
}

// swap is how much of it a container may have: of a burstable pod that is not critical
// each container has that part of the swap which it asks for of the memory (KEP-2400).
func (n Node) swap(pod *corev1.Pod, spec *corev1.Container) int64 {
	request, limit := spec.Resources.Requests.Memory(), spec.Resources.Limits.Memory()
	if n.SwapCapacity == 0 || n.MemoryCapacity == 0 || request.IsZero() || request.Cmp(*limit) == 0 || qos.Class(pod) != corev1.PodQOSBurstable || qos.Critical(pod) {
		return 0
	}
	return int64(float64(request.Value()) / float64(n.MemoryCapacity) * float64(n.SwapCapacity))
}

// hugePages are the limits of all sizes: of those that the container does not name it has
// none.
func (n Node) hugePages(spec *corev1.Container) []*runtimeapi.HugepageLimit {
	if !n.Cgroups.Hierarchy.HugeTLB() {
		return nil
	}
	var out []*runtimeapi.HugepageLimit
	for _, name := range n.HugePages {
		limit := spec.Resources.Limits[name]
		size, err := resource.ParseQuantity(strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix))
		if err != nil {
			continue
		}
		out = append(out, &runtimeapi.HugepageLimit{PageSize: pageSize(size.Value()), Limit: uint64(limit.Value())})
	}
	return out
}

// pageSize is the kernel's word in the files of the hugetlb controller: 2MB, 1GB.
func pageSize(bytes int64) string {
	const step = 1 << 10
	units := []string{"B", "KB", "MB", "GB", "TB"}
	for bytes >= step && bytes%step == 0 && len(units) > 1 {
		bytes, units = bytes/step, units[1:]
	}
	return strconv.FormatInt(bytes, 10) + units[0]
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
