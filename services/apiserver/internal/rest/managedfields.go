package rest

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/applyconfigurations"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/scheme"
)

// lazyTypes compiles schemas when the first write needs them: that takes tens of
// milliseconds, which must not stand before readiness.
type lazyTypes struct {
	load func() (managedfields.TypeConverter, error)
}

func newLazyTypes(load func() (managedfields.TypeConverter, error)) *lazyTypes {
	return &lazyTypes{load: sync.OnceValues(load)}
}

// builtInTypes are client-go's schemas.
func builtInTypes() (managedfields.TypeConverter, error) {
	return applyconfigurations.NewTypeConverter(scheme.Scheme), nil
}

func (l *lazyTypes) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	types, err := l.load()
	if err != nil {
		return nil, err
	}
	return types.ObjectToTyped(obj, opts...)
}

func (l *lazyTypes) TypedToObject(value *typed.TypedValue) (runtime.Object, error) {
	types, err := l.load()
	if err != nil {
		return nil, err
	}
	return types.TypedToObject(value)
}

// managers are the field managers of one resource, one per subresource.
type managers struct {
	bySubresource map[string]*managedfields.FieldManager
	scale         *managedfields.FieldManager // of the scale subresource's own kind
	types         managedfields.TypeConverter
	// within makes the manager of a subresource for one request, where another program
	// converts between versions: it waits no longer than the request. Nil elsewhere.
	within func(ctx context.Context, subresource string) *managedfields.FieldManager
}

// of is the field manager of a subresource, for a request.
func (m *managers) of(ctx context.Context, subresource string) *managedfields.FieldManager {
	if m.within != nil {
		return m.within(ctx, subresource)
	}
	return m.bySubresource[subresource]
}

// newManagers makes the field managers of a resource. Versions are all resources
// that show the same stored objects, itself included.
func newManagers(resource *registry.Resource, versions []*registry.Resource, converter *lazyTypes) *managers {
	if resource.Untyped != nil {
		return newUntypedManagers(resource)
	}
	if resource.Types != nil {
		converter = newLazyTypes(resource.Types)
	}
	m := &managers{bySubresource: map[string]*managedfields.FieldManager{}, types: converter}
	kind := resource.GroupVersion().WithKind(resource.Kind)
	main := &kindConverter{kind: kind, create: resource.New, strategy: resource.Strategy, versions: versions}
	m.bySubresource[""] = newManager(converter, main, "", resource.Strategy)
	for _, sub := range resource.Subresources {
		switch {
		case sub.Update != nil:
			view := &kindConverter{kind: kind, create: resource.New, strategy: sub.Update, versions: versions}
			m.bySubresource[sub.Name] = newManager(converter, view, sub.Name, sub.Update)
		case sub.Scale != nil:
			m.scale = newScaleManager(sub.Name)
		}
	}
	return m
}

// newScaleManager deduces the fields of a Scale, for which client-go has no
// schema.
func newScaleManager(subresource string) *managedfields.FieldManager {
	return newManager(managedfields.NewDeducedTypeConverter(), &kindConverter{kind: scaleKind, create: newScale}, subresource, nil)
}

func newManager(converter managedfields.TypeConverter, kind *kindConverter, subresource string, strategy *registry.Strategy) *managedfields.FieldManager {
	manager, err := managedfields.NewDefaultFieldManager(
		converter, kind, kind, kind, kind.kind, kind.kind.GroupVersion(), subresource, resetFilter(kind.kind, strategy))
	if err != nil { // only a nil converter makes one
		panic(fmt.Sprintf("rest: field manager of %s: %v", kind.kind, err))
	}
	return manager
}

// resetFilter leaves out the fields that the strategy resets on every write.
func resetFilter(kind schema.GroupVersionKind, strategy *registry.Strategy) map[fieldpath.APIVersion]fieldpath.Filter {
	if strategy == nil || len(strategy.ResetFields) == 0 {
		return nil
	}
	set := fieldpath.NewSet()
	for _, field := range strategy.ResetFields {
		var path fieldpath.Path
		for _, name := range strings.Split(field, ".") {
			path = append(path, fieldpath.PathElement{FieldName: &name})
		}
		set.Insert(path)
	}
	return fieldpath.NewExcludeFilterSetMap(map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(kind.GroupVersion().String()): set,
	})
}

// track writes into obj who manages its fields after manager has changed old to
// it. Old is an empty object on create.
func (m *managers) track(ctx context.Context, subresource string, old, obj runtime.Object, manager string) runtime.Object {
	return m.of(ctx, subresource).UpdateNoErrors(old, obj, manager)
}

// apply merges an applied configuration into current.
func (m *managers) apply(ctx context.Context, subresource string, current runtime.Object, patch *unstructured.Unstructured, manager string, force bool) (runtime.Object, error) {
	return m.of(ctx, subresource).Apply(current, patch, manager, force)
}

// kindConverter is what a field manager needs to know of one kind and its other
// versions. Entries of versions that are not served are dropped.
type kindConverter struct {
	kind     schema.GroupVersionKind
	create   func() runtime.Object
	strategy *registry.Strategy
	versions []*registry.Resource // none for a kind that has one
}

// New implements runtime.ObjectCreater.
func (c *kindConverter) New(schema.GroupVersionKind) (runtime.Object, error) {
	obj := c.create()
	obj.GetObjectKind().SetGroupVersionKind(c.kind)
	return obj, nil
}

// Default implements runtime.ObjectDefaulter.
func (c *kindConverter) Default(obj runtime.Object) { defaultObject(c.strategy, obj) }

// ConvertToVersion implements runtime.ObjectConvertor.
func (c *kindConverter) ConvertToVersion(in runtime.Object, target runtime.GroupVersioner) (runtime.Object, error) {
	have := in.GetObjectKind().GroupVersionKind()
	if have.Empty() {
		have = c.kind
	}
	known := []schema.GroupVersionKind{c.kind}
	for _, version := range c.versions {
		known = append(known, version.GroupVersion().WithKind(version.Kind))
	}
	wanted, ok := target.KindForGroupVersionKinds(known)
	if !ok || !slices.Contains(known, wanted) {
		return nil, runtime.NewNotRegisteredErrForTarget("sampan", nil, target)
	}
	if u, ok := in.(*unstructured.Unstructured); ok {
		obj := c.newOf(have)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, obj); err != nil {
			return nil, fmt.Errorf("reading %s: %w", c.kind.Kind, err)
		}
		in = obj
	}
	if wanted != have {
		converted, err := c.convert(in, have, wanted)
		if err != nil {
			return nil, err
		}
		in = converted
	}
	in.GetObjectKind().SetGroupVersionKind(wanted)
	return in, nil
}

// version is the resource of a kind, nil when it has no other versions.
func (c *kindConverter) version(kind schema.GroupVersionKind) *registry.Resource {
	for _, version := range c.versions {
		if version.GroupVersion().WithKind(version.Kind) == kind {
			return version
		}
	}
	return nil
}

func (c *kindConverter) newOf(kind schema.GroupVersionKind) runtime.Object {
	if version := c.version(kind); version != nil {
		return version.New()
	}
	return c.create()
}

// convert goes by way of the stored version. The object is taken over.
func (c *kindConverter) convert(obj runtime.Object, from, to schema.GroupVersionKind) (runtime.Object, error) {
	source, destination := c.version(from), c.version(to)
	if source == nil || destination == nil {
		return nil, runtime.NewNotRegisteredErrForKind("sampan", from)
	}
	for _, step := range []func(context.Context, runtime.Object) (runtime.Object, error){source.ToStored, destination.FromStored} {
		if step == nil {
			continue
		}
		converted, err := step(context.Background(), obj)
		if err != nil {
			return nil, fmt.Errorf("converting %s: %w", from, err)
		}
		obj = converted
	}
	return obj, nil
}

// Convert implements runtime.ObjectConvertor; field managers do not call it.
func (c *kindConverter) Convert(in, _, _ interface{}) error {
	return fmt.Errorf("converting %T is not supported", in)
}

// ConvertFieldLabel implements runtime.ObjectConvertor; field managers do not
// call it.
func (c *kindConverter) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

// sameManagers says whether the entries differ in their times at most.
func sameManagers(a, b []metav1.ManagedFieldsEntry) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		x, y := &a[i], &b[i]
		if x.Manager != y.Manager || x.Operation != y.Operation || x.APIVersion != y.APIVersion ||
			x.FieldsType != y.FieldsType || x.Subresource != y.Subresource {
			return false
		}
		if (x.FieldsV1 == nil) != (y.FieldsV1 == nil) {
			return false
		}
		if x.FieldsV1 != nil && !bytes.Equal(x.FieldsV1.GetRawBytes(), y.FieldsV1.GetRawBytes()) {
			return false
		}
	}
	return true
}
