package bolt

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Stats are a store's counts.
type Stats struct {
	Bytes     int64 // of the file
	FreeBytes int64 // of the file's pages that hold nothing
	Revision  int64
	Compacted int64
	Commits   int64 // that changed something, since the start
	Writes    int64 // in them, of keys
	Refused   int64 // for want of room
}

// Stats are the store's counts.
func (s *Store) Stats() Stats {
	pages := s.db.Stats()
	return Stats{
		Bytes: s.Size(), FreeBytes: int64(pages.FreePageN+pages.PendingPageN) * int64(s.db.Info().PageSize),
		Revision: s.current.Load(), Compacted: s.compacted.Load(),
		Commits: s.counts.commits.Load(), Writes: s.counts.writes.Load(), Refused: s.counts.refused.Load(),
	}
}

type counts struct{ commits, writes, refused atomic.Int64 }

// metrics measures the commits and reads the store's counts when it is asked.
type metrics struct {
	store    *Store
	duration prometheus.Histogram
	gauges   map[*prometheus.Desc]func(Stats) int64
	counters map[*prometheus.Desc]func(Stats) int64
}

func newMetrics(s *Store) *metrics {
	describe := func(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, nil) }
	cluster := prometheus.Labels{"storage_cluster_id": "bolt"}
	return &metrics{
		store: s,
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "sampan_store_commit_duration_seconds", Help: "Time of a commit until it is durable.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 14),
		}),
		gauges: map[*prometheus.Desc]func(Stats) int64{
			prometheus.NewDesc("apiserver_storage_size_bytes", "Size of the store's file.", nil, cluster):   func(s Stats) int64 { return s.Bytes },
			describe("sampan_store_free_bytes", "Bytes of the store's file that hold nothing."):             func(s Stats) int64 { return s.FreeBytes },
			describe("sampan_store_revision", "Newest revision."):                                           func(s Stats) int64 { return s.Revision },
			describe("sampan_store_compacted_revision", "Revision below which history has been compacted."): func(s Stats) int64 { return s.Compacted },
		},
		counters: map[*prometheus.Desc]func(Stats) int64{
			describe("sampan_store_commits_total", "Commits of writes."):                    func(s Stats) int64 { return s.Commits },
			describe("sampan_store_writes_total", "Writes of keys, several in one commit."): func(s Stats) int64 { return s.Writes },
			describe("sampan_store_refused_total", "Writes refused for want of room."):      func(s Stats) int64 { return s.Refused },
		},
	}
}

// Metrics is what the store measures.
func (s *Store) Metrics() prometheus.Collector { return s.metrics }

// Describe implements prometheus.Collector.
func (m *metrics) Describe(out chan<- *prometheus.Desc) {
	m.duration.Describe(out)
	for desc := range m.gauges {
		out <- desc
	}
	for desc := range m.counters {
		out <- desc
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	m.duration.Collect(out)
	stats := m.store.Stats()
	for desc, read := range m.gauges {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(read(stats)))
	}
	for desc, read := range m.counters {
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(read(stats)))
	}
}
