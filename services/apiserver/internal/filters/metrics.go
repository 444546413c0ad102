package filters

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Metrics are the server's measures of requests, under upstream's names.
type Metrics struct {
	served func(schema.GroupVersionResource) (subresources map[string]bool, ok bool)

	requests   *prometheus.CounterVec
	duration   *prometheus.HistogramVec
	sli        *prometheus.HistogramVec
	sizes      *prometheus.HistogramVec
	inflight   *prometheus.GaugeVec
	long       *prometheus.GaugeVec
	aborts     *prometheus.CounterVec
	dropped    *prometheus.CounterVec
	terminated *prometheus.CounterVec
	authn      *prometheus.CounterVec
	panics     prometheus.Counter
}

var requestBuckets = []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60}

// NewMetrics registers the measures. Served says which resources and
// subresources there are; requests for others are counted without a name.
func NewMetrics(registry prometheus.Registerer, served func(schema.GroupVersionResource) (subresources map[string]bool, ok bool)) *Metrics {
	target := []string{"verb", "group", "version", "resource", "subresource", "scope", "component"}
	m := &Metrics{
		served: served,
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_request_total",
			Help: "Requests by verb, dry run, group, version, resource, scope, component and code.",
		}, []string{"verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_request_duration_seconds", Buckets: requestBuckets,
			Help: "Time to answer, in seconds.",
		}, append([]string{"dry_run"}, target...)),
		sli: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_request_sli_duration_seconds", Buckets: requestBuckets,
			Help: "Time to answer without webhooks and waiting for the client, in seconds.",
		}, target),
		sizes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_response_sizes", Buckets: prometheus.ExponentialBuckets(1000, 10, 7),
			Help: "Size of answers, in bytes.",
		}, target),
		inflight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_current_inflight_requests",
			Help: "Requests in flight, mutating and read-only.",
		}, []string{"request_kind"}),
		long: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_longrunning_requests",
			Help: "Watches and streams that are open.",
		}, target),
		aborts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_request_aborts_total",
			Help: "Requests that ended without an answer.",
		}, []string{"verb"}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_dropped_requests_total",
			Help: "Requests refused because too many were in flight.",
		}, []string{"request_kind"}),
		terminated: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_request_terminations_total",
			Help: "Requests that the server refused to save itself.",
		}, []string{"verb", "code"}),
		authn: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "authentication_attempts",
			Help: "Authentications by result: success, failure (no credential) or error.",
		}, []string{"result"}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "apiserver_handler_panics_total",
			Help: "Requests whose handler panicked.",
		}),
	}
	registry.MustRegister(m.requests, m.duration, m.sli, m.sizes, m.inflight, m.long, m.aborts, m.dropped, m.terminated, m.authn, m.panics)
	return m
}

// known is l with the names of what is not served taken out.
func (m *Metrics) known(l labels) labels {
	if l.resource == "" {
		return l
	}
	subresources, ok := m.served(schema.GroupVersionResource{Group: l.group, Version: l.version, Resource: l.resource})
	if !ok {
		return labels{verb: l.verb, scope: l.scope}
	}
	if l.subresource != "" && !subresources[l.subresource] {
		l.subresource = ""
	}
	return l
}

func (l labels) target() []string {
	return []string{l.verb, l.group, l.version, l.resource, l.subresource, l.scope, "apiserver"}
}

// begin counts a long request as open until the function that it returns is
// called.
func (m *Metrics) begin(l labels) func() {
	if !l.long() {
		return func() {}
	}
	gauge := m.long.WithLabelValues(m.known(l).target()...)
	gauge.Inc()
	return gauge.Dec
}

func (m *Metrics) observe(l labels, rec *recorder, took time.Duration) {
	l = m.known(l)
	target := l.target()
	m.requests.WithLabelValues(l.verb, "", l.group, l.version, l.resource, l.subresource, l.scope, "apiserver", code(rec.code)).Inc()
	if l.long() {
		return
	}
	m.duration.WithLabelValues(append([]string{""}, target...)...).Observe(took.Seconds())
	m.sli.WithLabelValues(target...).Observe(took.Seconds())
	if l.verb == http.MethodGet || l.verb == "LIST" {
		m.sizes.WithLabelValues(target...).Observe(float64(rec.bytes))
	}
}

func code(n int) string {
	if n < 100 || n > 599 {
		return "other"
	}
	return strconv.Itoa(n)
}
