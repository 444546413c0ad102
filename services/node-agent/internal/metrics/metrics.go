// Package metrics has what the agent measures of its own work, under upstream's
// names.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sampan-io/sampan/services/node-agent/internal/probes"
)

// Metrics observes the agent's parts.
type Metrics struct {
	operations *prometheus.CounterVec
	failures   *prometheus.CounterVec
	durations  *prometheus.HistogramVec
	podStart   prometheus.Histogram
	sync       *prometheus.HistogramVec
	evictions  *prometheus.CounterVec
	relist     prometheus.Histogram
	probes     *prometheus.CounterVec
	steps      *prometheus.HistogramVec
}

// Sources are read when metrics are.
type Sources struct {
	NodeName string
	// Running counts the pods and the containers by state.
	Running func() (pods int, containers map[string]int)
}

// New registers them: the agent's own at main, those of probes at probing.
func New(main, probing prometheus.Registerer, sources Sources) *Metrics {
	long := []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}
	m := &Metrics{
		operations: counter("kubelet_runtime_operations_total", "Cumulative number of runtime operations by operation type.", "operation_type"),
		failures:   counter("kubelet_runtime_operations_errors_total", "Cumulative number of runtime operation errors by operation type.", "operation_type"),
		durations:  histogram("kubelet_runtime_operations_duration_seconds", "Duration in seconds of runtime operations by operation type.", prometheus.ExponentialBuckets(0.005, 2.5, 14), "operation_type"),
		sync:       histogram("kubelet_pod_worker_duration_seconds", "Duration in seconds of one step of a pod's worker by operation type.", long, "operation_type"),
		steps:      histogram("sampan_runtime_step_duration_seconds", "Duration in seconds of one step of a pod's start in the built-in runtime.", prometheus.ExponentialBuckets(0.0005, 2, 14), "step"),
		evictions:  counter("kubelet_evictions", "Cumulative number of pod evictions by eviction signal.", "eviction_signal"),
		probes:     counter("prober_probe_total", "Cumulative number of a liveness, readiness or startup probe for a container by result.", "container", "namespace", "pod", "pod_uid", "probe_type", "result"),
		relist: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kubelet_pleg_relist_duration_seconds", Help: "Duration in seconds of asking the runtime what it has of a pod.", Buckets: prometheus.DefBuckets,
		}),
		podStart: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kubelet_pod_start_duration_seconds", Help: "Duration in seconds from the agent seeing a pod for the first time to the pod running.", Buckets: long,
		}),
	}
	name := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kubelet_node_name", Help: "The node's name. The count is always 1."}, []string{"node"})
	name.WithLabelValues(sources.NodeName).Set(1)
	main.MustRegister(m.operations, m.failures, m.durations, m.sync, m.evictions, m.podStart, m.relist, m.steps, name, &running{sources.Running})
	probing.MustRegister(m.probes)
	return m
}

func counter(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

func histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
}

// ObserveRuntimeOperation implements cri.Observer.
func (m *Metrics) ObserveRuntimeOperation(operation string, elapsed time.Duration, err error) {
	m.operations.WithLabelValues(operation).Inc()
	m.durations.WithLabelValues(operation).Observe(elapsed.Seconds())
	if err != nil {
		m.failures.WithLabelValues(operation).Inc()
	}
}

// ObserveStep counts a step of a pod's start in the built-in runtime.
func (m *Metrics) ObserveStep(step string, took time.Duration) {
	m.steps.WithLabelValues(step).Observe(took.Seconds())
}

// ObservePodStart implements podworker.Observer.
func (m *Metrics) ObservePodStart(elapsed time.Duration) { m.podStart.Observe(elapsed.Seconds()) }

// ObserveSync implements podworker.Observer.
func (m *Metrics) ObserveSync(operation string, elapsed time.Duration) {
	m.sync.WithLabelValues(operation).Observe(elapsed.Seconds())
}

// ObserveRelist implements podworker.Observer.
func (m *Metrics) ObserveRelist(elapsed time.Duration) { m.relist.Observe(elapsed.Seconds()) }

// ObserveProbe counts a try of a probe.
func (m *Metrics) ObserveProbe(target probes.Target, kind probes.Kind, outcome probes.Outcome) {
	result := "failed"
	switch {
	case outcome.Err != nil:
		result = "unknown"
	case outcome.Success:
		result = "successful"
	}
	pod := target.Pod
	m.probes.WithLabelValues(target.Container.Name, pod.Namespace, pod.Name, string(pod.UID), string(kind), result).Inc()
}

// ForgetPod drops what is kept of a pod's probes.
func (m *Metrics) ForgetPod(uid string) {
	m.probes.DeletePartialMatch(prometheus.Labels{"pod_uid": uid})
}

// ObserveEviction counts a pod that had to go.
func (m *Metrics) ObserveEviction(signal string) { m.evictions.WithLabelValues(signal).Inc() }

// running counts pods and containers when it is asked.
type running struct {
	count func() (pods int, containers map[string]int)
}

func (r *running) descriptions() (pods, containers *prometheus.Desc) {
	return prometheus.NewDesc("kubelet_running_pods", "Number of pods that have a running pod sandbox.", nil, nil),
		prometheus.NewDesc("kubelet_running_containers", "Number of containers by state.", []string{"container_state"}, nil)
}

// Describe implements prometheus.Collector.
func (r *running) Describe(ch chan<- *prometheus.Desc) {
	pods, containers := r.descriptions()
	ch <- pods
	ch <- containers
}

// Collect implements prometheus.Collector.
func (r *running) Collect(ch chan<- prometheus.Metric) {
	podsDesc, containersDesc := r.descriptions()
	pods, containers := r.count()
	ch <- prometheus.MustNewConstMetric(podsDesc, prometheus.GaugeValue, float64(pods))
	for state, n := range containers {
		ch <- prometheus.MustNewConstMetric(containersDesc, prometheus.GaugeValue, float64(n), state)
	}
}
