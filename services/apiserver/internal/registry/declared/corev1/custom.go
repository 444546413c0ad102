package corev1

import (
	"context"
	"strings"

	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// reservedPriorities are below this number.
const reservedPriorities = 1000

// ValidateCustom_EvictionResponder_Name keeps the project's own domains for its
// responders.
func ValidateCustom_EvictionResponder_Name(_ context.Context, _ operation.Operation, path *field.Path, value, _ *string) field.ErrorList { //nolint:revive // the generator's name
	if value == nil {
		return nil
	}
	domain, _, _ := strings.Cut(*value, "/")
	domain = "." + strings.TrimRight(strings.TrimSpace(strings.ToLower(domain)), ".")
	if strings.HasSuffix(domain, ".k8s.io") || strings.HasSuffix(domain, ".kubernetes.io") {
		return field.ErrorList{field.Invalid(path, *value, "domain names *.k8s.io, *.kubernetes.io are reserved")}
	}
	return nil
}

// ValidateCustom_EvictionResponder_Priority keeps the lowest priorities for them.
func ValidateCustom_EvictionResponder_Priority(_ context.Context, _ operation.Operation, path *field.Path, value, _ *int32) field.ErrorList { //nolint:revive // the generator's name
	if value != nil && *value >= 0 && *value < reservedPriorities {
		return field.ErrorList{field.Invalid(path, *value, "priorities 0-999 are reserved for responders with *.k8s.io suffix")}
	}
	return nil
}
