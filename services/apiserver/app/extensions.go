package app

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/apiextensions/conversion"
	"github.com/sampan-io/sampan/services/apiserver/internal/apiextensions/serving"
	"github.com/sampan-io/sampan/services/apiserver/internal/discovery"
	"github.com/sampan-io/sampan/services/apiserver/internal/handlers"
	"github.com/sampan-io/sampan/services/apiserver/internal/openapi"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/rest"
	"github.com/sampan-io/sampan/services/apiserver/internal/serviceresolver"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
)

// extensions are the custom resources, and the parts of the server that serve
// them.
type extensions struct {
	server    *server
	api       *handlers.API
	described *discovery.Service
	schemas   *openapi.Service
	serving   *serving.Server

	mu       sync.Mutex
	starting bool // what is served is described when all of it is there
	custom   map[schema.GroupResource][]*registry.Resource
	caches   map[schema.GroupResource]*watch.Cache
}

var _ serving.Surface = (*extensions)(nil)

func (s *server) newExtensions(api *handlers.API, described *discovery.Service, schemas *openapi.Service) *extensions {
	return &extensions{
		server: s, api: api, described: described, schemas: schemas,
		custom: map[schema.GroupResource][]*registry.Resource{}, caches: map[schema.GroupResource]*watch.Cache{},
	}
}

// Start serves the stored definitions until ctx ends.
func (e *extensions) Start(ctx context.Context, store storage.Interface) error {
	budget := watch.NewBudget(formsBudget)
	e.serving = serving.New(serving.Config{
		State: e.server.engine, Surface: e, BuiltIn: e.server.resources, Log: e.server.log,
		Conversions: conversion.NewClients(serviceresolver.New(e.server.engine)),
		MetaModels:  sync.OnceValues(openapi.MetaModels),
		NewCache: func(ctx context.Context, versions []*registry.Resource) (watch.Store, error) {
			cache := watch.NewCache(rest.CacheConfig(versions), store, watch.Options{Budget: budget})
			if err := cache.Start(ctx); err != nil {
				return nil, err
			}
			e.mu.Lock()
			defer e.mu.Unlock()
			e.caches[versions[0].GroupResource()] = cache
			return cache, nil
		},
	})
	e.setStarting(true)
	err := e.serving.Start(ctx)
	e.setStarting(false)
	return err
}

func (e *extensions) setStarting(starting bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.starting = starting
	e.describe()
}

// Wait returns when what Start started has ended.
func (e *extensions) Wait() {
	if e.serving != nil {
		e.serving.Wait()
	}
}

// Install implements serving.Surface.
func (e *extensions) Install(versions []*registry.Resource, cache watch.Store, life context.Context) { //nolint:revive // a life is not the call's context
	e.server.engine.Install(versions, cache)
	served := slices.DeleteFunc(slices.Clone(versions), func(r *registry.Resource) bool { return r.Verbs != nil && len(r.Verbs) == 0 })
	name := versions[0].GroupResource()
	if len(served) > 0 {
		e.api.Install(served, life)
	} else {
		e.api.Remove(name)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.custom[name] = served
	e.describe()
}

// Remove implements serving.Surface.
func (e *extensions) Remove(name schema.GroupResource) {
	e.api.Remove(name)
	e.server.engine.Remove(name)
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.custom, name)
	delete(e.caches, name)
	e.describe()
}

// describe tells discovery and OpenAPI what is served. Caller must hold mu.
func (e *extensions) describe() {
	if e.starting {
		return
	}
	all := slices.Clone(e.server.resources)
	names := slices.SortedFunc(maps.Keys(e.custom), func(a, b schema.GroupResource) int { return strings.Compare(a.String(), b.String()) })
	for _, name := range names { // in a stable order: what has not changed is not described again
		all = append(all, e.custom[name]...)
	}
	e.described.Set(all)
	e.schemas.Set(all)
}

// Instances implements serving.Surface.
func (e *extensions) Instances(name schema.GroupResource) serving.Instances {
	return e.server.engine.Instances(name)
}

// allCaches are the caches of built-in kinds and of custom resources.
func (s *server) allCaches() []*watch.Cache {
	all := slices.Clone(s.caches)
	if s.extensions == nil {
		return all
	}
	s.extensions.mu.Lock()
	defer s.extensions.mu.Unlock()
	for _, cache := range s.extensions.caches {
		all = append(all, cache)
	}
	return all
}
