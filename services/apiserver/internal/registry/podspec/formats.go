package podspec

import (
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateEnum wants one of the supported values, and not none.
func validateEnum[T ~string](value T, path *field.Path, supported ...T) field.ErrorList {
	switch {
	case value == "":
		return field.ErrorList{field.Required(path, "")}
	case !slices.Contains(supported, value):
		return field.ErrorList{field.NotSupported(path, value, supported)}
	}
	return nil
}

// notSupported is for values of which even none is refused as unsupported.
func notSupported[T ~string](value T, path *field.Path, supported ...T) field.ErrorList {
	if slices.Contains(supported, value) {
		return nil
	}
	slices.Sort(supported)
	return field.ErrorList{field.NotSupported(path, value, supported)}
}

func invalid(path *field.Path, value any, msgs []string) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range msgs {
		errs = append(errs, field.Invalid(path, value, msg))
	}
	return errs
}

func dnsLabel(value string, path *field.Path) field.ErrorList {
	return invalid(path, value, utilvalidation.IsDNS1123Label(value))
}

func dnsSubdomain(value string, path *field.Path) field.ErrorList {
	return invalid(path, value, utilvalidation.IsDNS1123Subdomain(value))
}

func qualifiedName(value string, path *field.Path) field.ErrorList {
	return invalid(path, value, utilvalidation.IsQualifiedName(value))
}

// ValidatePort wants a port number or the name of a port.
func ValidatePort(port intstr.IntOrString, path *field.Path) field.ErrorList {
	if port.Type == intstr.Int {
		return invalid(path, port.IntValue(), utilvalidation.IsValidPortNum(port.IntValue()))
	}
	return invalid(path, port.StrVal, utilvalidation.IsValidPortName(port.StrVal))
}

// ValidateProtocol wants one of the transport protocols.
func ValidateProtocol(protocol corev1.Protocol, path *field.Path) field.ErrorList {
	return validateEnum(protocol, path, corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP)
}

// ValidateQuantities refuses negative quantities, and fractions of what comes
// in whole pieces.
func ValidateQuantities(list corev1.ResourceList, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(list)) {
		errs = append(errs, ValidateQuantity(name, list[name], path.Key(string(name)))...)
	}
	return errs
}

// ValidateQuantity is ValidateQuantities for one resource.
func ValidateQuantity(name corev1.ResourceName, quantity resource.Quantity, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if quantity.Sign() < 0 {
		errs = append(errs, field.Invalid(path, quantity.String(), "must be greater than or equal to 0"))
	}
	if isInteger(name) && quantity.MilliValue()%1000 != 0 {
		errs = append(errs, field.Invalid(path, quantity, "must be an integer"))
	}
	return errs
}

// ValidateNoBacksteps refuses paths that climb.
func ValidateNoBacksteps(target string, at *field.Path) field.ErrorList {
	if slices.Contains(strings.Split(target, "/"), "..") {
		return field.ErrorList{field.Invalid(at, target, "must not contain '..'")}
	}
	return nil
}

// descending wants a relative path that does not climb.
func descending(target string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if path.IsAbs(target) {
		errs = append(errs, field.Invalid(at, target, "must be a relative path"))
	}
	return append(errs, ValidateNoBacksteps(target, at)...)
}

// fileName is descending for files that are written beside the kubelet's own,
// which begin with two dots.
func fileName(target string, at *field.Path) field.ErrorList {
	errs := descending(target, at)
	if strings.HasPrefix(target, "..") && !strings.HasPrefix(target, "../") && target != ".." {
		errs = append(errs, field.Invalid(at, target, "must not start with '..'"))
	}
	return errs
}

func validMode(mode *int32, path *field.Path) field.ErrorList {
	if mode != nil && (*mode > 0o777 || *mode < 0) {
		return field.ErrorList{field.Invalid(path, *mode, "must be a number between 0 and 0777 (octal), both inclusive")}
	}
	return nil
}

// required wants a value that is not empty.
func required(value string, path *field.Path) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return nil
}
