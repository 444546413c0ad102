package registry

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Definition is a stored kind of type T, such as *corev1.Pod, in typed form.
// Field meanings are those of Resource.
type Definition[T Object] struct {
	GroupVersion schema.GroupVersion
	Resource     string
	Kind         string
	Singular     string
	ShortNames   []string
	Categories   []string
	Namespaced   bool
	Verbs        []string
	New          func() T
	NewList      func() runtime.Object
	KeyPrefix    string
	Fields       func(T) fields.Set
	Indexed      []string
	TTL          func(T) time.Duration
	// ReturnDeleted answers a DELETE with the object that was deleted.
	ReturnDeleted bool
	Strategy      Behaviour[T]
	Columns       []metav1.TableColumnDefinition
	Row           func(T) []any
	RowConditions func(T) []metav1.TableRowCondition // may be nil
	RowOrder      func(a, b T) int                   // may be nil
	Subresources  []Subresource
}

// Behaviour is a Strategy in typed form; field meanings are Strategy's.
type Behaviour[T Object] struct {
	Default                func(T)
	PrepareForCreate       func(ctx context.Context, obj T)
	PrepareForUpdate       func(ctx context.Context, obj, old T)
	Validate               func(ctx context.Context, obj T) field.ErrorList
	ValidateUpdate         func(ctx context.Context, obj, old T) field.ErrorList
	ValidateName           func(name string, prefix bool) []string
	Warnings               func(ctx context.Context, obj, old T) []string // old is nil on create
	Canonicalize           func(T)
	AllowCreateOnUpdate    bool
	RequireVersionOnUpdate bool
	SpecOf                 func(T) any
	GracePeriod            func(ctx context.Context, obj T, options *metav1.DeleteOptions) int64
	MarkDeleted            func(T)
	Held                   func(T) bool
	DefaultPropagation     metav1.DeletionPropagation
	ResetFields            []string
	Begin                  func(ctx context.Context, obj, old T, dryRun bool) (done func(stored bool), err error)
	AfterDelete            func(ctx context.Context, obj T)
}

// Define erases a definition's type. It panics on a definition that misses its
// names or constructors, which is a mistake in the program.
func Define[T Object](d Definition[T]) *Resource {
	if d.Resource == "" || d.Kind == "" || d.Singular == "" || d.New == nil || d.NewList == nil || d.KeyPrefix == "" {
		panic("registry: incomplete definition of " + d.GroupVersion.String() + " " + d.Resource)
	}
	r := &Resource{
		GroupVersionResource: d.GroupVersion.WithResource(d.Resource),
		Kind:                 d.Kind, Singular: d.Singular, ShortNames: d.ShortNames, Categories: d.Categories,
		Namespaced: d.Namespaced, Verbs: d.Verbs,
		New:     func() runtime.Object { return d.New() },
		NewList: d.NewList, KeyPrefix: d.KeyPrefix, StoredVersion: d.GroupVersion, Indexed: d.Indexed,
		ReturnDeleted: d.ReturnDeleted,
		Strategy:      Erase(d.Strategy), Subresources: d.Subresources,
	}
	if d.Fields != nil {
		r.Fields = func(obj runtime.Object) fields.Set { return d.Fields(obj.(T)) }
	}
	if d.TTL != nil {
		r.TTL = func(obj runtime.Object) time.Duration { return d.TTL(obj.(T)) }
	}
	if d.Row != nil {
		r.Table = &Table{Columns: d.Columns, Row: func(obj runtime.Object) []any { return d.Row(obj.(T)) }}
	}
	if d.RowConditions != nil {
		r.Table.Conditions = func(obj runtime.Object) []metav1.TableRowCondition { return d.RowConditions(obj.(T)) }
	}
	if d.RowOrder != nil {
		r.Table.Order = func(a, b runtime.Object) int { return d.RowOrder(a.(T), b.(T)) }
	}
	return r
}

// Erase is a typed behaviour as a Strategy.
func Erase[T Object](b Behaviour[T]) *Strategy {
	s := &Strategy{
		ValidateName:        b.ValidateName,
		AllowCreateOnUpdate: b.AllowCreateOnUpdate, RequireVersionOnUpdate: b.RequireVersionOnUpdate,
		DefaultPropagation: b.DefaultPropagation, ResetFields: b.ResetFields,
		Default:          one(b.Default),
		Canonicalize:     one(b.Canonicalize),
		MarkDeleted:      one(b.MarkDeleted),
		PrepareForCreate: withContext(b.PrepareForCreate),
		AfterDelete:      withContext(b.AfterDelete),
	}
	if b.PrepareForUpdate != nil {
		s.PrepareForUpdate = func(ctx context.Context, obj, old runtime.Object) {
			b.PrepareForUpdate(ctx, obj.(T), old.(T))
		}
	}
	if b.Validate != nil {
		s.Validate = func(ctx context.Context, obj runtime.Object) field.ErrorList { return b.Validate(ctx, obj.(T)) }
	}
	if b.ValidateUpdate != nil {
		s.ValidateUpdate = func(ctx context.Context, obj, old runtime.Object) field.ErrorList {
			return b.ValidateUpdate(ctx, obj.(T), old.(T))
		}
	}
	if b.Warnings != nil {
		s.Warnings = func(ctx context.Context, obj, old runtime.Object) []string {
			return b.Warnings(ctx, obj.(T), orZero[T](old))
		}
	}
	if b.SpecOf != nil {
		s.SpecOf = func(obj runtime.Object) any { return b.SpecOf(obj.(T)) }
	}
	if b.Held != nil {
		s.Held = func(obj runtime.Object) bool { return b.Held(obj.(T)) }
	}
	if b.GracePeriod != nil {
		s.GracePeriod = func(ctx context.Context, obj runtime.Object, options *metav1.DeleteOptions) int64 {
			return b.GracePeriod(ctx, obj.(T), options)
		}
	}
	if b.Begin != nil {
		s.Begin = func(ctx context.Context, obj, old runtime.Object, dryRun bool) (func(bool), error) {
			return b.Begin(ctx, obj.(T), orZero[T](old), dryRun)
		}
	}
	return s
}

func one[T Object](f func(T)) func(runtime.Object) {
	if f == nil {
		return nil
	}
	return func(obj runtime.Object) { f(obj.(T)) }
}

func withContext[T Object](f func(context.Context, T)) func(context.Context, runtime.Object) {
	if f == nil {
		return nil
	}
	return func(ctx context.Context, obj runtime.Object) { f(ctx, obj.(T)) }
}

func orZero[T Object](obj runtime.Object) T {
	t, _ := obj.(T)
	return t
}
