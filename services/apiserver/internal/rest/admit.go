package rest

import (
	"context"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
)

// View is another form of the object in which admission sees an update, such as
// its scale.
type View struct {
	Kind        schema.GroupVersionKind
	Subresource string
	// Of is the form of an object.
	Of func(obj runtime.Object) (runtime.Object, error)
	// Apply changes obj by what a mutator has changed of its form.
	Apply func(form, obj runtime.Object)
}

// attributes are what admission sees of a write.
func (s *Store) attributes(ctx context.Context, op admission.Operation, subresource, namespace, name string, w Write) *admission.Attributes {
	return &admission.Attributes{
		Operation: op, Kind: s.gvk, Resource: s.resource.GroupVersionResource, Subresource: subresource,
		Namespace: namespace, Name: name, Options: optionsFor(op, w.Options), DryRun: w.DryRun, User: request.UserFrom(ctx),
		Settle: s.settle,
	}
}

// settle makes an object that admission has changed what the kind wants.
func (s *Store) settle(obj runtime.Object) error {
	if s.resource.Untyped != nil {
		if _, err := s.resource.Untyped.Coerce(obj, false); err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
	}
	obj.GetObjectKind().SetGroupVersionKind(s.gvk)
	defaultObject(s.resource.Strategy, obj)
	return nil
}

// optionsFor are the options of a request as those of the operation that it
// became: a patch updates or creates, and an update may create.
func optionsFor(op admission.Operation, options runtime.Object) runtime.Object {
	if options == nil || reflect.ValueOf(options).IsNil() {
		return options
	}
	var dryRun []string
	var manager, validation string
	switch o := options.(type) {
	case *metav1.PatchOptions:
		dryRun, manager, validation = o.DryRun, o.FieldManager, o.FieldValidation
	case *metav1.UpdateOptions:
		dryRun, manager, validation = o.DryRun, o.FieldManager, o.FieldValidation
	default:
		return options
	}
	if op == admission.Create {
		return &metav1.CreateOptions{
			TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "CreateOptions"}, DryRun: dryRun, FieldManager: manager, FieldValidation: validation,
		}
	}
	return &metav1.UpdateOptions{
		TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "UpdateOptions"}, DryRun: dryRun, FieldManager: manager, FieldValidation: validation,
	}
}

// admit runs the mutators, and defaults again what they left.
func (u *update) admit(ctx context.Context, op admission.Operation, obj, old registry.Object) error {
	a, err := u.attributes(ctx, op, obj, old)
	if err != nil {
		return err
	}
	if err := u.store.admission.Admit(ctx, a); err != nil {
		return err
	}
	if u.target.View != nil {
		u.target.View.Apply(a.Object, obj)
	}
	defaultObject(u.store.resource.Strategy, obj)
	if err := u.store.matchNamespace(obj, u.target.Namespace); err != nil {
		return err
	}
	request.AddWarning(ctx, uniqueOwners(obj))
	return nil
}

func (u *update) attributes(ctx context.Context, op admission.Operation, obj, old registry.Object) (*admission.Attributes, error) {
	a := u.store.attributes(ctx, op, u.target.Subresource, u.store.admissionNamespace(obj), u.target.Name, u.write)
	view := u.target.View
	if view == nil {
		a.Object = obj
		if old != nil {
			a.OldObject = old
		}
		return a, nil
	}
	a.Kind, a.Subresource, a.Settle = view.Kind, view.Subresource, nil
	var err error
	if a.Object, err = view.Of(obj); err != nil {
		return nil, err
	}
	a.OldObject, err = view.Of(old)
	return a, err
}
