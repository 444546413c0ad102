package scheduler

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sampan-io/sampan/services/scheduler/internal/cache"
	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
	"github.com/sampan-io/sampan/services/scheduler/internal/queue"
)

// Outcomes of an attempt, as the label "result" has them.
const (
	resultScheduled     = "scheduled"
	resultUnschedulable = "unschedulable"
	resultError         = "error"
)

// Metrics are what the scheduler measures, under upstream's names. A nil Metrics
// measures nothing.
type Metrics struct {
	attempts   *prometheus.CounterVec
	latency    *prometheus.HistogramVec
	algorithms prometheus.Histogram
	sli        *prometheus.HistogramVec
	tries      prometheus.Histogram
	incoming   *prometheus.CounterVec
}

// NewMetrics registers with registry.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	buckets := prometheus.ExponentialBuckets(0.001, 2, 15)
	m := &Metrics{
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "scheduler_schedule_attempts_total", Help: "Attempts to schedule pods, by result.",
		}, []string{"result", "profile"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "scheduler_scheduling_attempt_duration_seconds", Help: "Seconds an attempt takes, algorithm and binding.", Buckets: buckets,
		}, []string{"result", "profile"}),
		algorithms: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "scheduler_scheduling_algorithm_duration_seconds", Help: "Seconds the algorithm takes.", Buckets: buckets,
		}),
		sli: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "scheduler_pod_scheduling_sli_duration_seconds", Help: "Seconds from the first attempt to the binding, all attempts together.",
			Buckets: prometheus.ExponentialBuckets(0.01, 2, 20),
		}, []string{"attempts"}),
		tries: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "scheduler_pod_scheduling_attempts", Help: "Attempts until a pod was scheduled.", Buckets: prometheus.ExponentialBuckets(1, 2, 5),
		}),
		incoming: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "scheduler_queue_incoming_pods_total", Help: "Pods that came into a part of the queue, by event.",
		}, []string{"queue", "event"}),
	}
	registry.MustRegister(m.attempts, m.latency, m.algorithms, m.sli, m.tries, m.incoming)
	return m
}

// Incoming counts a pod that came into a part of the queue.
func (m *Metrics) Incoming(queue, event string) { m.incoming.WithLabelValues(queue, event).Inc() }

func (m *Metrics) algorithm(took time.Duration) {
	if m != nil {
		m.algorithms.Observe(took.Seconds())
	}
}

func (m *Metrics) attempt(result, profile string, took time.Duration) {
	if m != nil {
		m.attempts.WithLabelValues(result, profile).Inc()
		m.latency.WithLabelValues(result, profile).Observe(took.Seconds())
	}
}

func (m *Metrics) bound(profile string, queued *framework.QueuedPod, took time.Duration) {
	if m == nil {
		return
	}
	m.attempt(resultScheduled, profile, took)
	m.tries.Observe(float64(queued.Attempts))
	m.sli.WithLabelValues(attemptsLabel(queued.Attempts)).Observe(time.Since(queued.First).Seconds())
}

// attemptsLabel keeps the number of series bounded.
func attemptsLabel(n int) string {
	if n >= 15 {
		return "15+"
	}
	return [...]string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14"}[n]
}

// depths reads queue and cache when metrics are collected.
type depths struct {
	queue   *queue.Queue
	cache   *cache.Cache
	pending *prometheus.Desc
	size    *prometheus.Desc
}

// RegisterDepths registers scheduler_pending_pods and scheduler_scheduler_cache_size.
func RegisterDepths(registry prometheus.Registerer, q *queue.Queue, c *cache.Cache) {
	registry.MustRegister(&depths{
		queue: q, cache: c,
		pending: prometheus.NewDesc("scheduler_pending_pods", "Pods that wait, by part of the queue.", []string{"queue"}, nil),
		size:    prometheus.NewDesc("scheduler_scheduler_cache_size", "Nodes, pods and assumed pods in the cache.", []string{"type"}, nil),
	})
}

func (d *depths) Describe(descs chan<- *prometheus.Desc) {
	descs <- d.pending
	descs <- d.size
}

func (d *depths) Collect(metrics chan<- prometheus.Metric) {
	for part, n := range d.queue.Counts() {
		metrics <- prometheus.MustNewConstMetric(d.pending, prometheus.GaugeValue, float64(n), part)
	}
	nodes, pods, assumed := d.cache.Counts()
	for kind, n := range map[string]int{"nodes": nodes, "pods": pods, "assumed_pods": assumed} {
		metrics <- prometheus.MustNewConstMetric(d.size, prometheus.GaugeValue, float64(n), kind)
	}
}
