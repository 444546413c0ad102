package app

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
)

// cacheMetrics reads the caches' own counts when it is asked.
type cacheMetrics struct {
	caches                   func() []*watch.Cache
	objects, size, delivered *prometheus.Desc
	revision                 *prometheus.Desc
	watchers, expired        *prometheus.Desc
	fromLog, rebuilt         *prometheus.Desc
}

func newCacheMetrics(caches func() []*watch.Cache) *cacheMetrics {
	describe := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, []string{"resource"}, nil)
	}
	return &cacheMetrics{
		caches:    caches,
		objects:   describe("apiserver_storage_objects", "Objects that are stored."),
		size:      describe("apiserver_watch_cache_object_bytes", "Bytes of the stored forms of a cache's objects."),
		delivered: describe("apiserver_watch_cache_events_received_total", "Events that a cache has taken since the start."),
		revision:  describe("apiserver_watch_cache_resource_version", "Newest version that a cache has taken."),
		watchers:  describe("apiserver_registered_watchers", "Watches that are open."),
		expired:   describe("apiserver_terminated_watchers_total", "Watches that ended because they fell behind the history."),
		fromLog:   describe("sampan_watch_cache_log_events_total", "Events that watches behind the cache have read from the store."),
		rebuilt:   describe("sampan_watch_cache_rebuilt_total", "States older than the cache that were rebuilt from the store."),
	}
}

// Describe implements prometheus.Collector.
func (m *cacheMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.objects, m.size, m.delivered, m.revision, m.watchers, m.expired, m.fromLog, m.rebuilt} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *cacheMetrics) Collect(out chan<- prometheus.Metric) {
	for _, cache := range m.caches() {
		stats, resource := cache.Stats(), cache.Resource()
		out <- prometheus.MustNewConstMetric(m.objects, prometheus.GaugeValue, float64(stats.Objects), resource)
		out <- prometheus.MustNewConstMetric(m.size, prometheus.GaugeValue, float64(stats.Bytes), resource)
		out <- prometheus.MustNewConstMetric(m.delivered, prometheus.CounterValue, float64(stats.Events), resource)
		out <- prometheus.MustNewConstMetric(m.revision, prometheus.GaugeValue, float64(cache.Revision()), resource)
		out <- prometheus.MustNewConstMetric(m.watchers, prometheus.GaugeValue, float64(stats.Watchers), resource)
		out <- prometheus.MustNewConstMetric(m.expired, prometheus.CounterValue, float64(stats.Expired), resource)
		out <- prometheus.MustNewConstMetric(m.fromLog, prometheus.CounterValue, float64(stats.FromLog), resource)
		out <- prometheus.MustNewConstMetric(m.rebuilt, prometheus.CounterValue, float64(stats.Rebuilt), resource)
	}
}
