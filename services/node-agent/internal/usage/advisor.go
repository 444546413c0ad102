package usage

import (
	"context"
	"path"

	"github.com/prometheus/client_golang/prometheus"
)

// Advisor collects /metrics/cadvisor: what of cAdvisor's metrics dashboards ask
// for and is cheaply read.
type Advisor struct{ *Meter }

// Describe implements prometheus.Collector: what there is depends on the pods.
func (Advisor) Describe(chan<- *prometheus.Desc) {}

// series is one metric of containers.
type series struct {
	name, help string
	kind       prometheus.ValueType
	value      func(c container, d detail) float64
	optional   bool // it is missing where it is 0
}

func containerSeries() []series {
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	const microsecond = 1e6
	return []series{
		{"container_cpu_usage_seconds_total", "Cumulative cpu time consumed in seconds.", counter, func(c container, _ detail) float64 { return seconds(c.stats.CPU) }, false},
		{"container_cpu_user_seconds_total", "Cumulative user cpu time consumed in seconds.", counter, func(_ container, d detail) float64 { return seconds(d.user) }, false},
		{"container_cpu_system_seconds_total", "Cumulative system cpu time consumed in seconds.", counter, func(_ container, d detail) float64 { return seconds(d.system) }, false},
		{"container_cpu_cfs_periods_total", "Number of elapsed enforcement period intervals.", counter, func(_ container, d detail) float64 { return float64(d.periods) }, true},
		{"container_cpu_cfs_throttled_periods_total", "Number of throttled period intervals.", counter, func(_ container, d detail) float64 { return float64(d.throttledPeriods) }, false},
		{"container_cpu_cfs_throttled_seconds_total", "Total time duration the container has been throttled.", counter, func(_ container, d detail) float64 { return seconds(d.throttled) }, false},
		{"container_memory_working_set_bytes", "Current working set in bytes.", gauge, func(c container, _ detail) float64 { return float64(c.stats.MemoryWorkingSet) }, false},
		{"container_memory_rss", "Size of RSS in bytes.", gauge, func(c container, _ detail) float64 { return float64(c.stats.MemoryRSS) }, false},
		{"container_memory_cache", "Number of bytes of page cache memory.", gauge, func(_ container, d detail) float64 { return float64(d.cache) }, false},
		{"container_memory_swap", "Container swap usage in bytes.", gauge, func(_ container, d detail) float64 { return float64(d.swap) }, false},
		{"container_memory_usage_bytes", "Current memory usage in bytes, including all memory regardless of when it was accessed", gauge, func(c container, _ detail) float64 { return float64(c.stats.MemoryUsage) }, false},
		{"container_oom_events_total", "Count of out of memory events observed for the container", counter, func(_ container, d detail) float64 { return float64(d.oomKills) }, false},
		{"container_processes", "Number of processes running inside the container.", gauge, func(c container, _ detail) float64 { return float64(c.stats.PIDs) }, false},
		{"container_fs_reads_bytes_total", "Cumulative count of bytes read", counter, func(_ container, d detail) float64 { return float64(d.readBytes) }, false},
		{"container_fs_writes_bytes_total", "Cumulative count of bytes written", counter, func(_ container, d detail) float64 { return float64(d.writtenBytes) }, false},
		{"container_fs_reads_total", "Cumulative count of reads completed", counter, func(_ container, d detail) float64 { return float64(d.reads) }, false},
		{"container_fs_writes_total", "Cumulative count of writes completed", counter, func(_ container, d detail) float64 { return float64(d.writes) }, false},
		{"container_spec_cpu_quota", "CPU quota of the container.", gauge, func(_ container, d detail) float64 { return float64(d.cpuQuota) }, true},
		{"container_spec_cpu_period", "CPU period of the container.", gauge, func(_ container, d detail) float64 { return float64(d.cpuPeriod) }, true},
		{"container_spec_cpu_shares", "CPU share of the container.", gauge, func(_ container, d detail) float64 { return float64(d.cpuShares) }, true},
		{"container_spec_memory_limit_bytes", "Memory limit for the container.", gauge, func(_ container, d detail) float64 { return float64(d.memoryLimit) }, false},
		{"container_start_time_seconds", "Start time of the container since unix epoch in seconds.", gauge, func(c container, _ detail) float64 { return seconds(uint64(c.status.GetStartedAt())) }, false},
		{"container_last_seen", "Last time a container was seen by the exporter", gauge, func(c container, _ detail) float64 { return float64(c.stats.Time.Unix()) }, false},
	}
}

// Collect implements prometheus.Collector.
func (a Advisor) Collect(ch chan<- prometheus.Metric) {
	labels := []string{"container", "id", "image", "name", "namespace", "pod"}
	all := containerSeries()
	descs := make([]*prometheus.Desc, len(all))
	for i, s := range all {
		descs[i] = desc(s.name, s.help, labels...)
	}
	network := a.network(context.Background())
	for _, state := range a.Pods() {
		for _, c := range a.containers(state) {
			group := path.Join(a.Cgroups.Pod(state.Pod), c.status.GetId())
			d := readDetail(a.Cgroups.Hierarchy, group)
			values := []string{c.status.Name(), group, c.status.GetImage().GetImage(), c.status.GetId(), state.Pod.Namespace, state.Pod.Name}
			for i, s := range all {
				if value := s.value(c, d); value != 0 || !s.optional {
					send(ch, descs[i], s.kind, value, c.stats.Time, values...)
				}
			}
		}
		a.collectNetwork(ch, network[string(state.Pod.UID)], state.Pod.Namespace, state.Pod.Name)
	}
	a.collectMachine(ch)
}
