// Package finalizer decides about the finalizer by which a controller keeps an
// object that is deleted for as long as something uses it.
package finalizer

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Wanted is the finalizers that obj should have, and whether they differ from
// those that it has: an object that lives has the finalizer name, one that is
// deleted loses it when used, which is asked only then, says that nothing uses it.
func Wanted(obj metav1.Object, name string, used func() (bool, error)) (finalizers []string, change bool, err error) {
	have := obj.GetFinalizers()
	has := slices.Contains(have, name)
	if obj.GetDeletionTimestamp() == nil {
		if has {
			return have, false, nil
		}
		return append(slices.Clone(have), name), true, nil
	}
	if !has {
		return have, false, nil
	}
	if inUse, err := used(); err != nil || inUse {
		return have, false, err
	}
	return slices.DeleteFunc(slices.Clone(have), func(other string) bool { return other == name }), true, nil
}
