package core

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

func serviceColumns() []metav1.TableColumnDefinition {
	doc := corev1.ServiceSpec{}.SwaggerDoc()
	return []metav1.TableColumnDefinition{
		table.Name(),
		table.String("Type", doc["type"]),
		table.String("Cluster-IP", doc["clusterIP"]),
		table.String("External-IP", doc["externalIPs"]),
		table.String("Port(s)", doc["ports"]),
		table.Age(),
		table.Wide(table.String("Selector", doc["selector"])),
	}
}

func serviceRow(obj *corev1.Service) []any {
	clusterIP := table.None
	if len(obj.Spec.ClusterIPs) > 0 {
		clusterIP = obj.Spec.ClusterIPs[0]
	} else if obj.Spec.ClusterIP != "" {
		clusterIP = obj.Spec.ClusterIP
	}
	return []any{
		obj.Name, string(obj.Spec.Type), clusterIP, externalIP(obj), servicePorts(obj.Spec.Ports),
		table.Since(obj.CreationTimestamp), table.Labels(obj.Spec.Selector),
	}
}

func externalIP(obj *corev1.Service) string {
	switch obj.Spec.Type {
	case corev1.ServiceTypeLoadBalancer:
		list := append(balancerIPs(obj), obj.Spec.ExternalIPs...)
		if len(list) == 0 {
			return "<pending>"
		}
		return strings.Join(list, ",")
	case corev1.ServiceTypeExternalName:
		return obj.Spec.ExternalName
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort:
		return table.OrNone(strings.Join(obj.Spec.ExternalIPs, ","))
	}
	return "<unknown>"
}

// balancerIPs are a load balancer's addresses, sorted and without repeats.
func balancerIPs(obj *corev1.Service) []string {
	var list []string
	for _, ingress := range obj.Status.LoadBalancer.Ingress {
		if ingress.IP != "" {
			list = append(list, ingress.IP)
		} else if ingress.Hostname != "" {
			list = append(list, ingress.Hostname)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

func servicePorts(ports []corev1.ServicePort) string {
	list := make([]string, len(ports))
	for i, p := range ports {
		list[i] = fmt.Sprintf("%d/%s", p.Port, p.Protocol)
		if p.NodePort > 0 {
			list[i] = fmt.Sprintf("%d:%d/%s", p.Port, p.NodePort, p.Protocol)
		}
	}
	return table.OrNone(strings.Join(list, ","))
}
