// Package ownership decides which objects belong to a controlling object, by
// controller reference and selector, and adopts or releases where they disagree.
package ownership

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// Claims sorts objects of one kind by what a controlling object has to do with
// them.
type Claims[T metav1.Object] struct {
	Owned   []T // controlled already, and selected
	Adopt   []T // selected, without a controller
	Release []T // controlled, but not selected any more
}

// Sort decides which of objects belong to owner. An owner that is being deleted
// neither adopts nor releases, and objects that are being deleted are not
// adopted.
func Sort[T metav1.Object](owner metav1.Object, selector labels.Selector, objects []T) Claims[T] {
	var claims Claims[T]
	for _, object := range objects {
		ref := metav1.GetControllerOfNoCopy(object)
		selected := selector.Matches(labels.Set(object.GetLabels()))
		switch {
		case ref != nil && ref.UID != owner.GetUID():
		case ref != nil && selected:
			claims.Owned = append(claims.Owned, object)
		case ref != nil:
			if owner.GetDeletionTimestamp() == nil {
				claims.Release = append(claims.Release, object)
			}
		case selected && owner.GetDeletionTimestamp() == nil && object.GetDeletionTimestamp() == nil && object.GetNamespace() == owner.GetNamespace():
			claims.Adopt = append(claims.Adopt, object)
		}
	}
	return claims
}

// Patcher applies a strategic merge patch to one object.
type Patcher func(ctx context.Context, name string, patch []byte) error

// Settle carries out claims and returns what owner controls afterwards. Before
// the first adoption it asks recheck, which reads owner from the API, whether
// owner is still there and not being deleted: a stale cache must not adopt.
func Settle[T metav1.Object](ctx context.Context, claims Claims[T], ref metav1.OwnerReference, recheck func(ctx context.Context) error, patch Patcher) ([]T, error) {
	owned := claims.Owned
	var errs []error
	if len(claims.Adopt) > 0 {
		if err := recheck(ctx); err != nil {
			return owned, fmt.Errorf("cannot adopt for %s: %w", ref.Name, err)
		}
	}
	for _, object := range claims.Adopt {
		body, err := adoptPatch(ref, object.GetUID())
		if err == nil {
			err = patch(ctx, object.GetName(), body)
		}
		switch {
		case err == nil:
			owned = append(owned, object)
		case !apierrors.IsNotFound(err):
			errs = append(errs, fmt.Errorf("adopting %s: %w", object.GetName(), err))
		}
	}
	for _, object := range claims.Release {
		body, err := releasePatch(ref.UID, object.GetUID())
		if err == nil {
			err = patch(ctx, object.GetName(), body)
		}
		// Invalid: the object is another one of that name, or has no such owner.
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsInvalid(err) {
			errs = append(errs, fmt.Errorf("releasing %s: %w", object.GetName(), err))
		}
	}
	return owned, errors.Join(errs...)
}

type patchMeta struct {
	UID             types.UID `json:"uid"`
	OwnerReferences []any     `json:"ownerReferences"`
}

func adoptPatch(ref metav1.OwnerReference, uid types.UID) ([]byte, error) {
	return json.Marshal(map[string]any{"metadata": patchMeta{UID: uid, OwnerReferences: []any{ref}}})
}

func releasePatch(owner, uid types.UID) ([]byte, error) {
	drop := map[string]any{"$patch": "delete", "uid": owner}
	return json.Marshal(map[string]any{"metadata": patchMeta{UID: uid, OwnerReferences: []any{drop}}})
}

// Recheck makes the check that Settle wants from a live read of the owner.
func Recheck(uid types.UID, read func(ctx context.Context) (metav1.Object, error)) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		fresh, err := read(ctx)
		switch {
		case err != nil:
			return err
		case fresh.GetUID() != uid:
			return fmt.Errorf("another object has its name now: UID %s, wanted %s", fresh.GetUID(), uid)
		case fresh.GetDeletionTimestamp() != nil:
			return fmt.Errorf("it is being deleted since %s", fresh.GetDeletionTimestamp())
		}
		return nil
	}
}
