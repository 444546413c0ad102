package app

import (
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sampan-io/sampan/services/internal/component"
	"github.com/sampan-io/sampan/services/node-agent/internal/usage"
)

func (a *agent) summarizer() *usage.Meter {
	return &usage.Meter{Node: a.hostname, Root: a.rootDir, Cgroups: a.cgroups, Pods: a.workers.States, Runtime: a.cri.RuntimeServiceClient, Images: a.cri.ImageServiceClient, Started: bootTime(), Memory: a.machineMemory, VolumePath: a.volumes.Path}
}

// metricsHandlers are the paths of metrics, each with a registry of its own.
func (a *agent) metricsHandlers() map[string]http.Handler {
	meter := a.summarizer()
	one := func(collector prometheus.Collector) http.Handler {
		registry := prometheus.NewRegistry()
		registry.MustRegister(collector)
		return component.MetricsHandler(registry)
	}
	a.registry.MustRegister(usage.Volumes{Meter: meter})
	return map[string]http.Handler{
		"/metrics":          component.MetricsHandler(a.registry),
		"/metrics/resource": one(usage.Resource{Meter: meter}),
		"/metrics/cadvisor": one(usage.Advisor{Meter: meter}),
		"/metrics/probes":   component.MetricsHandler(a.probing),
	}
}

// bootTime is when the machine was started; zero if the kernel does not tell.
func bootTime() time.Time {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return time.Time{}
	}
	for line := range strings.Lines(string(data)) {
		if text, found := strings.CutPrefix(strings.TrimSpace(line), "btime "); found {
			if seconds, err := strconv.ParseInt(text, 10, 64); err == nil {
				return time.Unix(seconds, 0)
			}
		}
	}
	return time.Time{}
}
