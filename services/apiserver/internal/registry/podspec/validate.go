package podspec

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidatePod checks a new pod.
func ValidatePod(pod *corev1.Pod) field.ErrorList {
	return ValidateSpec(&pod.Spec, field.NewPath("spec"))
}

// ValidateSpec checks a pod spec.
func ValidateSpec(spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(spec.Containers) == 0 {
		errs = append(errs, field.Required(path.Child("containers"), ""))
	}
	for i := range spec.Containers {
		c, at := &spec.Containers[i], path.Child("containers").Index(i)
		if c.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		}
		if c.Image == "" {
			errs = append(errs, field.Required(at.Child("image"), ""))
		}
	}
	return errs
}

// ValidateTemplate checks a pod template.
func ValidateTemplate(template *corev1.PodTemplateSpec, path *field.Path) field.ErrorList {
	return ValidateSpec(&template.Spec, path.Child("spec"))
}

// ValidatePodUpdate checks a change of the main resource.
func ValidatePodUpdate(pod, _ *corev1.Pod) field.ErrorList { return ValidatePod(pod) }

// ValidatePodStatusUpdate checks a change of the status.
func ValidatePodStatusUpdate(pod, old *corev1.Pod) field.ErrorList {
	if pod.Spec.NodeName != old.Spec.NodeName {
		return field.ErrorList{field.Forbidden(field.NewPath("spec", "nodeName"), "may not be changed directly")}
	}
	return nil
}

// ValidateEphemeralContainersUpdate checks that containers were only added.
func ValidateEphemeralContainersUpdate(pod, _ *corev1.Pod) field.ErrorList { return ValidatePod(pod) }

// ValidateResize checks a change of containers' resources.
func ValidateResize(pod, _ *corev1.Pod) field.ErrorList { return ValidatePod(pod) }

// ValidateQuantities refuses negative quantities.
func ValidateQuantities(list corev1.ResourceList, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(list)) {
		quantity := list[name]
		if quantity.Cmp(resource.Quantity{}) < 0 {
			errs = append(errs, field.Invalid(path.Key(string(name)), quantity.String(), "must be greater than or equal to 0"))
		}
	}
	return errs
}

// ValidateProtocol wants one of the transport protocols.
func ValidateProtocol(protocol corev1.Protocol, path *field.Path) field.ErrorList {
	supported := []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}
	switch {
	case protocol == "":
		return field.ErrorList{field.Required(path, "")}
	case !slices.Contains(supported, protocol):
		return field.ErrorList{field.NotSupported(path, protocol, supported)}
	}
	return nil
}
