package webhook

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission/intercept"
)

// maxCode bounds the codes in metrics.
const maxCode = 600

// Metrics are upstream's metrics of webhooks, and those of the circuit breakers.
type Metrics struct {
	duration   *prometheus.HistogramVec
	rejections *prometheus.CounterVec
	failOpen   *prometheus.CounterVec
	requests   *prometheus.CounterVec
	open       *prometheus.GaugeVec
	opened     *prometheus.CounterVec
	conditions *intercept.ConditionMetrics
}

// NewMetrics makes the metrics; they are registered as a Collector. Those of match
// conditions are policies' too, and are not part of them.
func NewMetrics(conditions *intercept.ConditionMetrics) *Metrics {
	const namespace, subsystem = "apiserver", "admission"
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, labels)
	}
	return &Metrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "webhook_admission_duration_seconds",
			Help: "Latency of webhooks by name, type (validating or admit) and operation.", Buckets: []float64{0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10, 25},
		}, []string{"name", "type", "operation", "rejected"}),
		rejections: counter("webhook_rejection_count", "Requests refused because of a webhook, with the kind of the error and the code of the refusal.", "name", "type", "operation", "error_type", "rejection_code"),
		failOpen:   counter("webhook_fail_open_count", "Calls of webhooks that failed and were ignored.", "name", "type"),
		requests:   counter("webhook_request_total", "Calls of webhooks by the code of their answer.", "name", "type", "operation", "code", "rejected"),
		opened:     counter("webhook_circuit_opened_total", "How often a webhook was no longer waited for, because it only timed out.", "name", "type"),
		open: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "webhook_circuit_open", Help: "1 while a webhook is not waited for.",
		}, []string{"name", "type"}),
		conditions: conditions,
	}
}

func (m *Metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.duration, m.rejections, m.failOpen, m.requests, m.open, m.opened}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	for _, c := range m.all() {
		c.Describe(out)
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	for _, c := range m.all() {
		c.Collect(out)
	}
}

// called notes one call and how it ended.
func (m *Metrics) called(name, kind, operation string, took time.Duration, end ending) {
	rejected := strconv.FormatBool(end.rejected)
	code := strconv.Itoa(min(end.code, maxCode))
	m.duration.WithLabelValues(name, kind, operation, rejected).Observe(took.Seconds())
	m.requests.WithLabelValues(name, kind, operation, code, rejected).Inc()
	if end.rejected && !end.canceled {
		m.rejections.WithLabelValues(name, kind, operation, end.why, code).Inc()
	}
}

// ending is how a call ended, for metrics.
type ending struct {
	rejected bool
	why      string
	code     int
	canceled bool // by the client, which says nothing of the webhook
}

// Kinds of errors in metrics.
const (
	noError       = "no_error"
	callingError  = "calling_webhook_error"
	internalError = "apiserver_internal_error"
)
