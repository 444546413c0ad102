package etcd

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics measures the requests to etcd under upstream's names.
type metrics struct {
	store    *Store
	duration *prometheus.HistogramVec
	applied  *prometheus.Desc
}

func newMetrics(s *Store) *metrics {
	return &metrics{
		store: s,
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "etcd_request_duration_seconds", Help: "Time of a request to etcd, by operation.",
			Buckets: []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60},
		}, []string{"operation"}),
		applied: prometheus.NewDesc("sampan_store_revision", "Newest revision.", nil, nil),
	}
}

// measure starts a measurement that the answer ends.
func (m *metrics) measure(operation string) (end func()) {
	began := time.Now()
	return func() { m.duration.WithLabelValues(operation).Observe(time.Since(began).Seconds()) }
}

// Metrics are what the store tells of itself.
func (s *Store) Metrics() prometheus.Collector { return s.metrics }

// Describe implements prometheus.Collector.
func (m *metrics) Describe(out chan<- *prometheus.Desc) {
	m.duration.Describe(out)
	out <- m.applied
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	m.duration.Collect(out)
	out <- prometheus.MustNewConstMetric(m.applied, prometheus.GaugeValue, float64(m.store.Applied()))
}
