package podspec

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateEphemeralContainersUpdate checks that containers were only added.
func ValidateEphemeralContainersUpdate(pod, old *corev1.Pod) field.ErrorList {
	if _, mirror := old.Annotations[mirrorAnnotation]; mirror {
		return field.ErrorList{field.Forbidden(field.NewPath(""), "static pods do not support ephemeral containers")}
	}
	errs := validatePod(pod)
	errs = append(errs, validateAnnotationUpdate(pod, old, field.NewPath("metadata", "annotations"))...)
	now := map[string]*corev1.EphemeralContainer{}
	for i := range pod.Spec.EphemeralContainers {
		now[pod.Spec.EphemeralContainers[i].Name] = &pod.Spec.EphemeralContainers[i]
	}
	path := field.NewPath("spec", "ephemeralContainers")
	for i := range old.Spec.EphemeralContainers {
		was := &old.Spec.EphemeralContainers[i]
		if is := now[was.Name]; is == nil {
			errs = append(errs, field.Forbidden(path, fmt.Sprintf("existing ephemeral containers %q may not be removed\n", was.Name)))
		} else if !apiequality.Semantic.DeepEqual(*was, *is) {
			errs = append(errs, field.Forbidden(path, fmt.Sprintf("existing ephemeral containers %q may not be changed\n%v", was.Name, diff.Diff(*was, *is))))
		}
	}
	return errs
}

// ValidateResize checks a change of containers' resources (KEP-1287).
func ValidateResize(pod, old *corev1.Pod) field.ErrorList {
	whole := field.NewPath("")
	if _, mirror := old.Annotations[mirrorAnnotation]; mirror {
		return field.ErrorList{field.Forbidden(whole, "static pods cannot be resized")}
	}
	if old.Spec.OS != nil && old.Spec.OS.Name == corev1.Windows {
		return field.ErrorList{field.Forbidden(whole, "windows pods cannot be resized")}
	}
	path := field.NewPath("spec")
	if hasPodResources(&old.Spec) || hasPodResources(&pod.Spec) {
		if !apiequality.Semantic.DeepEqual(pod.Spec.Resources, old.Spec.Resources) {
			return field.ErrorList{field.Forbidden(whole, "pods with pod-level resources cannot be resized")}
		}
	}
	errs := validatePod(pod)
	if len(pod.Spec.Containers) != len(old.Spec.Containers) || len(pod.Spec.InitContainers) != len(old.Spec.InitContainers) {
		return append(errs, field.Forbidden(path, "containers may not be added or removed"))
	}
	if QOS(&pod.Spec) != old.Status.QOSClass && old.Status.QOSClass != "" {
		errs = append(errs, field.Invalid(path, pod.Status.QOSClass, "Pod QOS Class may not change as a result of resizing"))
	}
	if !resizable(old) {
		errs = append(errs, field.Forbidden(path, "Pod running on node without support for resize"))
	}
	errs = append(errs, validateResizes(pod.Spec.Containers, old.Spec.Containers, false, path.Child("containers"))...)
	errs = append(errs, validateResizes(pod.Spec.InitContainers, old.Spec.InitContainers, true, path.Child("initContainers"))...)
	return append(errs, validateOnlyResized(pod, old, path)...)
}

func hasPodResources(spec *corev1.PodSpec) bool {
	return spec.Resources != nil && len(spec.Resources.Requests)+len(spec.Resources.Limits) > 0
}

// resizable says that the pod's node reports resources, or that it does not run
// yet.
func resizable(pod *corev1.Pod) bool {
	for i := range pod.Status.ContainerStatuses {
		if c := &pod.Status.ContainerStatuses[i]; c.State.Running != nil {
			return c.Resources != nil
		}
	}
	return true
}

func validateResizes(now, old []corev1.Container, initial bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range old {
		if initial && !isSidecar(&old[i]) {
			continue
		}
		at := path.Index(i).Child("resources")
		if removed(now[i].Resources.Requests, old[i].Resources.Requests) {
			errs = append(errs, field.Forbidden(at.Child("requests"), "resource requests cannot be removed"))
		}
		if removed(now[i].Resources.Limits, old[i].Resources.Limits) {
			errs = append(errs, field.Forbidden(at.Child("limits"), "resource limits cannot be removed"))
		}
	}
	return errs
}

func removed(now, old corev1.ResourceList) bool {
	for name := range old {
		if _, kept := now[name]; !kept {
			return true
		}
	}
	return false
}

// validateOnlyResized refuses changes of anything but CPU and memory.
func validateOnlyResized(pod, old *corev1.Pod, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	rest := pod.Spec.DeepCopy()
	for i := range rest.Containers {
		restoreCompute(&rest.Containers[i], &old.Spec.Containers[i])
		if !apiequality.Semantic.DeepEqual(rest.Containers[i], old.Spec.Containers[i]) {
			errs = append(errs, field.Forbidden(path, "only cpu and memory resources are mutable"))
		}
	}
	for i := range rest.InitContainers {
		message := "resources for non-sidecar init containers are immutable"
		if isSidecar(&rest.InitContainers[i]) {
			message = "only cpu and memory resources for sidecar containers are mutable"
			restoreCompute(&rest.InitContainers[i], &old.Spec.InitContainers[i])
		}
		if !apiequality.Semantic.DeepEqual(rest.InitContainers[i], old.Spec.InitContainers[i]) {
			errs = append(errs, field.Forbidden(path, message))
		}
	}
	if len(errs) == 0 && !apiequality.Semantic.DeepEqual(*rest, old.Spec) {
		errs = append(errs, field.Forbidden(path, "only cpu and memory resources are mutable"))
	}
	return errs
}

// restoreCompute sets CPU and memory back to what they were.
func restoreCompute(c, old *corev1.Container) {
	c.Resources.Limits = withComputeOf(c.Resources.Limits, old.Resources.Limits)
	c.Resources.Requests = withComputeOf(c.Resources.Requests, old.Resources.Requests)
}

func withComputeOf(list, old corev1.ResourceList) corev1.ResourceList {
	out := list.DeepCopy()
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		delete(out, name)
		if quantity, had := old[name]; had {
			if out == nil {
				out = corev1.ResourceList{}
			}
			out[name] = quantity
		}
	}
	if len(out) == 0 && old == nil {
		return nil
	}
	return out
}
