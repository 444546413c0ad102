// Package networking has the kinds of networking.k8s.io, v1.
package networking

import (
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var v1 = networkingv1.SchemeGroupVersion

func invalid(path *field.Path, value any, msgs []string) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range msgs {
		errs = append(errs, field.Invalid(path, value, msg))
	}
	return errs
}

func oneOf[T ~string](value T, path *field.Path, supported ...T) field.ErrorList {
	if slices.Contains(supported, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, value, supported)}
}

func dnsSubdomain(value string, path *field.Path) field.ErrorList {
	return invalid(path, value, utilvalidation.IsDNS1123Subdomain(value))
}
