package handlers

import (
	"context"
	"maps"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// endpoints are what is served at one time; they are never changed.
type endpoints map[schema.GroupVersionResource]*endpoint

func (all endpoints) without(gone schema.GroupResource) endpoints {
	rest := maps.Clone(all)
	maps.DeleteFunc(rest, func(gvr schema.GroupVersionResource, _ *endpoint) bool { return gvr.GroupResource() == gone })
	return rest
}

// endpoint serves a resource now, nil when nothing does.
func (a *API) endpoint(resource schema.GroupVersionResource) *endpoint {
	return (*a.endpoints.Load())[resource]
}

// Install serves a resource in all its versions, or puts them in the place of
// those that it had; the engine must have them. Watches that are open go on
// with the new ones, and end when life does.
func (a *API) Install(versions []*registry.Resource, life context.Context) { //nolint:revive // a life is not the call's context
	a.installs.Lock()
	defer a.installs.Unlock()
	all := a.endpoints.Load().without(versions[0].GroupResource())
	for _, version := range versions {
		all[version.GroupVersionResource] = newEndpoint(a, version, life)
	}
	a.endpoints.Store(&all)
}

// Remove stops serving a resource. Requests that have begun go on.
func (a *API) Remove(resource schema.GroupResource) {
	a.installs.Lock()
	defer a.installs.Unlock()
	all := a.endpoints.Load().without(resource)
	a.endpoints.Store(&all)
}

// Subresources are those of a served resource; ok says whether it is served.
func (a *API) Subresources(resource schema.GroupVersionResource) (names map[string]bool, ok bool) {
	e := a.endpoint(resource)
	if e == nil {
		return nil, false
	}
	return e.subresources, true
}
