package usage

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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

// Advisor collects /metrics/cadvisor: what of cAdvisor's metrics dashboards ask
// for and is cheaply read.
type Advisor struct{ *Meter }

// Describe implements prometheus.Collector: what there is depends on the pods.
func (Advisor) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (a Advisor) Collect(ch chan<- prometheus.Metric) {
	labels := []string{"container", "id", "image", "name", "namespace", "pod"}
	gauges := []struct {
		desc  *prometheus.Desc
		kind  prometheus.ValueType
		value func(c container) float64
	}{
		{desc("container_cpu_usage_seconds_total", "Cumulative cpu time consumed in seconds.", labels...), prometheus.CounterValue, func(c container) float64 { return seconds(c.stats.CPU) }},
		{desc("container_memory_working_set_bytes", "Current working set in bytes.", labels...), prometheus.GaugeValue, func(c container) float64 { return float64(c.stats.MemoryWorkingSet) }},
		{desc("container_memory_rss", "Size of RSS in bytes.", labels...), prometheus.GaugeValue, func(c container) float64 { return float64(c.stats.MemoryRSS) }},
		{desc("container_memory_usage_bytes", "Current memory usage in bytes, including all memory regardless of when it was accessed", labels...), prometheus.GaugeValue, func(c container) float64 { return float64(c.stats.MemoryUsage) }},
		{desc("container_processes", "Number of processes running inside the container.", labels...), prometheus.GaugeValue, func(c container) float64 { return float64(c.stats.PIDs) }},
		{desc("container_start_time_seconds", "Start time of the container since unix epoch in seconds.", labels...), prometheus.GaugeValue, func(c container) float64 { return seconds(uint64(c.status.GetStartedAt())) }},
	}
	network := a.network(context.Background())
	device := []string{"interface", "namespace", "pod"}
	received := desc("container_network_receive_bytes_total", "Cumulative count of bytes received", device...)
	sent := desc("container_network_transmit_bytes_total", "Cumulative count of bytes transmitted", device...)
	for _, state := range a.Pods() {
		for _, c := range a.containers(state) {
			values := []string{c.status.Name(), a.Cgroups.Pod(state.Pod) + "/" + c.status.GetId(), c.status.GetImage().GetImage(), c.status.GetId(), state.Pod.Namespace, state.Pod.Name}
			for _, g := range gauges {
				send(ch, g.desc, g.kind, g.value(c), c.stats.Time, values...)
			}
		}
		if n := network[string(state.Pod.UID)]; n != nil {
			ch <- prometheus.MustNewConstMetric(received, prometheus.CounterValue, float64(*n.RxBytes), n.Name, state.Pod.Namespace, state.Pod.Name)
			ch <- prometheus.MustNewConstMetric(sent, prometheus.CounterValue, float64(*n.TxBytes), n.Name, state.Pod.Namespace, state.Pod.Name)
		}
	}
}
