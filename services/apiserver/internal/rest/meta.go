package rest

import (
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// Limits of generated names, upstream's figures.
const (
	maxGeneratedBase   = 63 - generatedSuffix
	generatedSuffix    = 5
	maxGeneratedChoice = 8
)

// wipeSystemFields drops what only the server sets.
func wipeSystemFields(obj metav1.Object) {
	obj.SetCreationTimestamp(metav1.Time{})
	obj.SetUID("")
	obj.SetDeletionTimestamp(nil)
	obj.SetDeletionGracePeriodSeconds(nil)
	obj.SetSelfLink("")
}

// fillSystemFields sets a new object's uid and time, to the second as they are
// stored.
func fillSystemFields(obj metav1.Object) {
	obj.SetCreationTimestamp(metav1.NewTime(time.Now().Truncate(time.Second)))
	obj.SetUID(types.UID(uuid.NewString()))
}

func generateName(base string) string {
	if len(base) > maxGeneratedBase {
		base = base[:maxGeneratedBase]
	}
	return base + utilrand.String(generatedSuffix)
}

// matchNamespace gives the object the request's namespace, and refuses another.
func (s *Store) matchNamespace(obj metav1.Object, namespace string) error {
	if !s.resource.Namespaced {
		namespace = ""
	}
	return MatchNamespace(obj, namespace)
}

// MatchNamespace gives obj the namespace of the request, and refuses one that
// names another. Without a namespace the object's is cleared.
func MatchNamespace(obj metav1.Object, namespace string) error {
	have := obj.GetNamespace()
	switch {
	case have == namespace:
	case have == "" || namespace == "":
		obj.SetNamespace(namespace)
	default:
		return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	return nil
}

// validateCreate checks a new object; kinds check all but the metadata.
func (s *Store) validateMeta(obj metav1.Object) field.ErrorList {
	path := field.NewPath("metadata")
	nameFn := apivalidation.NameIsDNSSubdomain
	if strategy := s.resource.Strategy; strategy != nil && strategy.ValidateName != nil {
		nameFn = strategy.ValidateName
	}
	errs := apivalidation.ValidateObjectMetaAccessor(obj, s.resource.Namespaced, nameFn, path)
	if len(errs) == 0 {
		for _, msg := range content.IsPathSegmentName(obj.GetName()) {
			errs = append(errs, field.Invalid(path.Child("name"), obj.GetName(), msg))
		}
	}
	return errs
}

// validateMetaUpdate checks the metadata of a changed object.
func (s *Store) validateMetaUpdate(obj, old metav1.Object) field.ErrorList {
	path := field.NewPath("metadata")
	errs := apivalidation.ValidateObjectMetaAccessor(obj, s.resource.Namespaced, pathSegment, path)
	update := apivalidation.ValidateObjectMetaAccessorUpdate(obj, old, path)
	seen := map[string]bool{}
	for _, err := range errs {
		seen[err.Error()] = true
	}
	for _, err := range update {
		if !seen[err.Error()] {
			errs = append(errs, err)
		}
	}
	return errs
}

// pathSegment lets a name be all that can stand in a path, a generated one's
// start too.
func pathSegment(name string, prefix bool) []string {
	if prefix {
		return content.IsPathSegmentPrefix(name)
	}
	return content.IsPathSegmentName(name)
}

// keepSystemFields undoes what an update may not change.
func keepSystemFields(obj, old metav1.Object) {
	if obj.GetUID() == "" {
		obj.SetUID(old.GetUID())
	}
	if created := old.GetCreationTimestamp(); !created.IsZero() {
		obj.SetCreationTimestamp(created)
	}
	if !old.GetDeletionTimestamp().IsZero() {
		obj.SetDeletionTimestamp(old.GetDeletionTimestamp())
	}
	if old.GetDeletionGracePeriodSeconds() != nil && obj.GetDeletionGracePeriodSeconds() == nil {
		obj.SetDeletionGracePeriodSeconds(old.GetDeletionGracePeriodSeconds())
	}
	obj.SetSelfLink("")
}

// uniqueOwners drops owner references that name the same object twice, and
// returns the warning about it, "" when there were none.
func uniqueOwners(obj metav1.Object) string {
	refs := obj.GetOwnerReferences()
	if len(refs) < 2 {
		return ""
	}
	var kept []metav1.OwnerReference
	var twice []string
	seen := map[types.UID]bool{}
	for _, ref := range refs {
		if !seen[ref.UID] {
			seen[ref.UID] = true
			kept = append(kept, ref)
			continue
		}
		same := false
		for i := range kept {
			same = same || apiequality.Semantic.DeepEqual(kept[i], ref)
		}
		if same {
			twice = append(twice, string(ref.UID))
		} else {
			kept = append(kept, ref)
		}
	}
	if len(twice) == 0 {
		return ""
	}
	obj.SetOwnerReferences(kept)
	return fmt.Sprintf(".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: %s", strings.Join(twice, ", "))
}

// invalid is the 422 for errs, nil when there are none.
func (s *Store) invalid(obj registry.Object, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(s.gvk.GroupKind(), obj.GetName(), errs)
}
