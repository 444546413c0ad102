package rest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/declared"
	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
)

// selfManager is the field manager of the server's own writes.
const selfManager = "apiserver"

// Config is what an Engine is made of.
type Config struct {
	Resources []*registry.Resource
	// Caches by registry.Resource.KeyPrefix; each stored resource must have one.
	Caches    map[string]watch.Store
	Admission registry.Admission
}

// Engine is all stored resources. It implements registry.State.
type Engine struct {
	stores    atomic.Pointer[stores]
	installs  sync.Mutex // one change of stores at a time
	admission registry.Admission
	converter *lazyTypes
	rules     *declared.Rules

	subscribers sync.WaitGroup
}

var _ registry.State = (*Engine)(nil)

// New makes the engine. It panics when a resource is listed twice or has no
// cache, which are mistakes in the program.
func New(config Config) *Engine {
	e := &Engine{admission: config.Admission, converter: newLazyTypes(builtInTypes), rules: declared.New()}
	all := newStores()
	versions := map[string][]*registry.Resource{}
	for _, resource := range config.Resources {
		versions[resource.KeyPrefix] = append(versions[resource.KeyPrefix], resource)
	}
	for _, resource := range config.Resources {
		if resource.KeyPrefix == "" {
			continue
		}
		cache := config.Caches[resource.KeyPrefix]
		if cache == nil {
			panic(fmt.Sprintf("rest: no cache for %s", resource.GroupVersionResource))
		}
		if all.versions[resource.GroupVersionResource] != nil {
			panic(fmt.Sprintf("rest: resource %s is listed twice", resource.GroupVersionResource))
		}
		all.add(e.newStore(resource, versions[resource.KeyPrefix], cache))
	}
	e.stores.Store(all)
	return e
}

// Warm loads what the first write would otherwise wait for.
func (e *Engine) Warm() { _, _ = e.converter.load() }

// Store is a stored resource in the version that the server itself works with,
// nil when there is none of that name.
func (e *Engine) Store(resource schema.GroupResource) *Store {
	return e.stores.Load().main[resource]
}

// Version is one version of a stored resource, nil when there is none of that
// name.
func (e *Engine) Version(resource schema.GroupVersionResource) *Store {
	return e.stores.Load().versions[resource]
}

func (e *Engine) store(resource schema.GroupResource) (*Store, error) {
	if s := e.Store(resource); s != nil {
		return s, nil
	}
	return nil, apierrors.NewNotFound(resource, "")
}

// Get implements registry.Reader.
func (e *Engine) Get(ctx context.Context, resource schema.GroupResource, namespace, name string) (runtime.Object, error) {
	s, err := e.store(resource)
	if err != nil {
		return nil, err
	}
	o, err := s.cache.Get(ctx, namespace, name, watch.Versions{})
	if err != nil {
		return nil, s.statusError(err, name)
	}
	return s.shared(ctx, o)
}

// shared is a cached object that nobody may change, in the served version.
func (s *Store) shared(ctx context.Context, o *watch.Object) (runtime.Object, error) {
	if s.resource.FromStored != nil {
		return s.decode(ctx, o)
	}
	obj, err := o.Shared()
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return obj, nil
}

// List implements registry.Reader.
func (e *Engine) List(ctx context.Context, resource schema.GroupResource, namespace string) ([]runtime.Object, error) {
	s, err := e.store(resource)
	if err != nil {
		return nil, err
	}
	list, err := s.cache.List(ctx, watch.ListOptions{Namespace: namespace})
	if err != nil {
		return nil, s.statusError(err, "")
	}
	out := make([]runtime.Object, 0, len(list.Objects))
	for _, o := range list.Objects {
		obj, err := s.shared(ctx, o)
		if err != nil {
			return nil, err
		}
		out = append(out, obj)
	}
	return out, nil
}

// Create implements registry.Writer. The object is taken over.
func (e *Engine) Create(ctx context.Context, resource schema.GroupResource, obj runtime.Object) (runtime.Object, error) {
	s, err := e.store(resource)
	if err != nil {
		return nil, err
	}
	o, err := asObject(obj)
	if err != nil {
		return nil, err
	}
	defaultObject(s.resource.Strategy, obj)
	result, err := s.Create(ctx, o.GetNamespace(), obj, Write{Manager: selfManager})
	if err != nil {
		return nil, err
	}
	return s.resultObject(ctx, result)
}

func (s *Store) resultObject(ctx context.Context, r Result) (runtime.Object, error) {
	if r.Stored != nil {
		return s.decode(ctx, r.Stored)
	}
	return r.Object, nil
}

// Update implements registry.Writer.
func (e *Engine) Update(ctx context.Context, resource schema.GroupResource, subresource, namespace, name string, dryRun bool, change func(obj runtime.Object) error) (runtime.Object, error) {
	s, err := e.store(resource)
	if err != nil {
		return nil, err
	}
	target := Target{Namespace: namespace, Name: name, Subresource: subresource}
	result, err := s.Update(ctx, target, Write{Manager: selfManager, DryRun: dryRun}, func(_ context.Context, current runtime.Object) (runtime.Object, error) {
		if current == nil {
			return nil, apierrors.NewNotFound(resource, name)
		}
		obj := current.DeepCopyObject()
		if err := change(obj); err != nil {
			return nil, err
		}
		return obj, nil
	})
	if err != nil {
		return nil, err
	}
	return s.resultObject(ctx, result)
}

// Delete implements registry.Writer.
func (e *Engine) Delete(ctx context.Context, resource schema.GroupResource, namespace, name string, options *metav1.DeleteOptions, dryRun bool) error {
	s, err := e.store(resource)
	if err != nil {
		return err
	}
	if options == nil {
		options = &metav1.DeleteOptions{}
	}
	_, err = s.Delete(ctx, namespace, name, options, Write{Manager: selfManager, DryRun: dryRun})
	return err
}
