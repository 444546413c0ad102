// Package resource has the kinds of resource.k8s.io, by which pods claim devices.
// What their types declare (sizes, formats, unions, immutability) is checked by
// package declared.
package resource

import (
	"slices"
	"strings"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var v1 = resourcev1.SchemeGroupVersion

// checker checks one member of a list at its path.
type checker[T any] func(item *T, path *field.Path) field.ErrorList

// each checks the members of a list. One that is too long is refused as a whole,
// before anything in it is looked at; most 0 sets no bound.
func each[T any](list []T, most int, path *field.Path, check checker[T]) field.ErrorList {
	if most > 0 && len(list) > most {
		return field.ErrorList{field.TooMany(path, len(list), most)}
	}
	var errs field.ErrorList
	for i := range list {
		errs = append(errs, check(&list[i], path.Index(i))...)
	}
	return errs
}

// unique is each, and refuses members with the same key.
func unique[T any, K comparable](list []T, most int, path *field.Path, key func(*T) K, check checker[T]) field.ErrorList {
	errs := each(list, most, path, check)
	if most > 0 && len(list) > most {
		return errs
	}
	seen := map[K]bool{}
	for i := range list {
		k := key(&list[i])
		if seen[k] {
			errs = append(errs, field.Duplicate(path.Index(i), k))
		}
		seen[k] = true
	}
	return errs
}

func invalid(path *field.Path, value any, msgs []string) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range msgs {
		errs = append(errs, field.Invalid(path, value, msg))
	}
	return errs
}

func label(value string, path *field.Path) field.ErrorList {
	return invalid(path, value, utilvalidation.IsDNS1123Label(value))
}

func subdomain(value string, path *field.Path) field.ErrorList {
	return invalid(path, value, utilvalidation.IsDNS1123Subdomain(value))
}

func oneOf[T ~string](value T, path *field.Path, known ...T) field.ErrorList {
	if slices.Contains(known, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, value, known)}
}

// validateConditions checks the conditions of a status.
func validateConditions(list []metav1.Condition, most int, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(list) > most {
		errs = append(errs, field.TooMany(path, len(list), most))
	}
	return append(errs, conditions(list, path)...)
}

// exactlyOne wants one of several alternatives.
func exactlyOne(set []string, path *field.Path, msg, many string) field.ErrorList {
	switch len(set) {
	case 0:
		return field.ErrorList{field.Required(path, msg)}
	case 1:
		return nil
	}
	return field.ErrorList{field.Invalid(path, "{"+strings.Join(set, ", ")+"}", msg+many)}
}

// now is the present to the second, as times are stored.
func now() *metav1.Time {
	t := metav1.NewTime(time.Now().Truncate(time.Second))
	return &t
}

func readWrite() []string { return []string{"get", "patch", "update"} }
