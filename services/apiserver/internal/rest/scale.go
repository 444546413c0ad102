package rest

import (
	"context"
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

var scaleKind = autoscalingv1.SchemeGroupVersion.WithKind("Scale")

func newScale() runtime.Object { return &autoscalingv1.Scale{} }

// Scaler is the scale subresource of a stored resource.
type Scaler struct {
	store *Store
	scale *registry.Scale
	name  string
}

// Scaler is the scale subresource, nil when the resource has none.
func (s *Store) Scaler() *Scaler {
	for i := range s.resource.Subresources {
		if sub := &s.resource.Subresources[i]; sub.Scale != nil {
			return &Scaler{store: s, scale: sub.Scale, name: sub.Name}
		}
	}
	return nil
}

// Get reads the scale of an object.
func (c *Scaler) Get(ctx context.Context, namespace, name string) (*autoscalingv1.Scale, error) {
	obj, err := c.store.Get(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	return c.of(obj)
}

func (c *Scaler) of(obj runtime.Object) (*autoscalingv1.Scale, error) {
	o, err := asObject(obj)
	if err != nil {
		return nil, err
	}
	if c.scale.Check != nil {
		if err := c.scale.Check(obj); err != nil {
			return nil, err
		}
	}
	spec, status := c.scale.Replicas(obj)
	s := &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{
			Name: o.GetName(), Namespace: o.GetNamespace(), UID: o.GetUID(),
			ResourceVersion: o.GetResourceVersion(), CreationTimestamp: o.GetCreationTimestamp(),
		},
		Spec:   autoscalingv1.ScaleSpec{Replicas: spec},
		Status: autoscalingv1.ScaleStatus{Replicas: status, Selector: c.scale.Selector(obj)},
	}
	s.SetGroupVersionKind(scaleKind)
	return s, nil
}

// Update changes an object through its scale. Change gets the current scale.
func (c *Scaler) Update(ctx context.Context, namespace, name string, w Write, change Change) (*autoscalingv1.Scale, error) {
	return c.run(ctx, namespace, name, w, func(ctx context.Context, current *autoscalingv1.Scale) (runtime.Object, error) {
		changed, err := change(ctx, current.DeepCopy())
		if err != nil {
			return nil, err
		}
		changed.GetObjectKind().SetGroupVersionKind(scaleKind)
		return c.store.managers.scale.UpdateNoErrors(current, changed, w.Manager), nil
	})
}

// Apply is server-side apply of a Scale.
func (c *Scaler) Apply(ctx context.Context, namespace, name string, w Write, patch *unstructured.Unstructured, force bool) (*autoscalingv1.Scale, error) {
	return c.run(ctx, namespace, name, w, func(_ context.Context, current *autoscalingv1.Scale) (runtime.Object, error) {
		obj, err := c.store.managers.scale.Apply(current, patch.DeepCopy(), w.Manager, force)
		return obj, applyError(err)
	})
}

func (c *Scaler) run(ctx context.Context, namespace, name string, w Write, change func(context.Context, *autoscalingv1.Scale) (runtime.Object, error)) (*autoscalingv1.Scale, error) {
	target := Target{Namespace: namespace, Name: name, Subresource: "", Tracked: true, View: c.view()}
	result, err := c.store.Update(ctx, target, w, func(ctx context.Context, current runtime.Object) (runtime.Object, error) {
		if current == nil {
			return nil, apierrors.NewNotFound(c.store.group, name)
		}
		return c.changed(ctx, current, name, change)
	})
	if err != nil {
		return nil, err
	}
	obj, err := result.Decode()
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if result.Stored != nil {
		if obj, err = c.store.served(ctx, obj); err != nil {
			return nil, err
		}
	}
	return c.of(obj)
}

// view is the scale as admission sees it.
func (c *Scaler) view() *View {
	return &View{
		Kind: scaleKind, Subresource: c.name,
		Of: func(obj runtime.Object) (runtime.Object, error) { return c.of(obj) },
		Apply: func(form, obj runtime.Object) {
			if scale, ok := form.(*autoscalingv1.Scale); ok {
				c.scale.SetReplicas(obj, scale.Spec.Replicas)
			}
		},
	}
}

// changed is the parent with the replicas of the changed scale, and with the
// managers of the scale's fields as those of the parent's.
func (c *Scaler) changed(ctx context.Context, current runtime.Object, name string, change func(context.Context, *autoscalingv1.Scale) (runtime.Object, error)) (runtime.Object, error) {
	obj, err := asObject(current.DeepCopyObject())
	if err != nil {
		return nil, err
	}
	scale, err := c.of(obj)
	if err != nil {
		return nil, err
	}
	version := c.store.resource.GroupVersion()
	handler := managedfields.NewScaleHandler(obj.GetManagedFields(), version, c.replicasPaths(version))
	if entries, err := handler.ToSubresource(); err == nil {
		scale.ManagedFields = entries
	}
	changed, err := change(ctx, scale)
	if err != nil {
		return nil, err
	}
	wanted, ok := changed.(*autoscalingv1.Scale)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("expected a Scale, not a %T", changed))
	}
	if err := c.check(wanted, scale, name); err != nil {
		return nil, err
	}
	if entries, err := handler.ToParent(wanted.ManagedFields); err == nil {
		obj.SetManagedFields(entries)
	}
	obj.SetResourceVersion(wanted.ResourceVersion)
	if wanted.UID != "" {
		obj.SetUID(wanted.UID)
	}
	c.scale.SetReplicas(obj, wanted.Spec.Replicas)
	return obj, nil
}

// replicasPaths is where the kind keeps its replicas.
func (c *Scaler) replicasPaths(version schema.GroupVersion) managedfields.ResourcePathMappings {
	if untyped := c.store.resource.Untyped; untyped != nil {
		return untyped.ReplicasPaths
	}
	return managedfields.ResourcePathMappings{version.String(): fieldpath.MakePathOrDie("spec", "replicas")}
}

func (c *Scaler) check(wanted, current *autoscalingv1.Scale, name string) error {
	if err := matchName(wanted, name); err != nil {
		return err
	}
	if err := MatchNamespace(wanted, current.Namespace); err != nil {
		return err
	}
	if wanted.Spec.Replicas < 0 {
		return apierrors.NewInvalid(scaleKind.GroupKind(), name, field.ErrorList{
			field.Invalid(field.NewPath("spec", "replicas"), wanted.Spec.Replicas, "must be greater than or equal to 0"),
		})
	}
	return nil
}
