package apps

import (
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateRollingUpdate checks a pair of bounds of which one must allow
// progress.
func validateRollingUpdate(unavailable, surge *intstr.IntOrString, path *field.Path) field.ErrorList {
	u, s := orZero(unavailable), orZero(surge)
	errs := validateIntOrPercent(u, path.Child("maxUnavailable"))
	errs = append(errs, validateIntOrPercent(s, path.Child("maxSurge"))...)
	if isZero(u) && isZero(s) {
		errs = append(errs, field.Invalid(path.Child("maxUnavailable"), u, "may not be 0 when `maxSurge` is 0"))
	}
	return append(errs, atMostAll(u, path.Child("maxUnavailable"))...)
}

func orZero(v *intstr.IntOrString) intstr.IntOrString {
	if v == nil {
		return intstr.FromInt32(0)
	}
	return *v
}

func validateIntOrPercent(v intstr.IntOrString, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if v.Type == intstr.String {
		for _, msg := range utilvalidation.IsValidPercent(v.StrVal) {
			errs = append(errs, field.Invalid(path, v, msg))
		}
	} else if v.IntVal < 0 {
		errs = append(errs, field.Invalid(path, int64(v.IntVal), "must be greater than or equal to 0"))
	}
	return errs
}

func percent(v intstr.IntOrString) (int, bool) {
	if v.Type != intstr.String || len(utilvalidation.IsValidPercent(v.StrVal)) > 0 {
		return 0, false
	}
	n, err := strconv.Atoi(strings.TrimSuffix(v.StrVal, "%"))
	return n, err == nil
}

// isZero also holds of a text that is no percentage, as upstream has it.
func isZero(v intstr.IntOrString) bool {
	if v.Type == intstr.Int {
		return v.IntVal == 0
	}
	n, _ := percent(v)
	return n == 0
}

func atMostAll(v intstr.IntOrString, path *field.Path) field.ErrorList {
	if n, ok := percent(v); ok && n > 100 {
		return field.ErrorList{field.Invalid(path, v, "must not be greater than 100%")}
	}
	return nil
}
