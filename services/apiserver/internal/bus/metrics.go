package bus

import "github.com/prometheus/client_golang/prometheus"

// Metrics are what has been published, and who listens to an embedded server
// (nil for an external one).
func Metrics(p *Publisher, s *Server) []prometheus.Collector {
	counter := func(name, help string, get func() int64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(get()) })
	}
	list := []prometheus.Collector{
		counter("sampan_bus_published_total", "Events published on the watch bus.", p.published.Load),
		counter("sampan_bus_published_bytes_total", "Bytes of the events published on the watch bus.", p.bytes.Load),
		counter("sampan_bus_dropped_total", "Events that could not be published; listeners read them from the API server.", p.dropped.Load),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sampan_bus_queue_length", Help: "Events that wait to be published."},
			func() float64 { p.mu.Lock(); defer p.mu.Unlock(); return float64(len(p.queue)) }),
	}
	if s == nil {
		return list
	}
	return append(list,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sampan_bus_listeners", Help: "Listeners connected to the watch bus."},
			func() float64 { return float64(s.gate.count()) }),
		counter("sampan_bus_refused_total", "Connections that the watch bus refused.", s.gate.refused.Load),
		counter("sampan_bus_revoked_total", "Connections that the watch bus closed because a right or a token had gone.", s.gate.revoked.Load),
		counter("sampan_bus_slow_consumers_total", "Listeners that took messages too slowly and were disconnected.", s.nats.NumSlowConsumers),
	)
}
