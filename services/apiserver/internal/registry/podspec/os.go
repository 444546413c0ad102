package podspec

import (
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// eachContainer visits all containers with their paths, ephemeral ones as
// ordinary ones.
func eachContainer(spec *corev1.PodSpec, path *field.Path, visit func(*corev1.Container, *field.Path)) {
	for i := range spec.InitContainers {
		visit(&spec.InitContainers[i], path.Child("initContainers").Index(i))
	}
	for i := range spec.Containers {
		visit(&spec.Containers[i], path.Child("containers").Index(i))
	}
	for i := range spec.EphemeralContainers {
		c := corev1.Container(spec.EphemeralContainers[i].EphemeralContainerCommon)
		visit(&c, path.Child("ephemeralContainers").Index(i))
	}
}

// validateOS refuses what the pod's operating system has not.
func validateOS(spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	if spec.OS == nil {
		return nil
	}
	switch spec.OS.Name {
	case "":
		return field.ErrorList{field.Required(path.Child("os", "name"), "cannot be empty")}
	case corev1.Linux:
		return validateLinux(spec, path)
	case corev1.Windows:
		return validateWindows(spec, path)
	default:
		return field.ErrorList{field.NotSupported(path.Child("os"), spec.OS.Name, []corev1.OSName{corev1.Linux, corev1.Windows})}
	}
}

func validateLinux(spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	const refused = "windows options cannot be set for a linux pod"
	var errs field.ErrorList
	if sc := spec.SecurityContext; sc != nil && sc.WindowsOptions != nil {
		errs = append(errs, field.Forbidden(path.Child("securityContext", "windowsOptions"), refused))
	}
	eachContainer(spec, path, func(c *corev1.Container, at *field.Path) {
		if c.SecurityContext != nil && c.SecurityContext.WindowsOptions != nil {
			errs = append(errs, field.Forbidden(at.Child("securityContext", "windowsOptions"), refused))
		}
	})
	return errs
}

func validateWindows(spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	const refused = "cannot be set for a windows pod"
	var errs field.ErrorList
	for name, set := range map[string]bool{
		"hostUsers": spec.HostUsers != nil, "hostPID": spec.HostPID, "hostIPC": spec.HostIPC, "shareProcessNamespace": spec.ShareProcessNamespace != nil,
	} {
		if set {
			errs = append(errs, field.Forbidden(path.Child(name), refused))
		}
	}
	// All of a security context is Linux's but what is named here.
	forbid := func(sc any, at *field.Path) {
		value := reflect.ValueOf(sc).Elem()
		for i := range value.NumField() {
			name := jsonName(value.Type().Field(i))
			if name != "windowsOptions" && name != "runAsNonRoot" && !value.Field(i).IsZero() {
				errs = append(errs, field.Forbidden(at.Child("securityContext", name), refused))
			}
		}
	}
	if spec.SecurityContext != nil {
		forbid(spec.SecurityContext, path)
	}
	eachContainer(spec, path, func(c *corev1.Container, at *field.Path) {
		if c.SecurityContext != nil {
			forbid(c.SecurityContext, at)
		}
	})
	return errs
}

// validateHostProcess wants all containers of a Windows pod to be processes of
// the host, or none.
func (c *checker) validateHostProcess(path *field.Path) field.ErrorList {
	var whole *bool
	if sc := c.spec.SecurityContext; sc != nil && sc.WindowsOptions != nil {
		whole = sc.WindowsOptions.HostProcess
	}
	var errs field.ErrorList
	count, host := 0, 0
	eachContainer(c.spec, path, func(container *corev1.Container, at *field.Path) {
		count++
		var own *bool
		if sc := container.SecurityContext; sc != nil && sc.WindowsOptions != nil {
			own = sc.WindowsOptions.HostProcess
		}
		if whole != nil && own != nil && *whole != *own {
			errs = append(errs, field.Invalid(at.Child("securityContext", "windowsOptions", "hostProcess"), *own,
				fmt.Sprintf("pod hostProcess value must be identical if both are specified, was %v", *whole)))
		}
		if (own != nil && *own) || (own == nil && whole != nil && *whole) {
			host++
		}
	})
	if host > 0 && host != count {
		errs = append(errs, field.Invalid(path, "", "If pod contains any hostProcess containers then all containers must be HostProcess containers"))
	}
	if host > 0 && !c.spec.HostNetwork {
		errs = append(errs, field.Invalid(path.Child("hostNetwork"), false, "hostNetwork must be true if pod contains any hostProcess containers"))
	}
	return errs
}
