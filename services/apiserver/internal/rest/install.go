package rest

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
)

// stores are the stored resources at one time; they are never changed.
type stores struct {
	versions map[schema.GroupVersionResource]*Store
	// main has the version of each resource that the server's own parts work with:
	// the stored one where it is served, else the first.
	main map[schema.GroupResource]*Store
	// index is made when it is first asked for, which admission does on most writes.
	index func() *storeIndex
}

// storeIndex finds stores by what they are of.
type storeIndex struct {
	kinds map[schema.GroupVersionKind]*Store
	// shared are the stores of each key prefix, in a stable order.
	shared map[string][]*Store
}

func newStores() *stores {
	s := &stores{versions: map[schema.GroupVersionResource]*Store{}, main: map[schema.GroupResource]*Store{}}
	s.index = sync.OnceValue(s.makeIndex)
	return s
}

func (s *stores) makeIndex() *storeIndex {
	index := &storeIndex{kinds: map[schema.GroupVersionKind]*Store{}, shared: map[string][]*Store{}}
	for _, store := range s.versions {
		prefix := store.resource.KeyPrefix
		index.kinds[store.gvk], index.shared[prefix] = store, append(index.shared[prefix], store)
	}
	for _, stores := range index.shared {
		slices.SortFunc(stores, func(a, b *Store) int {
			return cmp.Compare(a.resource.GroupVersionResource.String(), b.resource.GroupVersionResource.String())
		})
	}
	return index
}

func (s *stores) add(store *Store) {
	s.versions[store.resource.GroupVersionResource] = store
	if s.main[store.group] == nil || store.resource.StoredVersion == store.resource.GroupVersion() {
		s.main[store.group] = store
	}
}

// without is a copy that lacks a resource.
func (s *stores) without(gone schema.GroupResource) *stores {
	rest := &stores{versions: maps.Clone(s.versions), main: maps.Clone(s.main)}
	rest.index = sync.OnceValue(rest.makeIndex)
	maps.DeleteFunc(rest.versions, func(gvr schema.GroupVersionResource, _ *Store) bool { return gvr.GroupResource() == gone })
	delete(rest.main, gone)
	return rest
}

// Install adds a resource in all its versions, which share a cache, or puts
// them in the place of those that it had.
func (e *Engine) Install(versions []*registry.Resource, cache watch.Store) {
	e.installs.Lock()
	defer e.installs.Unlock()
	all := e.stores.Load().without(versions[0].GroupResource())
	for _, version := range versions {
		all.add(e.newStore(version, versions, cache))
	}
	e.stores.Store(all)
}

// Remove takes a resource away. Requests that have begun go on.
func (e *Engine) Remove(resource schema.GroupResource) {
	e.installs.Lock()
	defer e.installs.Unlock()
	e.stores.Store(e.stores.Load().without(resource))
}
