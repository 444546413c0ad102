package component

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// NewMetrics makes a service's registry with go_*, process_* and
// kubernetes_build_info. Services register what they measure under upstream's
// names.
func NewMetrics() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	v := Version()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kubernetes_build_info",
		Help: "Always 1; the labels say what was built.",
		ConstLabels: prometheus.Labels{
			"major": v.Major, "minor": v.Minor, "git_version": v.GitVersion, "git_commit": v.GitCommit,
			"git_tree_state": v.GitTreeState, "build_date": v.BuildDate, "go_version": v.GoVersion,
			"compiler": v.Compiler, "platform": v.Platform,
		},
	})
	info.Set(1)
	registry.MustRegister(info)
	return registry
}

// MetricsHandler answers /metrics from registry.
func MetricsHandler(registry *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{Registry: registry})
}
