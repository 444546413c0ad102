package app

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/admissionregistration"
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
