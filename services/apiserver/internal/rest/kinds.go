package rest

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Kind is the stored resource whose objects are of the kind, nil when there is
// none.
func (e *Engine) Kind(kind schema.GroupVersionKind) *Store {
	for _, s := range e.stores.Load().versions {
		if s.gvk == kind {
			return s
		}
	}
	return nil
}

// Equivalents are the resources that show the same stored objects as resource, in
// other versions or groups, without itself, in a stable order.
func (e *Engine) Equivalents(resource schema.GroupVersionResource) []*Store {
	all := e.stores.Load()
	this := all.versions[resource]
	if this == nil {
		return nil
	}
	var others []*Store
	for _, s := range all.versions {
		if s != this && s.resource.KeyPrefix == this.resource.KeyPrefix {
			others = append(others, s)
		}
	}
	slices.SortFunc(others, func(a, b *Store) int {
		return cmp.Compare(a.resource.GroupVersionResource.String(), b.resource.GroupVersionResource.String())
	})
	return others
}

// ConvertTo is an object of this resource as one of an equivalent resource. The
// object is not changed.
func (s *Store) ConvertTo(other *Store, obj runtime.Object) (runtime.Object, error) {
	obj = obj.DeepCopyObject()
	if s.resource.ToStored != nil {
		stored, err := s.resource.ToStored(obj)
		if err != nil {
			return nil, err
		}
		obj = stored
	}
	return other.served(obj)
}

// Changed is the revision of the newest change of one of the resource's objects;
// 0 for a resource that is not stored.
func (e *Engine) Changed(resource schema.GroupResource) int64 {
	if s := e.Store(resource); s != nil {
		return s.cache.Changed()
	}
	return 0
}
