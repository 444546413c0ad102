package podspec

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidatePodStatusUpdate checks a change of the status.
func ValidatePodStatusUpdate(pod, old *corev1.Pod) field.ErrorList {
	path := field.NewPath("status")
	now, was := &pod.Status, &old.Status
	errs := validateAnnotations(pod.Annotations, &pod.Spec, field.NewPath("metadata", "annotations"))
	errs = append(errs, validateAnnotationUpdate(pod, old, field.NewPath("metadata", "annotations"))...)
	errs = append(errs, validateConditions(now.Conditions, field.NewPath("metadata", "conditions"))...)
	if now.NominatedNodeName != was.NominatedNodeName && now.NominatedNodeName != "" {
		errs = append(errs, invalid(path.Child("nominatedNodeName"), now.NominatedNodeName, apivalidation.NameIsDNSSubdomain(now.NominatedNodeName, false))...)
	}
	errs = append(errs, apivalidation.ValidateImmutableField(now.QOSClass, was.QOSClass, path.Child("qosClass"))...)
	if !restartsAll(&old.Spec) { // else each may come back, whatever its own policy
		errs = append(errs, validateTransitions(now.ContainerStatuses, was.ContainerStatuses, old.Spec.Containers, old.Spec.RestartPolicy, path.Child("containerStatuses"))...)
		errs = append(errs, validateTransitions(now.InitContainerStatuses, was.InitContainerStatuses, old.Spec.InitContainers, old.Spec.RestartPolicy, path.Child("initContainerStatuses"))...)
	}
	errs = append(errs, validateTransitions(now.EphemeralContainerStatuses, was.EphemeralContainerStatuses, nil, corev1.RestartPolicyNever, path.Child("ephemeralContainerStatuses"))...)
	errs = append(errs, validateIPs(podIPs(pod), now.PodIPs, path.Child("podIPs"))...)
	return append(errs, validateHostIPs(pod, path.Child("hostIPs"))...)
}

// restartsAll tells whether a container's rules may restart all of the pod's
// (KEP-5532).
func restartsAll(spec *corev1.PodSpec) bool {
	for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			for _, rule := range list[i].RestartPolicyRules {
				if rule.Action == corev1.ContainerRestartRuleActionRestartAllContainers {
					return true
				}
			}
		}
	}
	return false
}

func validateConditions(conditions []corev1.PodCondition, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, c := range conditions {
		switch c.Type {
		case corev1.PodScheduled, corev1.PodReady, corev1.PodInitialized:
		default:
			errs = append(errs, qualifiedName(string(c.Type), path.Index(i).Child("Type"))...)
		}
	}
	return errs
}

// validateTransitions keeps containers that have ended for good from coming
// back to life.
func validateTransitions(now, old []corev1.ContainerStatus, containers []corev1.Container, restart corev1.RestartPolicy, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range old {
		ended := old[i].State.Terminated
		if ended == nil || mayRestart(old[i].Name, ended.ExitCode, containers, restart) {
			continue
		}
		for j := range now {
			if now[j].Name == old[i].Name && now[j].State.Terminated == nil {
				errs = append(errs, field.Forbidden(path.Index(i).Child("state"), "may not be transitioned to non-terminated state"))
			}
		}
	}
	return errs
}

func mayRestart(name string, exitCode int32, containers []corev1.Container, restart corev1.RestartPolicy) bool {
	for i := range containers {
		c := &containers[i]
		if c.Name == name && (len(c.RestartPolicyRules) > 0 || c.RestartPolicy != nil) {
			if len(c.RestartPolicyRules) > 0 {
				return true
			}
			restart = corev1.RestartPolicy(*c.RestartPolicy)
		}
	}
	return restart == corev1.RestartPolicyAlways || (restart == corev1.RestartPolicyOnFailure && exitCode != 0)
}

func podIPs(pod *corev1.Pod) []string {
	var out []string
	for _, ip := range pod.Status.PodIPs {
		out = append(out, ip.IP)
	}
	return out
}

// validateIPs wants at most one address of each family, and none twice.
func validateIPs(ips []string, shown any, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	v4, v6 := 0, 0
	for i, ip := range ips {
		bad := utilvalidation.IsValidIPForLegacyField(path.Index(i), ip, false, nil)
		errs = append(errs, bad...)
		if addr, err := netip.ParseAddr(ip); err == nil {
			if addr.Unmap().Is4() {
				v4++
			} else {
				v6++
			}
		}
		if slices.Contains(ips[:i], ip) {
			errs = append(errs, field.Duplicate(path.Index(i), ip))
		}
	}
	if v4 > 1 || v6 > 1 {
		errs = append(errs, field.Invalid(path, shown, "may specify no more than one IP for each IP family"))
	}
	return errs
}

func validateHostIPs(pod *corev1.Pod, path *field.Path) field.ErrorList {
	list := pod.Status.HostIPs
	if len(list) == 0 {
		return nil
	}
	var errs field.ErrorList
	if pod.Status.HostIP != list[0].IP {
		errs = append(errs, field.Invalid(path.Index(0).Child("ip"), list[0].IP, "must be equal to `hostIP`"))
	}
	var ips []string
	for _, ip := range list {
		ips = append(ips, ip.IP)
	}
	return append(errs, validateIPs(ips, list, path)...)
}
