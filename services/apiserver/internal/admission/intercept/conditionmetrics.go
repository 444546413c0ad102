package intercept

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
)

// Subject is whose match conditions are evaluated, in metrics.
type Subject struct {
	Name string // of the webhook or policy
	Kind string // "webhook" or "policy"
	// Type is upstream's: "admit" and "validating" of webhooks, "validate" of all
	// policies.
	Type      string
	Operation admission.Operation
}

func (s *Subject) labels() []string {
	return []string{s.Name, s.Kind, s.Type, string(s.Operation)}
}

// ConditionMetrics are upstream's metrics of match conditions, of webhooks and of
// policies.
type ConditionMetrics struct {
	errors, exclusions *prometheus.CounterVec
	seconds            *prometheus.HistogramVec
}

// NewConditionMetrics makes the metrics; they are registered as a Collector.
func NewConditionMetrics() *ConditionMetrics {
	const namespace, subsystem = "apiserver", "admission"
	labels := []string{"name", "kind", "type", "operation"}
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, labels)
	}
	return &ConditionMetrics{
		errors:     counter("match_condition_evaluation_errors_total", "Match conditions that failed to evaluate."),
		exclusions: counter("match_condition_exclusions_total", "Requests that match conditions left out."),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "match_condition_evaluation_seconds",
			Help: "Time of the evaluation of match conditions.", Buckets: []float64{0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25},
		}, labels),
	}
}

// Excluded notes a request that the conditions of a webhook leave out.
func (m *ConditionMetrics) Excluded(s Subject) {
	// As upstream, which names this one otherwise than the others.
	if s.Type == "validating" {
		s.Type = "validate"
	}
	m.exclusions.WithLabelValues(s.labels()...).Inc()
}

func (m *ConditionMetrics) failed(s Subject) { m.errors.WithLabelValues(s.labels()...).Inc() }

func (m *ConditionMetrics) evaluated(s Subject, took time.Duration) {
	m.seconds.WithLabelValues(s.labels()...).Observe(took.Seconds())
}

// Describe implements prometheus.Collector.
func (m *ConditionMetrics) Describe(out chan<- *prometheus.Desc) {
	m.errors.Describe(out)
	m.exclusions.Describe(out)
	m.seconds.Describe(out)
}

// Collect implements prometheus.Collector.
func (m *ConditionMetrics) Collect(out chan<- prometheus.Metric) {
	m.errors.Collect(out)
	m.exclusions.Collect(out)
	m.seconds.Collect(out)
}
