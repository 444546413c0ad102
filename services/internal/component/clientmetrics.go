package component

import (
	"context"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/metrics"
)

// RegisterClientMetrics registers what client-go measures of its requests
// (rest_client_*) and of leader election under upstream's names. client-go
// keeps one set a process: only the first call has an effect, and it must come
// before the first client is made.
func RegisterClientMetrics(registry prometheus.Registerer) {
	seconds := []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60}
	bytes := []float64{64, 256, 512, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216}
	latency := histogram("rest_client_request_duration_seconds", "Request latency in seconds, by verb and host.", seconds, "verb", "host")
	limiter := histogram("rest_client_rate_limiter_duration_seconds", "Client side rate limiter latency in seconds, by verb and host.", seconds, "verb", "host")
	requestSize := histogram("rest_client_request_size_bytes", "Request size in bytes, by verb and host.", bytes, "verb", "host")
	responseSize := histogram("rest_client_response_size_bytes", "Response size in bytes, by verb and host.", bytes, "verb", "host")
	results := counter("rest_client_requests_total", "HTTP requests, by status code, method and host.", "code", "method", "host")
	retries := counter("rest_client_request_retries_total", "Request retries, by status code, verb and host.", "code", "verb", "host")
	leader := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "leader_election_master_status", Help: "1 while this process holds the named Lease, 0 otherwise.",
	}, []string{"name"})
	registry.MustRegister(latency, limiter, requestSize, responseSize, results, retries, leader)
	metrics.Register(metrics.RegisterOpts{
		RequestLatency:     requestLatency{latency},
		RateLimiterLatency: requestLatency{limiter},
		RequestSize:        requestBytes{requestSize},
		ResponseSize:       requestBytes{responseSize},
		RequestResult:      requestCount{results},
		RequestRetry:       requestCount{retries},
	})
	leaderelection.SetProvider(leaderMetrics{leader})
}

func histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
}

func counter(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

type requestLatency struct{ vec *prometheus.HistogramVec }

func (m requestLatency) Observe(_ context.Context, verb string, u url.URL, latency time.Duration) {
	m.vec.WithLabelValues(verb, u.Host).Observe(latency.Seconds())
}

type requestBytes struct{ vec *prometheus.HistogramVec }

func (m requestBytes) Observe(_ context.Context, verb string, host string, size float64) {
	m.vec.WithLabelValues(verb, host).Observe(size)
}

type requestCount struct{ vec *prometheus.CounterVec }

func (m requestCount) Increment(_ context.Context, code, method, host string) {
	m.vec.WithLabelValues(code, method, host).Inc()
}

func (m requestCount) IncrementRetry(_ context.Context, code, method, host string) {
	m.vec.WithLabelValues(code, method, host).Inc()
}

type leaderMetrics struct{ status *prometheus.GaugeVec }

func (m leaderMetrics) NewLeaderMetric() leaderelection.LeaderMetric { return m }

func (m leaderMetrics) On(name string)             { m.status.WithLabelValues(name).Set(1) }
func (m leaderMetrics) Off(name string)            { m.status.WithLabelValues(name).Set(0) }
func (m leaderMetrics) SlowpathExercised(_ string) {}
