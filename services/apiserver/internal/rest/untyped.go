package rest

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// newUntypedManagers makes the field managers of a kind without a Go type.
// Entries of its other versions are converted.
func newUntypedManagers(resource *registry.Resource) *managers {
	m := &managers{bySubresource: map[string]*managedfields.FieldManager{}}
	types := newLazyTypes(resource.Types)
	m.types = types
	m.bySubresource[""] = newUntypedManager(context.Background(), resource, types, "")
	for _, sub := range resource.Subresources {
		switch {
		case sub.Update != nil:
			m.bySubresource[sub.Name] = newUntypedManager(context.Background(), resource, types, sub.Name)
		case sub.Scale != nil:
			m.scale = newScaleManager(sub.Name)
		}
	}
	if resource.Untyped.FromStoredAll != nil {
		m.within = func(ctx context.Context, subresource string) *managedfields.FieldManager {
			return newUntypedManager(ctx, resource, types, subresource)
		}
	}
	return m
}

func newUntypedManager(ctx context.Context, resource *registry.Resource, types managedfields.TypeConverter, subresource string) *managedfields.FieldManager {
	strategy := resource.Strategy
	if sub := resource.Subresource(subresource); sub != nil {
		strategy = sub.Update
	}
	kind := resource.GroupVersion().WithKind(resource.Kind)
	converter := &untypedConverter{
		kindConverter: kindConverter{kind: kind, create: resource.New, strategy: resource.Strategy},
		convert: func(obj runtime.Object, to schema.GroupVersion) (runtime.Object, error) {
			return resource.Untyped.Convert(ctx, obj, to)
		},
	}
	manager, err := managedfields.NewDefaultCRDFieldManager(
		types, converter, converter, converter, kind, kind.GroupVersion(), subresource, resetFilter(kind, strategy))
	if err != nil { // only a nil converter makes one
		panic(fmt.Sprintf("rest: field manager of %s: %v", kind, err))
	}
	return manager
}

// untypedConverter is a kindConverter of a kind with several versions.
type untypedConverter struct {
	kindConverter
	convert func(obj runtime.Object, to schema.GroupVersion) (runtime.Object, error)
}

// New implements runtime.ObjectCreater.
func (c *untypedConverter) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	obj := c.create()
	obj.GetObjectKind().SetGroupVersionKind(kind)
	return obj, nil
}

// ConvertToVersion implements runtime.ObjectConvertor.
func (c *untypedConverter) ConvertToVersion(in runtime.Object, target runtime.GroupVersioner) (runtime.Object, error) {
	have := in.GetObjectKind().GroupVersionKind()
	wanted, ok := target.KindForGroupVersionKinds([]schema.GroupVersionKind{have})
	if !ok {
		return nil, runtime.NewNotRegisteredErrForTarget("sampan", nil, target)
	}
	if wanted == have {
		return in, nil
	}
	return c.convert(in.DeepCopyObject(), wanted.GroupVersion())
}
