package app

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sampan-io/sampan/services/internal/component"
	clusterdns "github.com/sampan-io/sampan/services/proxy/internal/dns"
	"github.com/sampan-io/sampan/services/proxy/internal/iptables"
)

// metrics are kube-proxy's, under its names.
type metrics struct {
	registry                   *prometheus.Registry
	syncDuration, programming  prometheus.Histogram
	lastSync                   prometheus.Gauge
	rules                      *prometheus.GaugeVec
	restoreFailed, partialFail prometheus.Counter
	checks, foreign, forgotten prometheus.Counter
	seen                       iptables.Stats
}

func newMetrics() *metrics {
	m := &metrics{
		registry: component.NewMetrics(),
		syncDuration: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "kubeproxy_sync_proxy_rules_duration_seconds",
			Help: "Time of one sync of the rules.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 15)}),
		programming: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "kubeproxy_network_programming_duration_seconds",
			Help: "Time from a change of endpoints to the rules that have it.", Buckets: prometheus.ExponentialBuckets(0.004, 2, 18)}),
		lastSync:      prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubeproxy_sync_proxy_rules_last_timestamp_seconds", Help: "When the rules were synced the last time."}),
		rules:         prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kubeproxy_sync_proxy_rules_iptables_total", Help: "Rules in the kernel."}, []string{"table"}),
		restoreFailed: prometheus.NewCounter(prometheus.CounterOpts{Name: "kubeproxy_sync_proxy_rules_iptables_restore_failures_total", Help: "Runs of iptables-restore that failed."}),
		partialFail:   prometheus.NewCounter(prometheus.CounterOpts{Name: "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total", Help: "Partial syncs that failed and were followed by a full one."}),
		foreign:       prometheus.NewCounter(prometheus.CounterOpts{Name: "sampan_proxy_foreign_changes_total", Help: "Times that rules were found changed by others and written again."}),
	}
	m.checks = prometheus.NewCounter(prometheus.CounterOpts{Name: "sampan_proxy_checks_total", Help: "Looks for foreign changes of the rules."})
	m.forgotten = prometheus.NewCounter(prometheus.CounterOpts{Name: "kubeproxy_conntrack_reconciler_deleted_entries_total", Help: "Stale UDP flows that were forgotten."})
	m.registry.MustRegister(m.syncDuration, m.programming, m.lastSync, m.rules, m.restoreFailed, m.partialFail, m.checks, m.foreign, m.forgotten)
	component.RegisterClientMetrics(m.registry)
	return m
}

// observe takes the syncer's counts over.
func (m *metrics) observe(s iptables.Stats) {
	m.restoreFailed.Add(float64(s.RestoreFailed - m.seen.RestoreFailed))
	m.partialFail.Add(float64(s.PartialFailed - m.seen.PartialFailed))
	m.checks.Add(float64(s.Checks - m.seen.Checks))
	m.foreign.Add(float64(s.ForeignChanges - m.seen.ForeignChanges))
	for table, count := range s.Rules {
		m.rules.WithLabelValues(table).Set(float64(count))
	}
	m.seen = s
}

func (m *metrics) watchDNS(server *clusterdns.Server) {
	count := func(name, help string, pick func(clusterdns.Counts) int64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(pick(server.Counts())) })
	}
	m.registry.MustRegister(
		count("sampan_dns_questions_total", "DNS questions.", func(c clusterdns.Counts) int64 { return c.Answered }),
		count("sampan_dns_forwards_total", "DNS questions that resolvers outside were asked.", func(c clusterdns.Counts) int64 { return c.Forwarded }),
		count("sampan_dns_failures_total", "DNS questions that no resolver answered.", func(c clusterdns.Counts) int64 { return c.Failed }),
		count("sampan_dns_panics_total", "DNS questions that were not answered because of a fault in this program.", func(c clusterdns.Counts) int64 { return c.Panics }),
	)
}
