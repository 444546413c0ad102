package metricsapi

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metricsv1 "k8s.io/metrics/pkg/apis/metrics/v1"
)

// sample is a node's summary of one moment.
type sample struct {
	taken   time.Time
	summary summary
}

// summary is the part of /stats/summary that is used.
type summary struct {
	Node stats      `json:"node"`
	Pods []podStats `json:"pods"`
}

type stats struct {
	Name      string    `json:"name"` // of a container
	StartTime time.Time `json:"startTime"`
	CPU       *struct {
		Time                 time.Time `json:"time"`
		UsageCoreNanoSeconds *uint64   `json:"usageCoreNanoSeconds"`
	} `json:"cpu"`
	Memory *struct {
		WorkingSetBytes *uint64 `json:"workingSetBytes"`
	} `json:"memory"`
}

type podStats struct {
	PodRef struct {
		UID string `json:"uid"`
	} `json:"podRef"`
	Containers []stats `json:"containers"`
}

// span is what a node and its pods used between two samples.
type span struct {
	earlier, later *sample
	end            time.Time
	pods           map[string]map[string]*stats // of the earlier sample, by UID and container
}

func newSpan(earlier, later *sample) *span {
	s := &span{earlier: earlier, later: later, end: later.taken, pods: map[string]map[string]*stats{}}
	for i := range earlier.summary.Pods {
		pod := &earlier.summary.Pods[i]
		containers := map[string]*stats{}
		for j := range pod.Containers {
			containers[pod.Containers[j].Name] = &pod.Containers[j]
		}
		s.pods[pod.PodRef.UID] = containers
	}
	return s
}

func (s *span) window() time.Duration {
	return s.later.taken.Sub(s.earlier.taken).Round(time.Millisecond)
}

// node is what the node used as a whole.
func (s *span) node() (corev1.ResourceList, bool) {
	return usage(&s.earlier.summary.Node, &s.later.summary.Node)
}

// pod is what each of a pod's containers used, without those that do not run.
func (s *span) pod(pod *corev1.Pod) []metricsv1.ContainerMetrics {
	var out []metricsv1.ContainerMetrics
	for i := range s.later.summary.Pods {
		found := &s.later.summary.Pods[i]
		if found.PodRef.UID != string(pod.UID) {
			continue
		}
		for j := range found.Containers {
			container := &found.Containers[j]
			if list, ok := usage(s.pods[found.PodRef.UID][container.Name], container); ok {
				out = append(out, metricsv1.ContainerMetrics{Name: container.Name, Usage: list})
			}
		}
	}
	return out
}

// usage is processor time per second, and memory. Of what started in between, all
// processor time since its start counts.
func usage(before, after *stats) (corev1.ResourceList, bool) {
	if after.CPU == nil || after.CPU.UsageCoreNanoSeconds == nil || after.Memory == nil || after.Memory.WorkingSetBytes == nil {
		return nil, false
	}
	since, counted := after.StartTime, uint64(0)
	if before != nil && before.CPU != nil && before.CPU.UsageCoreNanoSeconds != nil && before.StartTime.Equal(after.StartTime) &&
		*before.CPU.UsageCoreNanoSeconds <= *after.CPU.UsageCoreNanoSeconds {
		since, counted = before.CPU.Time, *before.CPU.UsageCoreNanoSeconds
	}
	seconds := after.CPU.Time.Sub(since).Seconds()
	if seconds <= 0 {
		return nil, false
	}
	nanoCores := int64(float64(*after.CPU.UsageCoreNanoSeconds-counted) / seconds)
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewScaledQuantity(nanoCores, resource.Nano),
		corev1.ResourceMemory: *resource.NewQuantity(int64(*after.Memory.WorkingSetBytes), resource.BinarySI),
	}, true
}
