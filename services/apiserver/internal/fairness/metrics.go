package fairness

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are upstream's measures of priority and fairness.
type Metrics struct {
	dispatched *prometheus.CounterVec
	rejected   *prometheus.CounterVec
	executing  *prometheus.GaugeVec
	seats      *prometheus.GaugeVec
	nominal    *prometheus.GaugeVec
	wait       *prometheus.HistogramVec
	execution  *prometheus.HistogramVec
}

var (
	waitBuckets      = []float64{0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30}
	executionBuckets = []float64{0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30}
)

// NewMetrics registers the measures.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	both := []string{"priority_level", "flow_schema"}
	m := &Metrics{
		dispatched: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_flowcontrol_dispatched_requests_total", Help: "Requests that got a seat.",
		}, both),
		rejected: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_flowcontrol_rejected_requests_total", Help: "Requests that got none, by reason.",
		}, append([]string{"reason"}, both...)),
		executing: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_flowcontrol_current_executing_requests", Help: "Requests that have a seat.",
		}, both),
		seats: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_flowcontrol_current_executing_seats", Help: "Seats in use.",
		}, both),
		nominal: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_flowcontrol_nominal_limit_seats", Help: "Seats by share.",
		}, []string{"priority_level"}),
		wait: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_flowcontrol_request_wait_duration_seconds", Buckets: waitBuckets, Help: "Time waited for a seat, in seconds.",
		}, append([]string{"execute"}, both...)),
		execution: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_flowcontrol_request_execution_seconds", Buckets: executionBuckets, Help: "Time on a seat, in seconds.",
		}, both),
	}
	registry.MustRegister(m.dispatched, m.rejected, m.executing, m.seats, m.nominal, m.wait, m.execution)
	return m
}

func (m *Metrics) configured(l *level) {
	m.nominal.WithLabelValues(l.name).Set(float64(l.nominal))
}

func (m *Metrics) started(c Classification, seats int, waited time.Duration) {
	m.dispatched.WithLabelValues(c.Level, c.Schema).Inc()
	m.executing.WithLabelValues(c.Level, c.Schema).Inc()
	m.seats.WithLabelValues(c.Level, c.Schema).Add(float64(seats))
	m.wait.WithLabelValues("true", c.Level, c.Schema).Observe(waited.Seconds())
}

func (m *Metrics) ended(c Classification, seats int, took time.Duration) {
	m.executing.WithLabelValues(c.Level, c.Schema).Dec()
	m.seats.WithLabelValues(c.Level, c.Schema).Sub(float64(seats))
	m.execution.WithLabelValues(c.Level, c.Schema).Observe(took.Seconds())
}

func (m *Metrics) refused(c Classification, reason string) {
	m.rejected.WithLabelValues(reason, c.Level, c.Schema).Inc()
}
