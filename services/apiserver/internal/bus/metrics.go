package bus

import "github.com/prometheus/client_golang/prometheus"

func counter(name, help string, get func() int64) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(get()) })
}

// Metrics are what has been published.
func (p *Publisher) Metrics() []prometheus.Collector {
	return []prometheus.Collector{
		counter("sampan_bus_published_total", "Events published on the watch bus.", p.published.Load),
		counter("sampan_bus_published_bytes_total", "Bytes of the events published on the watch bus.", p.bytes.Load),
		counter("sampan_bus_dropped_total", "Events that could not be published; listeners read them from the API server.", p.dropped.Load),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sampan_bus_queue_length", Help: "Events that wait to be published."},
			func() float64 { p.mu.Lock(); defer p.mu.Unlock(); return float64(len(p.queue)) }),
	}
}

func (g *gate) metrics() []prometheus.Collector {
	return []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sampan_bus_listeners", Help: "Listeners connected to the watch bus."},
			func() float64 { return float64(g.count()) }),
		counter("sampan_bus_refused_total", "Connections that the watch bus refused.", g.refused.Load),
		counter("sampan_bus_revoked_total", "Connections that the watch bus closed because a right or a token had gone.", g.revoked.Load),
	}
}

// Metrics are who listens.
func (s *Server) Metrics() []prometheus.Collector {
	return append(s.gate.metrics(),
		counter("sampan_bus_slow_consumers_total", "Listeners that took messages too slowly and were disconnected.", s.nats.NumSlowConsumers))
}

// Metrics are who listens, where this server says who may.
func (e *External) Metrics() []prometheus.Collector {
	if e.Issuer == nil {
		return nil
	}
	return e.gate.metrics()
}
