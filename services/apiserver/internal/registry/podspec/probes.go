package podspec

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateProbe(probe *corev1.Probe, path *field.Path) field.ErrorList {
	if probe == nil {
		return nil
	}
	errs := validateHandlers([]handler{
		{"exec", probe.Exec != nil, func(p *field.Path) field.ErrorList { return validateExec(probe.Exec, p) }},
		{"httpGet", probe.HTTPGet != nil, func(p *field.Path) field.ErrorList { return validateHTTPGet(probe.HTTPGet, p) }},
		{"tcpSocket", probe.TCPSocket != nil, func(p *field.Path) field.ErrorList { return ValidatePort(probe.TCPSocket.Port, p.Child("port")) }},
		{"grpc", probe.GRPC != nil, func(p *field.Path) field.ErrorList {
			return ValidatePort(intstr.FromInt32(probe.GRPC.Port), p.Child("port"))
		}},
	}, path)
	for _, f := range []struct {
		name  string
		value int32
	}{
		{"initialDelaySeconds", probe.InitialDelaySeconds}, {"timeoutSeconds", probe.TimeoutSeconds}, {"periodSeconds", probe.PeriodSeconds},
		{"successThreshold", probe.SuccessThreshold}, {"failureThreshold", probe.FailureThreshold},
	} {
		errs = append(errs, apivalidation.ValidateNonnegativeField(int64(f.value), path.Child(f.name))...)
	}
	if s := probe.TerminationGracePeriodSeconds; s != nil && *s <= 0 {
		errs = append(errs, field.Invalid(path.Child("terminationGracePeriodSeconds"), *s, "must be greater than 0"))
	}
	return errs
}

func validateOneSuccess(probe *corev1.Probe, path *field.Path) field.ErrorList {
	if probe != nil && probe.SuccessThreshold != 1 {
		return field.ErrorList{field.Invalid(path.Child("successThreshold"), probe.SuccessThreshold, "must be 1")}
	}
	return nil
}

// handler is one of several ways to act of which exactly one is to be set.
type handler struct {
	name     string
	set      bool
	validate func(*field.Path) field.ErrorList
}

func validateHandlers(handlers []handler, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	found := false
	for _, h := range handlers {
		switch {
		case !h.set:
		case found:
			errs = append(errs, field.Forbidden(path.Child(h.name), "may not specify more than 1 handler type"))
		default:
			found = true
			errs = append(errs, h.validate(path.Child(h.name))...)
		}
	}
	if !found {
		errs = append(errs, field.Required(path, "must specify a handler type"))
	}
	return errs
}

func validateExec(exec *corev1.ExecAction, path *field.Path) field.ErrorList {
	if len(exec.Command) == 0 {
		return field.ErrorList{field.Required(path.Child("command"), "")}
	}
	return nil
}

func validateHTTPGet(get *corev1.HTTPGetAction, path *field.Path) field.ErrorList {
	errs := required(get.Path, path.Child("path"))
	errs = append(errs, ValidatePort(get.Port, path.Child("port"))...)
	errs = append(errs, notSupported(get.Scheme, path.Child("scheme"), corev1.URISchemeHTTP, corev1.URISchemeHTTPS)...)
	for _, header := range get.HTTPHeaders {
		errs = append(errs, invalid(path.Child("httpHeaders"), header.Name, utilvalidation.IsHTTPHeaderName(header.Name))...)
	}
	return errs
}

func (c *checker) validateLifecycle(lifecycle *corev1.Lifecycle, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if lifecycle.PostStart != nil {
		errs = append(errs, c.validateHook(lifecycle.PostStart, path.Child("postStart"))...)
	}
	if lifecycle.PreStop != nil {
		errs = append(errs, c.validateHook(lifecycle.PreStop, path.Child("preStop"))...)
	}
	if lifecycle.StopSignal != nil && c.spec.OS == nil {
		errs = append(errs, field.Forbidden(path.Child("stopSignal"), "may not be set for containers with empty `spec.os.name`"))
	}
	return errs
}

func (c *checker) validateHook(hook *corev1.LifecycleHandler, path *field.Path) field.ErrorList {
	return validateHandlers([]handler{
		{"exec", hook.Exec != nil, func(p *field.Path) field.ErrorList { return validateExec(hook.Exec, p) }},
		{"httpGet", hook.HTTPGet != nil, func(p *field.Path) field.ErrorList { return validateHTTPGet(hook.HTTPGet, p) }},
		{"tcpSocket", hook.TCPSocket != nil, func(p *field.Path) field.ErrorList { return ValidatePort(hook.TCPSocket.Port, p.Child("port")) }},
		{"sleep", hook.Sleep != nil, func(p *field.Path) field.ErrorList { return c.validateSleep(hook.Sleep, p) }},
	}, path)
}

func (c *checker) validateSleep(sleep *corev1.SleepAction, path *field.Path) field.ErrorList {
	grace := c.spec.TerminationGracePeriodSeconds
	if grace != nil && (sleep.Seconds < 0 || sleep.Seconds > *grace) {
		return field.ErrorList{field.Invalid(path, sleep.Seconds, fmt.Sprintf("must be non-negative and less than terminationGracePeriodSeconds (%d)", *grace))}
	}
	return nil
}
