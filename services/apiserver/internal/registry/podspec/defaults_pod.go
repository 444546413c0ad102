package podspec

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// DefaultPod sets a pod's absent fields: those of every pod spec, and those
// that only pods have, not templates.
func DefaultPod(pod *corev1.Pod) {
	Default(&pod.Spec)
	requestsFromLimits(pod.Spec.Containers)
	requestsFromLimits(pod.Spec.InitContainers)
	defaultPodResources(&pod.Spec)
	if pod.Spec.EnableServiceLinks == nil {
		pod.Spec.EnableServiceLinks = ptr.To(corev1.DefaultEnableServiceLinks)
	}
	if pod.Spec.HostNetwork {
		defaultHostPorts(pod.Spec.Containers)
		defaultHostPorts(pod.Spec.InitContainers)
	}
}

// requestsFromLimits makes a container that is limited but requests nothing
// request its limit.
func requestsFromLimits(containers []corev1.Container) {
	for i := range containers {
		r := &containers[i].Resources
		if r.Limits != nil && r.Requests == nil {
			r.Requests = corev1.ResourceList{}
		}
		for name, limit := range r.Limits {
			if _, set := r.Requests[name]; !set {
				r.Requests[name] = limit.DeepCopy()
			}
		}
	}
}

// defaultHostPorts gives every port of a pod in the host's network the host
// port that it is.
func defaultHostPorts(containers []corev1.Container) {
	for i := range containers {
		for j := range containers[i].Ports {
			if port := &containers[i].Ports[j]; port.HostPort == 0 {
				port.HostPort = port.ContainerPort
			}
		}
	}
}
