package policy

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission/expression"
	"github.com/sampan-io/sampan/services/apiserver/internal/admission/intercept"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
)

// Metrics are upstream's metrics of policies.
type Metrics struct {
	validatingChecks, mutatingChecks       *prometheus.CounterVec
	validatingDurations, mutatingDurations *prometheus.HistogramVec
	conditions                             *intercept.ConditionMetrics
}

// NewMetrics makes the metrics; they are registered as a Collector. Those of match
// conditions are webhooks' too, and are not part of them.
func NewMetrics(conditions *intercept.ConditionMetrics) *Metrics {
	buckets := []float64{0.0000005, 0.001, 0.01, 0.1, 1.0}
	counter := func(subsystem, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "apiserver", Subsystem: subsystem, Name: "check_total", Help: help}, labels)
	}
	histogram := func(subsystem, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "apiserver", Subsystem: subsystem, Name: "check_duration_seconds", Help: help, Buckets: buckets}, labels)
	}
	const validating, mutating = "validating_admission_policy", "mutating_admission_policy"
	return &Metrics{
		conditions:          conditions,
		validatingChecks:    counter(validating, "Checks by validating policies that failed, by what was done about it.", "policy", "policy_binding", "error_type", "enforcement_action"),
		validatingDurations: histogram(validating, "Time of checks by validating policies that failed.", "policy", "policy_binding", "error_type", "enforcement_action"),
		mutatingChecks:      counter(mutating, "Mutations by policies.", "policy", "policy_binding", "error_type"),
		mutatingDurations:   histogram(mutating, "Time of mutations by policies.", "policy", "policy_binding", "error_type"),
	}
}

func (m *Metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.validatingChecks, m.mutatingChecks, m.validatingDurations, m.mutatingDurations}
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

func (m *Metrics) validated(policy, binding, kind, action string, took time.Duration) {
	m.validatingChecks.WithLabelValues(policy, binding, kind, action).Inc()
	m.validatingDurations.WithLabelValues(policy, binding, kind, action).Observe(took.Seconds())
}

func (m *Metrics) mutated(policy, binding, kind string, took time.Duration) {
	m.mutatingChecks.WithLabelValues(policy, binding, kind).Inc()
	m.mutatingDurations.WithLabelValues(policy, binding, kind).Observe(took.Seconds())
}

// Kinds of errors in metrics.
const noError = "no_error"

func errorKind(err error) string {
	var spent *expression.OutOfBudgetError
	switch {
	case err == nil:
		return noError
	case errors.As(err, &spent):
		return "out_of_budget"
	}
	return messageKind(err.Error())
}

// messageKind is the kind of a validation that failed, which upstream reads off its
// message: "invalid_error" also where an expression is false.
func messageKind(message string) string {
	if strings.HasPrefix(message, "compilation") {
		return "compile_error"
	}
	return "invalid_error"
}

// note adds a document to the request's audit event.
func note(ctx context.Context, key string, document any) {
	if data, err := json.Marshal(document); err == nil {
		request.AddAnnotation(ctx, key, string(data))
	}
}
