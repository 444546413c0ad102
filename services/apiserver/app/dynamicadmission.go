package app

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission/intercept"
	"github.com/sampan-io/sampan/services/apiserver/internal/admission/policy"
	"github.com/sampan-io/sampan/services/apiserver/internal/admission/webhook"
	"github.com/sampan-io/sampan/services/apiserver/internal/openapi"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/admissionregistration"
	"github.com/sampan-io/sampan/services/apiserver/internal/rest"
	"github.com/sampan-io/sampan/services/apiserver/internal/serviceresolver"
)

// admissionResources are the kinds that configure admission.
func (s *server) admissionResources(state registry.State) []*registry.Resource {
	return admissionregistration.Resources(admissionregistration.Deps{
		Environments: s.security.environments, Authorizer: s.security.authorizer, State: state, ResourceOf: s.resourceOf,
	})
}

// resourceOf is the resource of a stored kind.
func (s *server) resourceOf(kind schema.GroupVersionKind) (schema.GroupVersionResource, bool) {
	if s.engine == nil {
		return schema.GroupVersionResource{}, false
	}
	store := s.engine.Kind(kind)
	if store == nil {
		return schema.GroupVersionResource{}, false
	}
	return store.Resource().GroupVersionResource, true
}

// resourcesOf are the resources of a kind that are served.
func (s *server) resourcesOf(kind schema.GroupVersionKind) []*registry.Resource {
	if store := s.engine.Kind(kind); store != nil {
		return []*registry.Resource{store.Resource()}
	}
	return nil
}

// newConfiguredAdmission makes the plugins that are configured in the cluster, which
// read what is stored. Run starts what works beside them, once admission is in
// place.
func (s *server) newConfiguredAdmission() (run func(life context.Context)) {
	s.security.resourcesOf = s.resourcesOf
	source := intercept.Source{Reader: s.engine, Kinds: servedKinds{s.engine}, Authorizer: s.security.authorizer}
	conditions := intercept.NewConditionMetrics()
	webhooks := webhook.New(webhook.Config{
		Log: s.log, Configuration: s.engine, Source: source, Environments: s.security.environments, Conditions: conditions,
		Resolver: serviceresolver.New(s.engine), Writer: s.engine,
		MutatingCredentials: s.security.configurations.MutatingWebhooks, ValidatingCredentials: s.security.configurations.ValidatingWebhooks,
	})
	s.security.configured.MutatingWebhooks, s.security.configured.ValidatingWebhooks = webhooks.Mutating, webhooks.Validating
	policies := policy.Config{
		Configuration: s.engine, Source: source, Environments: s.security.environments, Kinds: servedKinds{s.engine}, Metrics: policy.NewMetrics(conditions),
	}
	s.security.configured.MutatingPolicies, s.security.configured.ValidatingPolicies = policy.NewMutating(policies), policy.NewValidating(policies)
	s.storeMetrics = append(s.storeMetrics, s.security.measures, conditions, webhooks.Metrics, policies.Metrics)
	status := &policy.Status{State: s.engine, Environments: s.security.environments, Schemas: s.servedSchemas, Log: s.log}
	return func(life context.Context) {
		s.running.Go(func() { webhooks.Run(life) })
		s.running.Go(func() {
			if err := status.Run(life); err != nil && life.Err() == nil {
				s.log.Error("Checking the types of policies ended", "err", err)
			}
		})
	}
}

// servedKinds are the engine's resources as admission wants them.
type servedKinds struct{ engine *rest.Engine }

// Equivalents implements intercept.Kinds.
func (k servedKinds) Equivalents(resource schema.GroupVersionResource, subresource string) []intercept.Target {
	var out []intercept.Target
	for _, store := range k.engine.Equivalents(resource) {
		kind := store.Kind()
		if subresource != "" {
			sub := store.Resource().Subresource(subresource)
			if sub == nil {
				continue
			}
			if !sub.Kind.Empty() {
				kind = sub.Kind
			}
		}
		out = append(out, intercept.Target{Resource: store.Resource().GroupVersionResource, Kind: kind})
	}
	return out
}

// Convert implements intercept.Kinds.
func (k servedKinds) Convert(ctx context.Context, obj runtime.Object, from, to schema.GroupVersionResource) (runtime.Object, error) {
	source, target := k.engine.Version(from), k.engine.Version(to)
	if source == nil || target == nil {
		return nil, fmt.Errorf("%s is no longer served beside %s", to, from)
	}
	return source.ConvertTo(ctx, target, obj)
}

// Kind implements policy.Kinds.
func (k servedKinds) Kind(kind schema.GroupVersionKind) (policy.Kind, bool) {
	store := k.engine.Kind(kind)
	if store == nil {
		return nil, false
	}
	return servedKind{store}, true
}

// servedKind is one kind as policies want it.
type servedKind struct{ *rest.Store }

// Namespaced implements policy.Kind.
func (k servedKind) Namespaced() bool { return k.Resource().Namespaced }

// servedSchemas are the schemas of the engine's kinds.
type servedSchemas struct {
	engine   *rest.Engine
	resolver *openapi.Resolver
}

func (s *server) servedSchemas() (policy.Schemas, error) {
	resolver, err := openapi.NewResolver()
	return servedSchemas{s.engine, resolver}, err
}

// KindOf implements policy.Schemas.
func (s servedSchemas) KindOf(resource schema.GroupVersionResource) (schema.GroupVersionKind, bool) {
	store := s.engine.Version(resource)
	if store == nil {
		return schema.GroupVersionKind{}, false
	}
	return store.Kind(), true
}

// Schema implements policy.Schemas.
func (s servedSchemas) Schema(kind schema.GroupVersionKind) (*spec.Schema, error) {
	store := s.engine.Kind(kind)
	if store == nil {
		return nil, nil //nolint:nilnil // a kind that is not served has no schema
	}
	return s.resolver.Schema(store.Resource())
}
