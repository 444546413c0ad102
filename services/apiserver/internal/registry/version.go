package registry

import (
	"context"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Version describes another version of a stored resource.
type Version struct {
	GroupVersion schema.GroupVersion
	New, NewList func() runtime.Object
	// ToStored and FromStored convert to and from the version of the resource that
	// is stored. They must not change what they are given, nor fail on what clients
	// can send.
	ToStored, FromStored func(obj runtime.Object) (runtime.Object, error)
	Default              func(obj runtime.Object)
	// ResetFields are those of the status subresource and of the resource itself.
	ResetFields, StatusResetFields []string
}

// InVersion is stored, a resource that is served as it is stored, in another
// version. What its strategies do they do to the stored version of an object, so
// that the paths in errors are that version's too, as upstream's.
func InVersion(stored *Resource, v Version) *Resource {
	r := *stored
	r.GroupVersionResource = v.GroupVersion.WithResource(stored.Resource)
	r.New, r.NewList = v.New, v.NewList
	r.StoredVersion = stored.StoredVersion
	r.ToStored = func(_ context.Context, obj runtime.Object) (runtime.Object, error) { return v.ToStored(obj) }
	r.FromStored = func(_ context.Context, obj runtime.Object) (runtime.Object, error) { return v.FromStored(obj) }
	r.Strategy = v.strategy(stored.Strategy, v.ResetFields)
	if stored.Fields != nil {
		r.Fields = func(obj runtime.Object) fields.Set { return stored.Fields(v.stored(obj)) }
	}
	if stored.Table != nil {
		r.Table = &Table{Columns: stored.Table.Columns, Row: func(obj runtime.Object) []any { return stored.Table.Row(v.stored(obj)) }}
	}
	r.Subresources = nil
	for _, sub := range stored.Subresources {
		if sub.Update != nil {
			sub.Update = v.strategy(sub.Update, v.StatusResetFields)
		}
		r.Subresources = append(r.Subresources, sub)
	}
	return &r
}

// stored is an object of either version in the stored one.
func (v Version) stored(obj runtime.Object) runtime.Object {
	if obj == nil || reflect.TypeOf(obj) != reflect.TypeOf(v.New()) {
		return obj
	}
	out, err := v.ToStored(obj)
	if err != nil {
		return obj
	}
	return out
}

// through changes an object by way of its stored version.
func (v Version) through(obj runtime.Object, change func(stored runtime.Object)) {
	stored := v.stored(obj)
	change(stored)
	back, err := v.FromStored(stored)
	if err != nil {
		return
	}
	kind := obj.GetObjectKind().GroupVersionKind()
	reflect.ValueOf(obj).Elem().Set(reflect.ValueOf(back).Elem())
	obj.GetObjectKind().SetGroupVersionKind(kind)
}

func (v Version) strategy(main *Strategy, resetFields []string) *Strategy {
	s := *main
	s.Default, s.ResetFields = v.Default, resetFields
	if main.PrepareForCreate != nil {
		s.PrepareForCreate = func(ctx context.Context, obj runtime.Object) {
			v.through(obj, func(stored runtime.Object) { main.PrepareForCreate(ctx, stored) })
		}
	}
	if main.PrepareForUpdate != nil {
		s.PrepareForUpdate = func(ctx context.Context, obj, old runtime.Object) {
			v.through(obj, func(stored runtime.Object) { main.PrepareForUpdate(ctx, stored, v.stored(old)) })
		}
	}
	if main.Validate != nil {
		s.Validate = func(ctx context.Context, obj runtime.Object) field.ErrorList {
			return main.Validate(ctx, v.stored(obj))
		}
	}
	if main.ValidateUpdate != nil {
		s.ValidateUpdate = func(ctx context.Context, obj, old runtime.Object) field.ErrorList {
			return main.ValidateUpdate(ctx, v.stored(obj), v.stored(old))
		}
	}
	if main.Warnings != nil {
		s.Warnings = func(ctx context.Context, obj, old runtime.Object) []string {
			return main.Warnings(ctx, v.stored(obj), v.stored(old))
		}
	}
	if main.Canonicalize != nil {
		s.Canonicalize = func(obj runtime.Object) { v.through(obj, main.Canonicalize) }
	}
	if main.MarkDeleted != nil {
		s.MarkDeleted = func(obj runtime.Object) { v.through(obj, main.MarkDeleted) }
	}
	if main.SpecOf != nil {
		s.SpecOf = func(obj runtime.Object) any { return main.SpecOf(v.stored(obj)) }
	}
	if main.Held != nil {
		s.Held = func(obj runtime.Object) bool { return main.Held(v.stored(obj)) }
	}
	if main.GracePeriod != nil {
		s.GracePeriod = func(ctx context.Context, obj runtime.Object, options *metav1.DeleteOptions) int64 {
			return main.GracePeriod(ctx, v.stored(obj), options)
		}
	}
	if main.AfterDelete != nil {
		s.AfterDelete = func(ctx context.Context, obj runtime.Object) { main.AfterDelete(ctx, v.stored(obj)) }
	}
	return &s
}
