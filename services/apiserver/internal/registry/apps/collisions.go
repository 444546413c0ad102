package apps

import "k8s.io/apimachinery/pkg/util/validation/field"

// validateCollisions lets a count of hash collisions only grow.
func validateCollisions(now, old *int32, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if now != nil {
		errs = append(errs, nonNegative(*now, path)...)
	}
	if old != nil && (now == nil || *now < *old) {
		var value int32
		if now != nil {
			value = *now
		}
		errs = append(errs, field.Invalid(path, value, "cannot be decremented"))
	}
	return errs
}
