package rest

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
)

// Kind is the stored resource whose objects are of the kind, nil when there is
// none.
func (e *Engine) Kind(kind schema.GroupVersionKind) *Store {
	return e.stores.Load().index().kinds[kind]
}

// Equivalents are the resources that show the same stored objects as resource, in
// other versions or groups, without itself, in a stable order.
func (e *Engine) Equivalents(resource schema.GroupVersionResource) []*Store {
	all := e.stores.Load()
	this := all.versions[resource]
	if this == nil {
		return nil
	}
	shared := all.index().shared[this.resource.KeyPrefix]
	if len(shared) == 1 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(shared), func(s *Store) bool { return s == this })
}

// ConvertTo is an object of this resource as one of an equivalent resource. The
// object is not changed.
func (s *Store) ConvertTo(ctx context.Context, other *Store, obj runtime.Object) (runtime.Object, error) {
	obj = obj.DeepCopyObject()
	if s.resource.ToStored != nil {
		stored, err := s.resource.ToStored(ctx, obj)
		if err != nil {
			return nil, err
		}
		obj = stored
	}
	return other.served(ctx, obj)
}

// Changed is the revision of the newest change of one of the resource's objects;
// 0 for a resource that is not stored.
func (e *Engine) Changed(resource schema.GroupResource) int64 {
	if s := e.Store(resource); s != nil {
		return s.cache.Changed()
	}
	return 0
}

// Read is an object in the resource's version. It is shared and must not be
// changed.
func (s *Store) Read(ctx context.Context, namespace, name string) (runtime.Object, error) {
	o, err := s.cache.Get(ctx, namespace, name, watch.Versions{})
	if err != nil {
		return nil, s.statusError(err, name)
	}
	return s.shared(ctx, o)
}

// ReadAll are the objects that a selector chooses, in the resource's version. They
// are shared and must not be changed.
func (s *Store) ReadAll(ctx context.Context, namespace string, selector labels.Selector) ([]runtime.Object, error) {
	list, err := s.cache.List(ctx, watch.ListOptions{Namespace: namespace, Labels: selector})
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

// Types converts objects of the kind for structured merges.
func (s *Store) Types() managedfields.TypeConverter { return s.managers.types }
