package admission

import (
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are upstream's metrics of admission: of each plugin, and of the two
// steps.
type Metrics struct {
	plugins, steps *prometheus.HistogramVec
}

// NewMetrics makes the metrics; they are registered as a Collector.
func NewMetrics() *Metrics {
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "apiserver", Subsystem: "admission", Name: name, Help: help, Buckets: []float64{0.005, 0.025, 0.1, 0.5, 1.0, 2.5},
		}, labels)
	}
	return &Metrics{
		plugins: histogram("controller_admission_duration_seconds", "Latency of admission plugins by name, type (validate or admit) and operation.", "name", "type", "operation", "rejected"),
		steps:   histogram("step_admission_duration_seconds", "Latency of the steps of admission by type (validate or admit) and operation.", "type", "operation", "rejected"),
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	m.plugins.Describe(out)
	m.steps.Describe(out)
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	m.plugins.Collect(out)
	m.steps.Collect(out)
}

// Types of steps in metrics.
const (
	admit    = "admit"
	validate = "validate"
)

// Measured runs a chain, and measures it and its plugins.
type Measured struct {
	chain   Chain
	metrics *Metrics
}

// Measure makes a chain that is measured.
func Measure(chain Chain, metrics *Metrics) *Measured {
	measured := make(Chain, len(chain))
	for i, plugin := range chain {
		mutator, mutates := plugin.(Mutator)
		validator, validates := plugin.(Validator)
		switch base := (measuredPlugin{plugin, metrics}); {
		case mutates && validates:
			measured[i] = measuredBoth{measuredMutator{base, mutator}, measuredValidator{base, validator}}
		case mutates:
			measured[i] = measuredMutator{base, mutator}
		case validates:
			measured[i] = measuredValidator{base, validator}
		default:
			measured[i] = plugin
		}
	}
	return &Measured{measured, metrics}
}

// Admit runs the mutators.
func (m *Measured) Admit(ctx context.Context, a *Attributes) error {
	started := time.Now()
	err := m.chain.Admit(ctx, a)
	m.metrics.steps.WithLabelValues(admit, string(a.Operation), strconv.FormatBool(err != nil)).Observe(time.Since(started).Seconds())
	return err
}

// Validate runs the validators.
func (m *Measured) Validate(ctx context.Context, a *Attributes) error {
	started := time.Now()
	err := m.chain.Validate(ctx, a)
	m.metrics.steps.WithLabelValues(validate, string(a.Operation), strconv.FormatBool(err != nil)).Observe(time.Since(started).Seconds())
	return err
}

// measuredPlugin is what measured plugins have in common.
type measuredPlugin struct {
	plugin  Plugin
	metrics *Metrics
}

func (p measuredPlugin) Name() string                     { return p.plugin.Name() }
func (p measuredPlugin) Handles(operation Operation) bool { return p.plugin.Handles(operation) }

func (p measuredPlugin) note(step string, a *Attributes, started time.Time, err error) {
	p.metrics.plugins.WithLabelValues(p.plugin.Name(), step, string(a.Operation), strconv.FormatBool(err != nil)).Observe(time.Since(started).Seconds())
}

type measuredMutator struct {
	measuredPlugin
	mutator Mutator
}

// Admit implements Mutator.
func (p measuredMutator) Admit(ctx context.Context, a *Attributes) error {
	started := time.Now()
	err := p.mutator.Admit(ctx, a)
	p.note(admit, a, started, err)
	return err
}

type measuredValidator struct {
	measuredPlugin
	validator Validator
}

// Validate implements Validator.
func (p measuredValidator) Validate(ctx context.Context, a *Attributes) error {
	started := time.Now()
	err := p.validator.Validate(ctx, a)
	p.note(validate, a, started, err)
	return err
}

type measuredBoth struct {
	measuredMutator
	measures measuredValidator
}

// Validate implements Validator.
func (p measuredBoth) Validate(ctx context.Context, a *Attributes) error {
	return p.measures.Validate(ctx, a)
}
