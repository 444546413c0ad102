package rest

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// Apply merges an applied configuration into an object, or creates it. Fields
// that others manage are a 409 with a cause each, unless force takes them over.
func (s *Store) Apply(ctx context.Context, target Target, w Write, patch *unstructured.Unstructured, force bool) (Result, error) {
	if w.Options == nil {
		w.Options = &metav1.PatchOptions{}
	}
	target.Create, target.Tracked = target.Subresource == "", true
	return s.Update(ctx, target, w, func(_ context.Context, current runtime.Object) (runtime.Object, error) {
		if current == nil {
			current = s.resource.New()
			current.GetObjectKind().SetGroupVersionKind(s.gvk)
		} else {
			current = current.DeepCopyObject() // the merge may return it
		}
		obj, err := s.managers.apply(ctx, target.Subresource, current, patch.DeepCopy(), w.Manager, force)
		return obj, applyError(err)
	})
}

// applyError is a 400 for a configuration that does not fit the kind's schema,
// which the merge reports as a plain error.
func applyError(err error) error {
	var status apierrors.APIStatus
	if err == nil || errors.As(err, &status) {
		return err
	}
	return apierrors.NewBadRequest(err.Error())
}
