package rest

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
)

// Create stores a new object, which it takes over: decoded, and defaulted. It
// answers 409 AlreadyExists when the name is taken.
func (s *Store) Create(ctx context.Context, namespace string, in runtime.Object, w Write) (Result, error) {
	obj, err := asObject(in)
	if err != nil {
		return Result{}, err
	}
	if w.Options == nil {
		w.Options = &metav1.CreateOptions{}
	}
	// Upstream's store refuses it, which a dry run does not reach.
	if version := obj.GetResourceVersion(); version != "" && version != "0" && !w.DryRun {
		return Result{}, apierrors.NewBadRequest("resourceVersion should not be set on objects to be created")
	}
	wipeSystemFields(obj)
	if err := s.matchNamespace(obj, namespace); err != nil {
		return Result{}, err
	}
	request.AddWarning(ctx, uniqueOwners(obj))
	if obj, err = s.trackCreate(ctx, obj, w.Manager); err != nil {
		return Result{}, err
	}
	if err := s.admitCreate(ctx, obj, w); err != nil {
		return Result{}, err
	}
	if obj.GetName() != "" || obj.GetGenerateName() == "" {
		return s.create(ctx, obj, w)
	}
	return s.createGenerated(ctx, obj, w)
}

func (s *Store) trackCreate(ctx context.Context, obj registry.Object, manager string) (registry.Object, error) {
	obj.GetObjectKind().SetGroupVersionKind(s.gvk)
	empty := s.resource.New()
	empty.GetObjectKind().SetGroupVersionKind(s.gvk)
	return asObject(s.managers.track(ctx, "", empty, obj, manager))
}

// admitCreate runs the mutators, and defaults again what they left.
func (s *Store) admitCreate(ctx context.Context, obj registry.Object, w Write) error {
	namespace := obj.GetNamespace()
	a := s.attributes(ctx, admission.Create, "", s.admissionNamespace(obj), obj.GetName(), w)
	a.Object = obj
	if err := s.admission.Admit(ctx, a); err != nil {
		return err
	}
	defaultObject(s.resource.Strategy, obj)
	if err := s.matchNamespace(obj, namespace); err != nil {
		return err
	}
	request.AddWarning(ctx, uniqueOwners(obj))
	return nil
}

// admissionNamespace is the namespace that admission sees: a namespace is in
// itself.
func (s *Store) admissionNamespace(obj registry.Object) string {
	if s.group.Group == "" && s.group.Resource == "namespaces" {
		return obj.GetName()
	}
	return obj.GetNamespace()
}

// createGenerated tries other names when one is taken.
func (s *Store) createGenerated(ctx context.Context, obj registry.Object, w Write) (Result, error) {
	for attempt := 1; ; attempt++ {
		candidate := obj.DeepCopyObject().(registry.Object)
		candidate.SetName(generateName(obj.GetGenerateName()))
		result, err := s.create(ctx, candidate, w)
		if !apierrors.IsAlreadyExists(err) {
			return result, err
		}
		if attempt == maxGeneratedChoice {
			return result, apierrors.NewGenerateNameConflict(s.group, candidate.GetName(), 1)
		}
	}
}

// create prepares, validates and stores an admitted object that has its name.
func (s *Store) create(ctx context.Context, obj registry.Object, w Write) (Result, error) {
	fillSystemFields(obj)
	strategy := s.strategy("")
	done, err := begin(ctx, strategy, obj, nil, w.DryRun)
	if err != nil {
		return Result{}, err
	}
	result, err := s.createPrepared(ctx, strategy, obj, w)
	done(err == nil && !w.DryRun)
	return result, err
}

func (s *Store) createPrepared(ctx context.Context, strategy *registry.Strategy, obj registry.Object, w Write) (Result, error) {
	if strategy.PrepareForCreate != nil {
		strategy.PrepareForCreate(ctx, obj)
	}
	if strategy.SpecOf != nil {
		obj.SetGeneration(1)
	}
	errs := s.validateMeta(obj)
	if strategy.Validate != nil {
		errs = append(errs, strategy.Validate(ctx, obj)...)
	}
	errs = s.rules.Validate(ctx, obj, nil, "", errs)
	if err := s.invalid(obj, errs); err != nil {
		return Result{}, err
	}
	s.warn(ctx, strategy, obj, nil)
	if strategy.Canonicalize != nil {
		strategy.Canonicalize(obj)
	}
	a := s.attributes(ctx, admission.Create, "", s.admissionNamespace(obj), obj.GetName(), w)
	a.Object = obj
	if err := s.admission.Validate(ctx, a); err != nil {
		return Result{}, err
	}
	return s.storeNew(ctx, obj, w)
}

func (s *Store) storeNew(ctx context.Context, obj registry.Object, w Write) (Result, error) {
	put, err := s.put(ctx, obj)
	if err != nil {
		return Result{}, err
	}
	if w.DryRun {
		return s.dryCreate(ctx, obj)
	}
	stored, err := s.cache.Create(ctx, put)
	if errors.Is(err, storage.ErrTooLarge) && len(obj.GetManagedFields()) > 0 {
		obj.SetManagedFields(nil) // can be much of an object, and is dispensable
		if put, err = s.put(ctx, obj); err == nil {
			stored, err = s.cache.Create(ctx, put)
		}
	}
	if err != nil {
		return Result{}, s.createError(ctx, err, obj.GetNamespace(), obj.GetName())
	}
	return Result{Stored: stored, Created: true}, nil
}

func (s *Store) dryCreate(ctx context.Context, obj registry.Object) (Result, error) {
	_, err := s.Get(ctx, obj.GetNamespace(), obj.GetName())
	switch {
	case err == nil:
		return Result{}, s.createError(ctx, &storage.ExistsError{}, obj.GetNamespace(), obj.GetName())
	case !apierrors.IsNotFound(err):
		return Result{}, err
	}
	obj.GetObjectKind().SetGroupVersionKind(s.gvk)
	return Result{Object: obj, Created: true}, nil
}

// createError says of a name that is taken whether its object is going away.
func (s *Store) createError(ctx context.Context, err error, namespace, name string) error {
	answer := s.statusError(err, name)
	if !apierrors.IsAlreadyExists(answer) {
		return answer
	}
	existing, getErr := s.Get(ctx, namespace, name)
	if getErr != nil {
		return answer
	}
	var status *apierrors.StatusError
	if o, ok := existing.(registry.Object); ok && o.GetDeletionTimestamp() != nil && errors.As(answer, &status) {
		status.ErrStatus.Message = "object is being deleted: " + status.ErrStatus.Message
	}
	return answer
}

func (s *Store) warn(ctx context.Context, strategy *registry.Strategy, obj, old runtime.Object) {
	if strategy.Warnings == nil {
		return
	}
	for _, warning := range strategy.Warnings(ctx, obj, old) {
		request.AddWarning(ctx, warning)
	}
}

// begin allocates what the object needs outside itself. The function that it
// returns is never nil.
func begin(ctx context.Context, strategy *registry.Strategy, obj, old runtime.Object, dryRun bool) (func(stored bool), error) {
	if strategy.Begin == nil {
		return func(bool) {}, nil
	}
	done, err := strategy.Begin(ctx, obj, old, dryRun)
	if done == nil {
		done = func(bool) {}
	}
	return done, err
}
