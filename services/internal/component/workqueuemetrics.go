package component

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"
)

// RegisterWorkqueueMetrics registers workqueue_* under upstream's names, with
// the label "name" that each queue was given. client-go keeps one provider a
// process: only the first call has an effect, and queues made before it are not
// measured.
func RegisterWorkqueueMetrics(registry prometheus.Registerer) {
	buckets := prometheus.ExponentialBuckets(10e-9, 10, 12)
	m := workqueueMetrics{
		depth:      gauge("workqueue_depth", "Items that wait in the queue."),
		unfinished: gauge("workqueue_unfinished_work_seconds", "Seconds of work in progress that work_duration has not seen yet. Large values mean stuck workers."),
		longest:    gauge("workqueue_longest_running_processor_seconds", "Seconds that the longest running worker has been at its item."),
		adds:       counter("workqueue_adds_total", "Items added to the queue.", "name"),
		retries:    counter("workqueue_retries_total", "Items added again after an error.", "name"),
		latency:    histogram("workqueue_queue_duration_seconds", "Seconds an item waits in the queue.", buckets, "name"),
		work:       histogram("workqueue_work_duration_seconds", "Seconds that working on an item takes.", buckets, "name"),
	}
	registry.MustRegister(m.depth, m.unfinished, m.longest, m.adds, m.retries, m.latency, m.work)
	workqueue.SetProvider(m)
}

func gauge(name, help string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"name"})
}

type workqueueMetrics struct {
	depth, unfinished, longest *prometheus.GaugeVec
	adds, retries              *prometheus.CounterVec
	latency, work              *prometheus.HistogramVec
}

func (m workqueueMetrics) NewDepthMetric(name string) workqueue.GaugeMetric {
	return m.depth.WithLabelValues(name)
}

func (m workqueueMetrics) NewAddsMetric(name string) workqueue.CounterMetric {
	return m.adds.WithLabelValues(name)
}

func (m workqueueMetrics) NewLatencyMetric(name string) workqueue.HistogramMetric {
	return m.latency.WithLabelValues(name)
}

func (m workqueueMetrics) NewWorkDurationMetric(name string) workqueue.HistogramMetric {
	return m.work.WithLabelValues(name)
}

func (m workqueueMetrics) NewUnfinishedWorkSecondsMetric(name string) workqueue.SettableGaugeMetric {
	return m.unfinished.WithLabelValues(name)
}

func (m workqueueMetrics) NewLongestRunningProcessorSecondsMetric(name string) workqueue.SettableGaugeMetric {
	return m.longest.WithLabelValues(name)
}

func (m workqueueMetrics) NewRetriesMetric(name string) workqueue.CounterMetric {
	return m.retries.WithLabelValues(name)
}
