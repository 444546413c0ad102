package rest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
)

// Change makes the new object from the current one, which it must not change
// and may not be kept: nil when there is none. The result is the engine's. A
// change is called again with the fresh object after a conflict.
type Change func(ctx context.Context, current runtime.Object) (runtime.Object, error)

// Target names what an update changes.
type Target struct {
	Namespace, Name string
	Subresource     string // whose strategy applies; "" is the main one
	// Create lets the update create the object when there is none, whatever the
	// strategy says (server-side apply).
	Create bool
	// Tracked says that Change has set managedFields itself.
	Tracked bool
	// View is how admission sees the update; nil is the object.
	View *View
}

// update is one run of the update function.
type update struct {
	store    *Store
	strategy *registry.Strategy
	target   Target
	change   Change
	write    Write
}

// strategy of a subresource; "" is the resource's own. It is never nil.
func (s *Store) strategy(subresource string) *registry.Strategy {
	if subresource == "" {
		if s.resource.Strategy != nil {
			return s.resource.Strategy
		}
		return &registry.Strategy{}
	}
	for i := range s.resource.Subresources {
		if sub := &s.resource.Subresources[i]; sub.Name == subresource && sub.Update != nil {
			return sub.Update
		}
	}
	return &registry.Strategy{}
}

// Update changes one object: get, change, track managed fields, admit, prepare,
// validate, compare-and-set, and again from the start when another writer was
// faster. It answers 409 only when the changed object carries an older
// resourceVersion.
func (s *Store) Update(ctx context.Context, target Target, w Write, change Change) (Result, error) {
	if w.Options == nil {
		w.Options = &metav1.UpdateOptions{}
	}
	u := &update{store: s, strategy: s.strategy(target.Subresource), target: target, change: change, write: w}
	for {
		result, err := u.attempt(ctx)
		if !errors.Is(err, errRetry) {
			return result, err
		}
		if ctx.Err() != nil {
			return Result{}, s.statusError(ctx.Err(), target.Name)
		}
	}
}

// preconditionFailed starts the message of a pin that does not hold, in upstream's
// words.
const preconditionFailed = "Precondition failed"

// errRetry says that another writer was faster.
var errRetry = errors.New("object changed meanwhile")

func (u *update) attempt(ctx context.Context) (Result, error) {
	s := u.store
	current, err := s.cache.Get(ctx, u.target.Namespace, u.target.Name, watch.Versions{})
	if errors.Is(err, storage.ErrNotFound) {
		return u.create(ctx)
	}
	if err != nil {
		return Result{}, s.statusError(err, u.target.Name)
	}
	old, err := s.decodeObject(ctx, current)
	if err != nil {
		return Result{}, err
	}
	obj, err := u.changed(ctx, old)
	if err != nil {
		return Result{}, err
	}
	if err := u.matchVersion(obj, old); err != nil {
		return Result{}, err
	}
	if err := u.admit(ctx, admission.Update, obj, old); err != nil {
		return Result{}, err
	}
	done, err := begin(ctx, u.strategy, obj, old, u.write.DryRun)
	if err != nil {
		return Result{}, err
	}
	result, err := u.store.updatePrepared(ctx, u, current, obj, old)
	done(err == nil && !u.write.DryRun)
	return result, err
}

func (s *Store) decodeObject(ctx context.Context, o *watch.Object) (registry.Object, error) {
	obj, err := s.decode(ctx, o)
	if err != nil {
		return nil, err
	}
	return asObject(obj)
}

// changed is the client's object, with its managed fields.
func (u *update) changed(ctx context.Context, old registry.Object) (registry.Object, error) {
	changed, err := u.change(ctx, old)
	if err != nil {
		return nil, err
	}
	obj, err := asObject(changed)
	if err != nil {
		return nil, err
	}
	obj.GetObjectKind().SetGroupVersionKind(u.store.gvk)
	if err := u.store.matchNamespace(obj, u.target.Namespace); err != nil {
		return nil, err
	}
	if err := matchName(obj, u.target.Name); err != nil {
		return nil, err
	}
	request.AddWarning(ctx, uniqueOwners(obj))
	if !u.target.Tracked {
		return asObject(u.store.managers.track(ctx, u.tracker(), old, obj, u.write.Manager))
	}
	return obj, nil
}

// tracker is the subresource whose field manager tracks the update.
func (u *update) tracker() string {
	if _, ok := u.store.managers.bySubresource[u.target.Subresource]; ok {
		return u.target.Subresource
	}
	return ""
}

func matchName(obj metav1.Object, name string) error {
	switch obj.GetName() {
	case name:
	case "":
		obj.SetName(name)
	default:
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", obj.GetName(), name))
	}
	return nil
}

// matchVersion checks the uid and resourceVersion that the client pinned, and
// sets them where it did not.
func (u *update) matchVersion(obj, old registry.Object) error {
	s := u.store
	if uid := obj.GetUID(); uid != "" && uid != old.GetUID() {
		return apierrors.NewConflict(s.group, u.target.Name, fmt.Errorf("%s: UID in precondition: %v, UID in object meta: %v", preconditionFailed, uid, old.GetUID()))
	}
	version := obj.GetResourceVersion()
	if version == "" || version == "0" {
		if s.strategy("").RequireVersionOnUpdate {
			return apierrors.NewInvalid(s.gvk.GroupKind(), u.target.Name, field.ErrorList{
				field.Invalid(field.NewPath("metadata", "resourceVersion"), version, "must be specified for an update"),
			})
		}
		obj.SetResourceVersion(old.GetResourceVersion())
		return nil
	}
	if version == old.GetResourceVersion() {
		return nil
	}
	if _, err := strconv.ParseUint(version, 10, 64); err != nil {
		return apierrors.NewInvalid(s.gvk.GroupKind(), u.target.Name, field.ErrorList{
			field.Invalid(field.NewPath("metadata", "resourceVersion"), version, err.Error()),
		})
	}
	return apierrors.NewConflict(s.group, u.target.Name, errStale)
}

func (s *Store) updatePrepared(ctx context.Context, u *update, current *watch.Object, obj, old registry.Object) (Result, error) {
	obj.SetGeneration(old.GetGeneration())
	if u.strategy.PrepareForUpdate != nil {
		u.strategy.PrepareForUpdate(ctx, obj, old)
	}
	keepSystemFields(obj, old)
	if u.strategy.SpecOf != nil && u.target.Subresource == "" && !apiequality.Semantic.DeepEqual(u.strategy.SpecOf(obj), u.strategy.SpecOf(old)) {
		obj.SetGeneration(old.GetGeneration() + 1)
	}
	errs := s.validateMetaUpdate(obj, old)
	if u.strategy.ValidateUpdate != nil {
		errs = append(errs, u.strategy.ValidateUpdate(ctx, obj, old)...)
	}
	errs = s.rules.Validate(ctx, obj, old, u.target.Subresource, errs)
	if err := s.invalid(obj, errs); err != nil {
		return Result{}, err
	}
	s.warn(ctx, u.strategy, obj, old)
	if u.strategy.Canonicalize != nil {
		u.strategy.Canonicalize(obj)
	}
	a, err := u.attributes(ctx, admission.Update, obj, old)
	if err != nil {
		return Result{}, err
	}
	if err := s.admission.Validate(ctx, a); err != nil {
		return Result{}, err
	}
	if s.finished(obj, old) {
		return s.removeFinished(ctx, u, current, obj)
	}
	return s.storeChanged(ctx, u, current, obj, old)
}

// finished says that the update took the last thing that held a deleted object.
func (s *Store) finished(obj, old registry.Object) bool {
	if old.GetDeletionTimestamp() == nil || len(obj.GetFinalizers()) > 0 || s.held(obj) {
		return false
	}
	grace := old.GetDeletionGracePeriodSeconds()
	return grace == nil || *grace == 0
}

func (s *Store) held(obj runtime.Object) bool {
	strategy := s.strategy("")
	return strategy.Held != nil && strategy.Held(obj)
}

func (s *Store) removeFinished(ctx context.Context, u *update, current *watch.Object, obj registry.Object) (Result, error) {
	if !u.write.DryRun {
		if _, err := s.remove(ctx, current, obj); err != nil && !errors.Is(err, storage.ErrNotFound) {
			return Result{}, s.retryable(err, u.target.Name)
		}
	}
	return Result{Object: obj}, nil
}

// storeChanged writes the object unless it equals what is stored.
func (s *Store) storeChanged(ctx context.Context, u *update, current *watch.Object, obj, old registry.Object) (Result, error) {
	put, same, err := s.putChanged(ctx, obj, old)
	if err != nil {
		return Result{}, err
	}
	if u.write.DryRun {
		obj.SetResourceVersion(strconv.FormatInt(current.Revision, 10))
		obj.GetObjectKind().SetGroupVersionKind(s.gvk)
		return Result{Object: obj}, nil
	}
	if same && !s.storedOtherwise(current) && !s.cache.Outdated(ctx, current.Namespace, current.Name) {
		return Result{Stored: current}, nil
	}
	stored, err := s.cache.Update(ctx, put, current.Revision)
	if errors.Is(err, storage.ErrTooLarge) && len(obj.GetManagedFields()) > 0 {
		obj.SetManagedFields(nil)
		if put, err = s.put(ctx, obj); err == nil {
			stored, err = s.cache.Update(ctx, put, current.Revision)
		}
	}
	if err != nil {
		return Result{}, s.retryable(err, u.target.Name)
	}
	return Result{Stored: stored}, nil
}

// storedOtherwise says that an untyped object is not stored in the version that
// it would be stored in now: an update that changes nothing migrates it.
func (s *Store) storedOtherwise(current *watch.Object) bool {
	if s.resource.Untyped == nil {
		return false
	}
	stored, err := current.Shared()
	return err == nil && stored.GetObjectKind().GroupVersionKind() != s.codec.stored
}

// putChanged encodes the object, and says whether it equals old, the times in
// managedFields aside.
func (s *Store) putChanged(ctx context.Context, obj, old registry.Object) (watch.Put, bool, error) {
	if s.resource.Untyped != nil && s.resource.ToStored != nil {
		return s.putConverted(ctx, obj, old)
	}
	before, err := s.put(ctx, old)
	if err != nil {
		return before, false, err
	}
	managed := obj.GetManagedFields()
	if sameManagers(managed, old.GetManagedFields()) {
		obj.SetManagedFields(old.GetManagedFields())
		after, err := s.put(ctx, obj)
		if err != nil || bytes.Equal(before.Stored, after.Stored) {
			return after, err == nil, err
		}
		obj.SetManagedFields(managed)
	}
	after, err := s.put(ctx, obj)
	return after, false, err
}

// putConverted is putChanged for an untyped object of another version than the
// stored one, which only the new object is brought into: that may take another
// program.
func (s *Store) putConverted(ctx context.Context, obj, old registry.Object) (watch.Put, bool, error) {
	managed := obj.GetManagedFields()
	same := sameManagers(managed, old.GetManagedFields())
	if same {
		obj.SetManagedFields(old.GetManagedFields())
		if same = apiequality.Semantic.DeepEqual(obj, old); !same {
			obj.SetManagedFields(managed)
		}
	}
	put, err := s.put(ctx, obj)
	return put, same, err
}

// retryable turns the loss of a race into errRetry.
func (s *Store) retryable(err error, name string) error {
	var conflict *storage.ConflictError
	if errors.As(err, &conflict) || errors.Is(err, storage.ErrNotFound) {
		return errRetry
	}
	return s.statusError(err, name)
}

// create is the update of an object that does not exist.
func (u *update) create(ctx context.Context) (Result, error) {
	s := u.store
	if u.target.Subresource != "" || !u.target.Create && !u.strategy.AllowCreateOnUpdate {
		return Result{}, apierrors.NewNotFound(s.group, u.target.Name)
	}
	obj, err := u.created(ctx)
	if err != nil {
		return Result{}, err
	}
	if u.write.MayCreate != nil {
		if err := u.write.MayCreate(ctx); err != nil {
			return Result{}, err
		}
	}
	wipeSystemFields(obj)
	if !u.target.Tracked {
		if obj, err = s.trackCreate(ctx, obj, u.write.Manager); err != nil {
			return Result{}, err
		}
	}
	if err := u.admit(ctx, admission.Create, obj, nil); err != nil {
		return Result{}, err
	}
	result, err := s.create(ctx, obj, u.write)
	if apierrors.IsAlreadyExists(err) && !u.write.DryRun {
		return Result{}, errRetry
	}
	return result, err
}

// created is the client's object, which must not claim to be a stored one.
func (u *update) created(ctx context.Context) (registry.Object, error) {
	changed, err := u.change(ctx, nil)
	if err != nil {
		return nil, err
	}
	obj, err := asObject(changed)
	if err != nil {
		return nil, err
	}
	if uid := obj.GetUID(); uid != "" {
		return nil, apierrors.NewConflict(u.store.group, u.target.Name, fmt.Errorf("uid mismatch: the provided object specified uid %s, and no existing object was found", uid))
	}
	if err := matchName(obj, u.target.Name); err != nil {
		return nil, err
	}
	return obj, u.store.matchNamespace(obj, u.target.Namespace)
}
