package rest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
)

// Deletion is the outcome of a delete.
type Deletion struct {
	// Result is the object: its last state when it has gone, else as it is now.
	Result
	// Gone says that the object is deleted, not only marked.
	Gone bool
}

// Delete deletes an object, or marks it as deleted when finalizers or a grace
// period hold it. Options must have been validated.
func (s *Store) Delete(ctx context.Context, namespace, name string, options *metav1.DeleteOptions, w Write) (Deletion, error) {
	w.Options = options
	for {
		deletion, err := s.deleteOnce(ctx, namespace, name, options, w)
		if !errors.Is(err, errRetry) {
			return deletion, err
		}
		if ctx.Err() != nil {
			return Deletion{}, s.statusError(ctx.Err(), name)
		}
	}
}

func (s *Store) deleteOnce(ctx context.Context, namespace, name string, options *metav1.DeleteOptions, w Write) (Deletion, error) {
	current, err := s.cache.Get(ctx, namespace, name, watch.Versions{})
	if err != nil {
		return Deletion{}, s.statusError(err, name)
	}
	old, err := s.decodeObject(ctx, current)
	if err != nil {
		return Deletion{}, err
	}
	if err := s.deletePreconditions(old, options); err != nil {
		return Deletion{}, err
	}
	if err := s.admitDelete(ctx, old, w); err != nil {
		return Deletion{}, err
	}
	obj := old.DeepCopyObject().(registry.Object)
	switch s.markDeleted(ctx, obj, options) {
	case alreadyDeleting:
		return Deletion{Result: Result{Stored: current}}, nil
	case holdObject:
		return s.storeMarked(ctx, current, obj, old, w)
	}
	if w.DryRun {
		return Deletion{Result: Result{Object: obj}, Gone: true}, nil
	}
	removed, err := s.remove(ctx, current, obj)
	if err != nil {
		return Deletion{}, s.retryable(err, name)
	}
	return Deletion{Result: Result{Stored: removed}, Gone: true}, nil
}

func (s *Store) deletePreconditions(obj registry.Object, options *metav1.DeleteOptions) error {
	p := options.Preconditions
	if p == nil {
		return nil
	}
	resource := schema.GroupResource{Group: s.gvk.Group, Resource: s.gvk.Kind}
	if p.UID != nil && *p.UID != obj.GetUID() {
		return apierrors.NewConflict(resource, obj.GetName(), fmt.Errorf("the UID in the precondition (%s) does not match the UID in record (%s). The object might have been deleted and then recreated", *p.UID, obj.GetUID()))
	}
	if p.ResourceVersion != nil && *p.ResourceVersion != obj.GetResourceVersion() {
		return apierrors.NewConflict(resource, obj.GetName(), fmt.Errorf("the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). The object might have been modified", *p.ResourceVersion, obj.GetResourceVersion()))
	}
	return nil
}

func (s *Store) admitDelete(ctx context.Context, old registry.Object, w Write) error {
	a := s.attributes(ctx, admission.Delete, "", s.admissionNamespace(old), old.GetName(), w)
	a.OldObject = old
	if err := s.admission.Admit(ctx, a); err != nil {
		return err
	}
	return s.admission.Validate(ctx, a)
}

// verdict is what becomes of an object that is being deleted.
type verdict uint8

const (
	removeObject    verdict = iota // it goes at once
	holdObject                     // it is stored as marked
	alreadyDeleting                // nothing changes
)

// markDeleted marks the object and says what becomes of it.
func (s *Store) markDeleted(ctx context.Context, obj registry.Object, options *metav1.DeleteOptions) verdict {
	graceful, pending := s.markGraceful(ctx, obj, options)
	if pending {
		return alreadyDeleting
	}
	finalizers := s.deletionFinalizers(obj, options)
	changed := !sameSet(finalizers, obj.GetFinalizers())
	if changed {
		obj.SetFinalizers(finalizers)
	}
	holding := len(finalizers) > 0 || s.held(obj)
	if !graceful && !holding {
		return removeObject
	}
	if graceful && !holding && *obj.GetDeletionGracePeriodSeconds() == 0 {
		return removeObject
	}
	if !graceful && !s.markHeld(obj, changed) {
		return alreadyDeleting
	}
	if strategy := s.strategy(""); strategy.MarkDeleted != nil {
		strategy.MarkDeleted(obj)
	}
	return holdObject
}

// markHeld marks an object that goes without grace but is held, and says whether
// that changes it.
func (s *Store) markHeld(obj registry.Object, changed bool) bool {
	grace := obj.GetDeletionGracePeriodSeconds()
	if !changed && obj.GetDeletionTimestamp() != nil && (grace == nil || *grace == 0) {
		return false
	}
	markNow(obj)
	if s.strategy("").Held != nil {
		obj.SetDeletionGracePeriodSeconds(nil) // as upstream's namespaces, which know no grace
	}
	return true
}

// markGraceful sets the deletion time of a kind with graceful deletion. Pending
// says that the object is being deleted already, and not later than asked for.
func (s *Store) markGraceful(ctx context.Context, obj registry.Object, options *metav1.DeleteOptions) (graceful, pending bool) {
	strategy := s.strategy("")
	if strategy.GracePeriod == nil {
		return false, false
	}
	if obj.GetDeletionTimestamp() != nil {
		return shortenGrace(obj, options)
	}
	seconds := strategy.GracePeriod(ctx, obj, options)
	if seconds < 0 {
		seconds = 1
	}
	at := metav1.NewTime(time.Now().Add(time.Duration(seconds) * time.Second))
	obj.SetDeletionTimestamp(&at)
	obj.SetDeletionGracePeriodSeconds(&seconds)
	if obj.GetGeneration() > 0 {
		obj.SetGeneration(obj.GetGeneration() + 1)
	}
	return true, false
}

// shortenGrace moves the end of a grace period that has begun: it can only
// become shorter.
func shortenGrace(obj registry.Object, options *metav1.DeleteOptions) (graceful, pending bool) {
	have := obj.GetDeletionGracePeriodSeconds()
	if have == nil || *have == 0 {
		return false, false
	}
	if options.GracePeriodSeconds == nil {
		return false, true
	}
	seconds := *options.GracePeriodSeconds
	if seconds < 0 {
		seconds = 1
	}
	if seconds >= *have {
		return false, true
	}
	at := obj.GetDeletionTimestamp().Add(time.Duration(seconds-*have) * time.Second)
	if now := time.Now(); at.Before(now) {
		at = now
		if seconds != 0 {
			seconds = 1 // still graceful: the node confirms the end
		}
	}
	end := metav1.NewTime(at)
	obj.SetDeletionTimestamp(&end)
	obj.SetDeletionGracePeriodSeconds(&seconds)
	return true, false
}

// markNow marks an object that only finalizers hold.
func markNow(obj registry.Object) {
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	if obj.GetDeletionTimestamp() == nil && obj.GetGeneration() > 0 {
		obj.SetGeneration(obj.GetGeneration() + 1)
	}
	if at := obj.GetDeletionTimestamp(); at == nil || at.After(now.Time) {
		obj.SetDeletionTimestamp(&now)
	}
	var zero int64
	obj.SetDeletionGracePeriodSeconds(&zero)
}

// deletionFinalizers are the object's finalizers with those of the garbage
// collector as the propagation policy wants them.
func (s *Store) deletionFinalizers(obj registry.Object, options *metav1.DeleteOptions) []string {
	policy := s.propagation(obj, options)
	var out []string
	for _, f := range obj.GetFinalizers() {
		if f != metav1.FinalizerOrphanDependents && f != metav1.FinalizerDeleteDependents {
			out = append(out, f)
		}
	}
	switch policy {
	case metav1.DeletePropagationOrphan:
		out = append(out, metav1.FinalizerOrphanDependents)
	case metav1.DeletePropagationForeground:
		out = append(out, metav1.FinalizerDeleteDependents)
	}
	return out
}

// propagation is, in order: what the client says, what the object's finalizers
// say, and the kind's default.
func (s *Store) propagation(obj registry.Object, options *metav1.DeleteOptions) metav1.DeletionPropagation {
	//nolint:staticcheck // SA1019: older clients send orphanDependents.
	if orphan := options.OrphanDependents; orphan != nil {
		if *orphan {
			return metav1.DeletePropagationOrphan
		}
		return metav1.DeletePropagationBackground
	}
	if options.PropagationPolicy != nil {
		return *options.PropagationPolicy
	}
	for _, f := range obj.GetFinalizers() {
		switch f {
		case metav1.FinalizerOrphanDependents:
			return metav1.DeletePropagationOrphan
		case metav1.FinalizerDeleteDependents:
			return metav1.DeletePropagationForeground
		}
	}
	if policy := s.strategy("").DefaultPropagation; policy != "" {
		return policy
	}
	return metav1.DeletePropagationBackground
}

func (s *Store) storeMarked(ctx context.Context, current *watch.Object, obj, old registry.Object, w Write) (Deletion, error) {
	put, same, err := s.putChanged(ctx, obj, old)
	if err != nil {
		return Deletion{}, err
	}
	if w.DryRun {
		obj.SetResourceVersion(strconv.FormatInt(current.Revision, 10))
		obj.GetObjectKind().SetGroupVersionKind(s.gvk)
		return Deletion{Result: Result{Object: obj}}, nil
	}
	if same {
		return Deletion{Result: Result{Stored: current}}, nil
	}
	stored, err := s.cache.Update(ctx, put, current.Revision)
	if err != nil {
		return Deletion{}, s.retryable(err, obj.GetName())
	}
	return Deletion{Result: Result{Stored: stored}}, nil
}

// remove takes the object out of the store, and releases what it held.
func (s *Store) remove(ctx context.Context, current *watch.Object, obj registry.Object) (*watch.Object, error) {
	removed, err := s.cache.Delete(ctx, obj.GetNamespace(), obj.GetName(), current.Revision)
	if err != nil {
		return nil, err
	}
	if strategy := s.strategy(""); strategy.AfterDelete != nil {
		strategy.AfterDelete(ctx, obj)
	}
	return removed, nil
}

func sameSet(a, b []string) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(slices.Compact(a), slices.Compact(b))
}
