package serving

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sampan-io/sampan/services/apiserver/internal/apiextensions/crd"
	"github.com/sampan-io/sampan/services/apiserver/internal/apiextensions/customresource"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
)

// resource is a custom resource that is served.
type resource struct {
	uid         types.UID // of its definition
	generation  int64
	names       apiextensionsv1.CustomResourceDefinitionNames
	terminating bool

	name   schema.GroupResource
	cache  watch.Store
	fields []string // that its cache knows
	life   context.Context
	end    context.CancelFunc
	clean  bool // its objects are being deleted
}

// serve brings what is served in step with the definition.
func (s *Server) serve(ctx context.Context, definition *apiextensionsv1.CustomResourceDefinition) error {
	have := s.served[definition.Name]
	if have != nil && have.uid != definition.UID {
		s.stop(definition.Name)
		have = nil
	}
	if !apihelpers.IsCRDConditionTrue(definition, apiextensionsv1.Established) || have.shows(definition) {
		return nil
	}
	versions, err := customresource.New(definition, customresource.Config{
		Load: s.load(ctx, definition.Name, definition.UID), Conversions: s.config.Conversions, MetaModels: s.config.MetaModels,
	})
	if err != nil {
		return err
	}
	next := &resource{
		uid: definition.UID, generation: definition.Generation, names: *definition.Status.AcceptedNames.DeepCopy(),
		terminating: definition.DeletionTimestamp != nil, name: versions[0].GroupResource(), fields: selectable(versions),
	}
	if have != nil && (have.name != next.name || !slices.Equal(have.fields, next.fields)) {
		s.stop(definition.Name) // its watches start again on a cache that knows the fields
		have = nil
	}
	if have != nil {
		next.cache, next.life, next.end, next.clean = have.cache, have.life, have.end, have.clean
	} else if err := s.open(ctx, next, versions); err != nil {
		return err
	}
	s.served[definition.Name] = next
	s.config.Surface.Install(versions, next.cache, next.life)
	return nil
}

// shows says that what is served is as the definition has it.
func (r *resource) shows(definition *apiextensionsv1.CustomResourceDefinition) bool {
	return r != nil && r.generation == definition.Generation && r.terminating == (definition.DeletionTimestamp != nil) &&
		equality.Semantic.DeepEqual(r.names, definition.Status.AcceptedNames)
}

func (s *Server) open(ctx context.Context, next *resource, versions []*registry.Resource) error {
	next.life, next.end = context.WithCancel(ctx)
	cache, err := s.config.NewCache(next.life, versions)
	if err != nil {
		next.end()
		return fmt.Errorf("opening its cache: %w", err)
	}
	next.cache = cache
	return nil
}

// stop ends a resource and its watches.
func (s *Server) stop(definition string) {
	if r := s.served[definition]; r != nil {
		s.config.Surface.Remove(r.name)
		r.end()
		delete(s.served, definition)
	}
}

// load reads the definition as it is stored by then.
func (s *Server) load(ctx context.Context, name string, uid types.UID) func() (*apiextensionsv1.CustomResourceDefinition, error) {
	return func() (*apiextensionsv1.CustomResourceDefinition, error) {
		obj, err := s.config.State.Get(ctx, crd.Resource, "", name)
		if err != nil {
			return nil, err
		}
		definition, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
		if !ok || definition.UID != uid {
			return nil, fmt.Errorf("definition %s is another by now", name)
		}
		return definition, nil
	}
}

// selectable are the names of the fields that any version selects by.
func selectable(versions []*registry.Resource) []string {
	var names []string
	for _, v := range versions {
		names = append(names, v.Indexed...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
