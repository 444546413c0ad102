package apps

import "k8s.io/apimachinery/pkg/util/validation/field"

// count is one of a status' numbers of pods. An empty scope means that it is
// part of the replicas.
type count struct {
	name  string
	value int32
	scope string
}

// replicaCounts checks that numbers are not negative, and that parts are not
// more than the whole.
func replicaCounts(path *field.Path, replicas int32, parts ...count) field.ErrorList {
	errs := nonNegative(replicas, path.Child("replicas"))
	for _, part := range parts {
		errs = append(errs, nonNegative(part.value, path.Child(part.name))...)
	}
	for _, part := range parts {
		if part.scope == "" && part.value > replicas {
			errs = append(errs, field.Invalid(path.Child(part.name), part.value, "cannot be greater than status.replicas"))
		}
	}
	return errs
}
