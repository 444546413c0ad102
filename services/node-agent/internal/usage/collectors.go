package usage

import (
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// seconds turns nanoseconds into seconds.
func seconds(nanoseconds uint64) float64 { return float64(nanoseconds) / float64(time.Second) }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Resource collects /metrics/resource, which metrics-server reads.
type Resource struct{ *Meter }

// Describe implements prometheus.Collector: what there is depends on the pods.
func (Resource) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (r Resource) Collect(ch chan<- prometheus.Metric) {
	container := []string{"container", "namespace", "pod"}
	containerCPU := desc("container_cpu_usage_seconds_total", "Cumulative cpu time consumed by the container in core-seconds", container...)
	containerMemory := desc("container_memory_working_set_bytes", "Current working set of the container in bytes", container...)
	containerStart := desc("container_start_time_seconds", "Start time of the container since unix epoch in seconds", container...)
	podCPU := desc("pod_cpu_usage_seconds_total", "Cumulative cpu time consumed by the pod in core-seconds", "namespace", "pod")
	podMemory := desc("pod_memory_working_set_bytes", "Current working set of the pod in bytes", "namespace", "pod")
	failed := 0.0
	if used, err := r.node(); err == nil {
		send(ch, desc("node_cpu_usage_seconds_total", "Cumulative cpu time consumed by the node in core-seconds"), prometheus.CounterValue, seconds(used.CPU), used.Time)
		send(ch, desc("node_memory_working_set_bytes", "Current working set of the node in bytes"), prometheus.GaugeValue, float64(used.MemoryWorkingSet), used.Time)
	} else {
		failed = 1
	}
	for _, state := range r.Pods() {
		name := []string{state.Pod.Namespace, state.Pod.Name}
		if used, err := r.Cgroups.Hierarchy.Stats(r.Cgroups.Pod(state.Pod)); err == nil {
			send(ch, podCPU, prometheus.CounterValue, seconds(used.CPU), used.Time, name...)
			send(ch, podMemory, prometheus.GaugeValue, float64(used.MemoryWorkingSet), used.Time, name...)
		}
		for _, c := range r.containers(state) {
			labels := append([]string{c.status.Name()}, name...)
			send(ch, containerCPU, prometheus.CounterValue, seconds(c.stats.CPU), c.stats.Time, labels...)
			send(ch, containerMemory, prometheus.GaugeValue, float64(c.stats.MemoryWorkingSet), c.stats.Time, labels...)
			ch <- prometheus.MustNewConstMetric(containerStart, prometheus.GaugeValue, seconds(uint64(c.status.GetStartedAt())), labels...)
		}
	}
	ch <- prometheus.MustNewConstMetric(desc("resource_scrape_error", "1 if there was an error while getting container metrics, 0 otherwise"), prometheus.GaugeValue, failed)
}

func send(ch chan<- prometheus.Metric, d *prometheus.Desc, kind prometheus.ValueType, value float64, at time.Time, labels ...string) {
	ch <- prometheus.NewMetricWithTimestamp(at, prometheus.MustNewConstMetric(d, kind, value, labels...))
}

// collectNetwork is the traffic of one pod; none if it is nil.
func (a Advisor) collectNetwork(ch chan<- prometheus.Metric, n *stats.NetworkStats, namespace, pod string) {
	if n == nil {
		return
	}
	for _, one := range []struct {
		name, help string
		value      *uint64
	}{
		{"container_network_receive_bytes_total", "Cumulative count of bytes received", n.RxBytes},
		{"container_network_transmit_bytes_total", "Cumulative count of bytes transmitted", n.TxBytes},
		{"container_network_receive_errors_total", "Cumulative count of errors encountered while receiving", n.RxErrors},
		{"container_network_transmit_errors_total", "Cumulative count of errors encountered while transmitting", n.TxErrors},
	} {
		if one.value != nil {
			ch <- prometheus.MustNewConstMetric(desc(one.name, one.help, "interface", "namespace", "pod"), prometheus.CounterValue, float64(*one.value), n.Name, namespace, pod)
		}
	}
}

// collectMachine is what the machine has.
func (a Advisor) collectMachine(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(desc("machine_cpu_cores", "Number of logical CPU cores."), prometheus.GaugeValue, float64(runtime.NumCPU()))
	if a.Memory > 0 {
		ch <- prometheus.MustNewConstMetric(desc("machine_memory_bytes", "Amount of memory installed on the machine."), prometheus.GaugeValue, float64(a.Memory))
	}
}
