package env

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// PodField is the value of a field of the pod that the downward API has.
func PodField(pod *corev1.Pod, path string, podIPs, hostIPs []string) (string, error) {
	if field, key, subscripted := splitSubscript(path); subscripted {
		switch field {
		case "metadata.annotations":
			return pod.Annotations[key], nil
		case "metadata.labels":
			return pod.Labels[key], nil
		}
		return "", fmt.Errorf("fieldPath %q does not support subscript", path)
	}
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.annotations":
		return formatMap(pod.Annotations), nil
	case "metadata.labels":
		return formatMap(pod.Labels), nil
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP":
		return first(hostIPs), nil
	case "status.hostIPs":
		return strings.Join(hostIPs, ","), nil
	case "status.podIP":
		return first(podIPs), nil
	case "status.podIPs":
		return strings.Join(podIPs, ","), nil
	}
	return "", fmt.Errorf("unsupported fieldPath: %v", path)
}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

// splitSubscript takes metadata.labels['key'] apart.
func splitSubscript(path string) (field, key string, ok bool) {
	field, rest, found := strings.Cut(path, "['")
	if !found || !strings.HasSuffix(rest, "']") {
		return path, "", false
	}
	return field, strings.TrimSuffix(rest, "']"), true
}

func formatMap(values map[string]string) string {
	lines := make([]string, 0, len(values))
	for _, key := range slices.Sorted(maps.Keys(values)) {
		lines = append(lines, fmt.Sprintf("%s=%q", key, values[key]))
	}
	return strings.Join(lines, "\n")
}

// Resource is the value of a resource reference, rounded up to its divisor. A
// limit that the container does not have is what the node can give.
func Resource(ref *corev1.ResourceFieldSelector, container *corev1.Container, allocatable corev1.ResourceList) (string, error) {
	kind, name, found := strings.Cut(ref.Resource, ".")
	if !found {
		return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
	}
	var quantity resource.Quantity
	resourceName := corev1.ResourceName(name)
	switch kind {
	case "limits":
		var limited bool
		if quantity, limited = container.Resources.Limits[resourceName]; !limited || quantity.IsZero() {
			quantity = allocatable[resourceName]
		}
	case "requests":
		quantity = container.Resources.Requests[resourceName]
	default:
		return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
	}
	divisor := ref.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	if resourceName == corev1.ResourceCPU {
		return strconv.FormatInt(divideUp(quantity.MilliValue(), divisor.MilliValue()), 10), nil
	}
	return strconv.FormatInt(divideUp(quantity.Value(), divisor.Value()), 10), nil
}

func divideUp(value, divisor int64) int64 {
	if divisor <= 0 {
		return value
	}
	return (value + divisor - 1) / divisor
}
