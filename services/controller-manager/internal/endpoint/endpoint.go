// Package endpoint says which pods stand behind a Service, at which addresses
// and ports. The controllers of EndpointSlices and of Endpoints build on it.
package endpoint

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sampan-io/sampan/services/controller-manager/internal/pods"
)

// Port is a port of a Service as one pod offers it.
type Port struct {
	Name        string
	Number      int32
	Protocol    corev1.Protocol
	AppProtocol *string
}

// Headless says whether service has no address of its own.
func Headless(service *corev1.Service) bool { return service.Spec.ClusterIP == corev1.ClusterIPNone }

// Selects says whether service chooses its pods by label: services without a
// selector and external names have endpoints made by others, or none.
func Selects(service *corev1.Service) bool {
	return service.Spec.Selector != nil && service.Spec.Type != corev1.ServiceTypeExternalName
}

// Selector is the label selector of service.
func Selector(service *corev1.Service) labels.Selector {
	return labels.Set(service.Spec.Selector).AsSelectorPreValidated()
}

// Included says whether pod can be an endpoint at all: it has an address and has
// not ended. Pods that are terminating are included.
func Included(pod *corev1.Pod) bool {
	return !pods.Terminal(pod) && len(Addresses(pod)) > 0
}

// Addresses is the addresses of pod, of every family.
func Addresses(pod *corev1.Pod) []string {
	var found []string
	for _, ip := range pod.Status.PodIPs {
		found = append(found, ip.IP)
	}
	if len(found) == 0 && pod.Status.PodIP != "" {
		found = []string{pod.Status.PodIP}
	}
	return found
}

// Address is the first address of pod in family, or empty.
func Address(pod *corev1.Pod, family corev1.IPFamily) string {
	for _, text := range Addresses(pod) {
		addr, err := netip.ParseAddr(text)
		if err == nil && addr.Is4() == (family == corev1.IPv4Protocol) {
			return text
		}
	}
	return ""
}

// Families is the IP families that service wants endpoints for.
func Families(service *corev1.Service) []corev1.IPFamily {
	if len(service.Spec.IPFamilies) > 0 {
		return service.Spec.IPFamilies
	}
	if addr, err := netip.ParseAddr(service.Spec.ClusterIP); err == nil && addr.Is6() {
		return []corev1.IPFamily{corev1.IPv6Protocol}
	}
	return []corev1.IPFamily{corev1.IPv4Protocol}
}

// Hostname is the name of pod's own below the name of service, or empty.
func Hostname(pod *corev1.Pod, service *corev1.Service) string {
	if pod.Spec.Subdomain == service.Name && pod.Namespace == service.Namespace {
		return pod.Spec.Hostname
	}
	return ""
}

// Ports resolves the target ports of service against pod. A port whose name pod
// does not have is left out.
func Ports(pod *corev1.Pod, service *corev1.Service) []Port {
	var found []Port
	for i := range service.Spec.Ports {
		port := &service.Spec.Ports[i]
		protocol := port.Protocol
		if protocol == "" {
			protocol = corev1.ProtocolTCP
		}
		if number, ok := target(pod, port, protocol); ok {
			found = append(found, Port{Name: port.Name, Number: number, Protocol: protocol, AppProtocol: port.AppProtocol})
		}
	}
	return found
}

func target(pod *corev1.Pod, port *corev1.ServicePort, protocol corev1.Protocol) (int32, bool) {
	if port.TargetPort.Type == intstr.Int {
		if port.TargetPort.IntVal == 0 {
			return port.Port, true
		}
		return port.TargetPort.IntVal, true
	}
	for i := range pod.Spec.Containers {
		if number, ok := named(&pod.Spec.Containers[i], port.TargetPort.StrVal, protocol); ok {
			return number, true
		}
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			continue
		}
		if number, ok := named(c, port.TargetPort.StrVal, protocol); ok {
			return number, true
		}
	}
	return 0, false
}

func named(container *corev1.Container, name string, protocol corev1.Protocol) (int32, bool) {
	for _, port := range container.Ports {
		with := port.Protocol
		if with == "" {
			with = corev1.ProtocolTCP
		}
		if port.Name == name && with == protocol {
			return port.ContainerPort, true
		}
	}
	return 0, false
}

// PortsKey is equal for equal sets of ports, in whatever order.
func PortsKey(ports []Port) string {
	keys := make([]string, len(ports))
	for i, port := range ports {
		app := ""
		if port.AppProtocol != nil {
			app = *port.AppProtocol
		}
		keys[i] = fmt.Sprintf("%s/%s/%d/%s", port.Name, port.Protocol, port.Number, app)
	}
	slices.Sort(keys)
	return strings.Join(keys, " ")
}

// Relevant says whether the change from old to pod can matter to a Service.
func Relevant(old, pod *corev1.Pod) bool {
	return pods.Ready(old) != pods.Ready(pod) ||
		(old.DeletionTimestamp == nil) != (pod.DeletionTimestamp == nil) ||
		pods.Terminal(old) != pods.Terminal(pod) ||
		old.Spec.NodeName != pod.Spec.NodeName ||
		old.Spec.Hostname != pod.Spec.Hostname || old.Spec.Subdomain != pod.Spec.Subdomain ||
		!slices.Equal(Addresses(old), Addresses(pod)) ||
		!labels.Equals(old.Labels, pod.Labels)
}
