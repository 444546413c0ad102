// Package serving keeps what is served in step with the stored
// CustomResourceDefinitions: it accepts their names, establishes them, serves
// their objects, and deletes the objects of definitions that go.
package serving

import (
	"context"
	"log/slog"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"

	"github.com/sampan-io/sampan/services/apiserver/internal/apiextensions/conversion"
	"github.com/sampan-io/sampan/services/apiserver/internal/apiextensions/crd"
	"github.com/sampan-io/sampan/services/apiserver/internal/apiextensions/customresource"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
)

// Surface is where resources are served.
type Surface interface {
	// Install serves a resource in all its versions, or puts them in the place of
	// those that it had. Those without verbs are stored, but not served. Watches end
	// with life.
	Install(versions []*registry.Resource, cache watch.Store, life context.Context) //nolint:revive // a life is not the call's context
	// Remove stops serving a resource.
	Remove(resource schema.GroupResource)
	// Instances deletes the objects of a resource.
	Instances(resource schema.GroupResource) Instances
}

// NewCache starts the cache of resources that share a key prefix; it lives until
// ctx ends.
type NewCache func(ctx context.Context, versions []*registry.Resource) (watch.Store, error)

// Config is what a Server is made of.
type Config struct {
	State       registry.State
	Surface     Surface
	NewCache    NewCache
	Conversions *conversion.Clients
	MetaModels  customresource.Models
	// BuiltIn are the resources that are always served; their names are taken.
	BuiltIn []*registry.Resource
	Log     *slog.Logger
}

// Server serves custom resources.
type Server struct {
	config Config
	queue  workqueue.TypedRateLimitingInterface[string]

	// What follows is the worker's alone.
	claims map[string]claim     // by definition, as of the worker's last write or look
	served map[string]*resource // by definition

	cleanups sync.WaitGroup
}

// New makes a server; Start fills it.
func New(config Config) *Server {
	return &Server{
		config: config, claims: map[string]claim{}, served: map[string]*resource{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]()),
	}
}

// Start serves what is stored, and follows definitions until ctx ends; then Wait
// returns.
func (s *Server) Start(ctx context.Context) error {
	changed := func(old, new runtime.Object) {
		for _, obj := range []runtime.Object{old, new} {
			if definition, ok := obj.(*apiextensionsv1.CustomResourceDefinition); ok {
				s.queue.Add(definition.Name)
				return
			}
		}
	}
	if err := s.config.State.Subscribe(ctx, crd.Resource, changed); err != nil {
		return err
	}
	stored, err := s.config.State.List(ctx, crd.Resource, "")
	if err != nil {
		return err
	}
	for _, obj := range stored { // names that were accepted stay accepted
		if definition, ok := obj.(*apiextensionsv1.CustomResourceDefinition); ok {
			s.claims[definition.Name] = claimOf(definition)
		}
	}
	for s.queue.Len() > 0 {
		s.next(ctx)
	}
	context.AfterFunc(ctx, s.queue.ShutDown)
	s.cleanups.Go(func() {
		for s.next(ctx) {
		}
	})
	return nil
}

// Wait returns when everything that Start started has ended.
func (s *Server) Wait() { s.cleanups.Wait() }

// next takes one definition from the queue, and says whether there may be more.
func (s *Server) next(ctx context.Context) bool {
	name, shutdown := s.queue.Get()
	if shutdown {
		return false
	}
	defer s.queue.Done(name)
	if err := s.reconcile(ctx, name); err != nil {
		if ctx.Err() == nil {
			s.config.Log.Error("Serving a custom resource", "definition", name, "err", err)
		}
		s.queue.AddRateLimited(name)
		return true
	}
	s.queue.Forget(name)
	return true
}

// reconcile brings what is served, and the definition's status, in step with the
// definition.
func (s *Server) reconcile(ctx context.Context, name string) error {
	obj, err := s.config.State.Get(ctx, crd.Resource, "", name)
	if apierrors.IsNotFound(err) {
		s.forget(name)
		return nil
	}
	if err != nil {
		return err
	}
	definition, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return nil
	}
	s.claims[name] = claimOf(definition)
	wanted := definition.DeepCopy()
	s.setStatus(wanted)
	if err := s.serve(ctx, wanted); err != nil {
		return err
	}
	if err := s.writeStatus(ctx, definition, wanted); err != nil {
		return err
	}
	s.claims[name] = claimOf(wanted)
	if wanted.DeletionTimestamp != nil {
		s.cleanUp(ctx, wanted)
	}
	return nil
}

// forget stops serving a definition that is gone, and looks again at those that
// may have waited for its names.
func (s *Server) forget(name string) {
	gone, known := s.claims[name]
	delete(s.claims, name)
	s.stop(name)
	for other, has := range s.claims {
		if known && has.group == gone.group {
			s.queue.Add(other)
		}
	}
}
