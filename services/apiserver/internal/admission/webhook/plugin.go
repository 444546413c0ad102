package webhook

import (
	"log/slog"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission/expression"
	"github.com/sampan-io/sampan/services/apiserver/internal/admission/intercept"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/serviceresolver"
)

// Config is what the plugins need of the server.
type Config struct {
	Log           *slog.Logger
	Configuration intercept.Configuration
	Source        intercept.Source
	Environments  *expression.Environments
	Conditions    *intercept.ConditionMetrics
	Resolver      *serviceresolver.Resolver
	// Writer records events about webhooks that are not waited for.
	Writer registry.Writer
	// MutatingCredentials and ValidatingCredentials are by whom the server is known to
	// webhooks; nil is anonymous.
	MutatingCredentials, ValidatingCredentials *Credentials
}

// Webhooks are both plugins, with what they share.
type Webhooks struct {
	Mutating   *Mutating
	Validating *Validating
	Metrics    *Metrics
	watchdog   *watchdog
}

// New makes the plugins. Run must run for breakers to close again.
func New(config Config) *Webhooks {
	metrics := NewMetrics(config.Conditions)
	watch := newWatchdog(config.Log, config.Writer, metrics)
	snapshot := func(resource, kind string, credentials *Credentials) *intercept.Snapshot[*hooks] {
		b := &builder{environments: config.Environments, clients: &clients{resolver: config.Resolver, credentials: credentials}, kind: kind}
		return intercept.NewSnapshot(config.Configuration, b.prepare, schema.GroupResource{Group: "admissionregistration.k8s.io", Resource: resource})
	}
	return &Webhooks{
		Metrics: metrics, watchdog: watch,
		Mutating: &Mutating{
			caller: caller{kind: "admit", mutating: true, metrics: metrics, watch: watch}, source: config.Source,
			hooks: snapshot("mutatingwebhookconfigurations", "MutatingWebhookConfiguration", config.MutatingCredentials),
		},
		Validating: &Validating{
			caller: caller{kind: "validating", metrics: metrics, watch: watch}, source: config.Source,
			hooks: snapshot("validatingwebhookconfigurations", "ValidatingWebhookConfiguration", config.ValidatingCredentials),
		},
	}
}
