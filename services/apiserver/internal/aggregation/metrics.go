package aggregation

import "github.com/prometheus/client_golang/prometheus"

// measures are upstream's metrics of APIServices.
type measures struct {
	aggregator  *Aggregator
	unavailable *prometheus.Desc
	failures    *prometheus.CounterVec
}

func newMeasures(a *Aggregator) *measures {
	return &measures{
		aggregator: a,
		unavailable: prometheus.NewDesc("aggregator_unavailable_apiservice",
			"Whether an APIService of another server is unavailable: 1, or 0.", []string{"name"}, nil),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "aggregator_unavailable_apiservice_total", Help: "How often APIServices became unavailable, by name and reason.",
		}, []string{"name", "reason"}),
	}
}

// Metrics are those of APIServices.
func (a *Aggregator) Metrics() prometheus.Collector { return a.measures }

// Describe implements prometheus.Collector.
func (m *measures) Describe(out chan<- *prometheus.Desc) {
	out <- m.unavailable
	m.failures.Describe(out)
}

// Collect implements prometheus.Collector.
func (m *measures) Collect(out chan<- prometheus.Metric) {
	m.failures.Collect(out)
	for _, b := range *m.aggregator.serving.Load() {
		value := 1.0
		if b.isAvailable() {
			value = 0
		}
		out <- prometheus.MustNewConstMetric(m.unavailable, prometheus.GaugeValue, value, b.name)
	}
}
