// Package rest is the engine behind every stored resource: creates, updates,
// patches and deletes run through one sequence of change, managed fields,
// admission, preparation, validation and compare-and-set, for HTTP requests and
// for the server's own parts alike.
package rest

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/declared"
	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
)

// Store is one stored resource: its description, its cache and the rules of its
// writes.
type Store struct {
	resource  *registry.Resource
	gvk       schema.GroupVersionKind
	group     schema.GroupResource
	cache     watch.Store
	codec     codec
	admission registry.Admission
	managers  *managers
	rules     *declared.Rules
}

// Write is what a write request says besides its object.
type Write struct {
	DryRun bool
	// Manager is the field manager, never empty for a request.
	Manager string
	// Options are the *metav1.CreateOptions, UpdateOptions or DeleteOptions that
	// admission sees; nil makes empty ones.
	Options runtime.Object
	// MayCreate is asked before an update creates its object; nil allows it.
	MayCreate func(ctx context.Context) error
}

// Result is the object that a write left behind: as stored, or as it would have
// been stored on a dry run.
type Result struct {
	Stored *watch.Object
	// Object is set instead of Stored on a dry run, and for answers that are not the
	// object itself.
	Object  runtime.Object
	Created bool
}

// Decode is the object; the caller owns it.
func (r Result) Decode() (runtime.Object, error) {
	if r.Stored != nil {
		return r.Stored.Decode()
	}
	return r.Object, nil
}

func (e *Engine) newStore(resource *registry.Resource, versions []*registry.Resource, cache watch.Store) *Store {
	gvk := resource.GroupVersion().WithKind(resource.Kind)
	if resource.Untyped != nil && resource.Untyped.Select != nil {
		cache = newSelecting(cache, resource)
	}
	s := &Store{
		resource: resource, gvk: gvk, group: resource.GroupResource(), cache: cache,
		codec: newCodec(resource), admission: e.admission, rules: e.rules,
	}
	s.managers = newManagers(resource, versions, e.converter)
	return s
}

// Resource describes what is stored.
func (s *Store) Resource() *registry.Resource { return s.resource }

// Kind is the kind that is served.
func (s *Store) Kind() schema.GroupVersionKind { return s.gvk }

// Cache is the resource's cache, for reads.
func (s *Store) Cache() watch.Store { return s.cache }

// Get reads the current object; the caller owns it.
func (s *Store) Get(ctx context.Context, namespace, name string) (runtime.Object, error) {
	current, err := s.cache.Get(ctx, namespace, name, watch.Versions{})
	if err != nil {
		return nil, s.statusError(err, name)
	}
	return s.decode(ctx, current)
}

// decode is a fresh copy of a cached object in the served version.
func (s *Store) decode(ctx context.Context, o *watch.Object) (runtime.Object, error) {
	obj, err := o.Decode()
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return s.served(ctx, obj)
}

// served converts an object from the stored to the served version.
func (s *Store) served(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	if s.resource.FromStored != nil {
		converted, err := s.resource.FromStored(ctx, obj)
		if err != nil {
			return nil, ConversionError(ctx, err)
		}
		obj = converted
	}
	obj.GetObjectKind().SetGroupVersionKind(s.gvk)
	return obj, nil
}

// put encodes an object for the store. Obj must not be changed afterwards.
func (s *Store) put(ctx context.Context, obj registry.Object) (watch.Put, error) {
	p := watch.Put{Namespace: obj.GetNamespace(), Name: obj.GetName()}
	stored, value, err := s.codec.encode(ctx, obj)
	if err != nil {
		return p, ConversionError(ctx, err)
	}
	p.Stored, p.Object = value, stored
	if s.resource.Untyped != nil && s.resource.ToStored == nil {
		p.Form = s.resource.JSONForm() // it has been pruned and defaulted
	}
	if s.resource.TTL != nil {
		p.TTL = s.resource.TTL(obj)
	}
	return p, nil
}

// ConversionError is what a client is told when its object could not be converted or
// encoded: that its time is over, if that is why.
func ConversionError(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return apierrors.NewTimeoutError(fmt.Sprintf("request did not complete within requested timeout: %v", err), 0)
	}
	return apierrors.NewInternalError(err)
}

func defaultObject(strategy *registry.Strategy, obj runtime.Object) {
	if strategy != nil && strategy.Default != nil {
		strategy.Default(obj)
	}
}

// asObject is obj with its metadata.
func asObject(obj runtime.Object) (registry.Object, error) {
	o, ok := obj.(registry.Object)
	if !ok {
		return nil, apierrors.NewBadRequest("the object has no metadata")
	}
	return o, nil
}
