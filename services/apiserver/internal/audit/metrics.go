package audit

import "github.com/prometheus/client_golang/prometheus"

// Measures are upstream's metrics of auditing.
type Measures struct {
	events, rejected prometheus.Counter
	levels, errors   *prometheus.CounterVec
}

// NewMeasures registers the metrics.
func NewMeasures(registry prometheus.Registerer) *Measures {
	m := &Measures{
		events:   prometheus.NewCounter(prometheus.CounterOpts{Name: "apiserver_audit_event_total", Help: "Audit events that were made and sent to the sinks."}),
		rejected: prometheus.NewCounter(prometheus.CounterOpts{Name: "apiserver_audit_requests_rejected_total", Help: "Requests that were refused because they could not be audited."}),
		levels:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "apiserver_audit_level_total", Help: "Requests by the level at which they are audited."}, []string{"level"}),
		errors:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "apiserver_audit_error_total", Help: "Audit events that were lost, by sink."}, []string{"plugin"}),
	}
	registry.MustRegister(m.events, m.rejected, m.levels, m.errors)
	return m
}
