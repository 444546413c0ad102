package rest

import (
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
	m.bySubresource[""] = newUntypedManager(resource, types, "", resource.Strategy)
	for _, sub := range resource.Subresources {
		switch {
		case sub.Update != nil:
			m.bySubresource[sub.Name] = newUntypedManager(resource, types, sub.Name, sub.Update)
		case sub.Scale != nil:
			m.scale = newScaleManager(sub.Name)
		}
	}
	return m
}

func newUntypedManager(resource *registry.Resource, types managedfields.TypeConverter, subresource string, strategy *registry.Strategy) *managedfields.FieldManager {
	kind := resource.GroupVersion().WithKind(resource.Kind)
	converter := &untypedConverter{
		kindConverter: kindConverter{kind: kind, create: resource.New, strategy: resource.Strategy}, convert: resource.Untyped.Convert,
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
