package encryption

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The values of transformation_type.
const (
	toStorage   = "to_storage"
	fromStorage = "from_storage"
)

// measures are upstream's metrics of transformations.
type measures struct {
	operations *prometheus.CounterVec
	duration   *prometheus.HistogramVec
	reloads    *prometheus.CounterVec
	reloaded   *prometheus.GaugeVec
}

func newMeasures() *measures {
	return &measures{
		operations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_storage_transformation_operations_total", Help: "Values that were encrypted or decrypted.",
		}, []string{"resource", "transformation_type", "transformer_prefix", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_storage_transformation_duration_seconds", Help: "Time of encrypting or decrypting a value.",
			Buckets: prometheus.ExponentialBuckets(5e-6, 2, 25),
		}, []string{"transformation_type", "transformer_prefix"}),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_encryption_config_controller_automatic_reloads_total", Help: "Times that a changed configuration was read, by outcome.",
		}, []string{"status"}),
		reloaded: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_encryption_config_controller_automatic_reload_last_timestamp_seconds", Help: "When a changed configuration was read last, by outcome.",
		}, []string{"status"}),
	}
}

// begin measures a transformation until its end.
func (m *measures) begin(kind, resource string) (end func(prefix string, err error)) {
	from := time.Now()
	return func(prefix string, err error) {
		status := "OK"
		if err != nil {
			status = "Internal"
		} else {
			m.duration.WithLabelValues(kind, prefix).Observe(time.Since(from).Seconds())
		}
		m.operations.WithLabelValues(resource, kind, prefix, status).Inc()
	}
}

func (m *measures) tellReload(err error) {
	status := "success"
	if err != nil {
		status = "failure"
	}
	m.reloads.WithLabelValues(status).Inc()
	m.reloaded.WithLabelValues(status).SetToCurrentTime()
}

// Describe implements prometheus.Collector.
func (m *measures) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, out) }

// Collect implements prometheus.Collector.
func (m *measures) Collect(out chan<- prometheus.Metric) {
	for _, c := range []prometheus.Collector{m.operations, m.duration, m.reloads, m.reloaded} {
		c.Collect(out)
	}
}
