package env

import (
	"net"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// serviceVars are the variables that tell of Services: those of the pod's
// namespace if it wants them, and always the cluster's own.
func serviceVars(in Input) map[string]string {
	values := map[string]string{}
	links := in.Pod.Spec.EnableServiceLinks == nil || *in.Pod.Spec.EnableServiceLinks
	for _, service := range sortedServices(in.Services) {
		master := service.Namespace == in.MasterNamespace && service.Name == "kubernetes"
		if !master && (!links || service.Namespace != in.Pod.Namespace) {
			continue
		}
		if ip := service.Spec.ClusterIP; ip != "" && ip != corev1.ClusterIPNone {
			addService(values, service)
		}
	}
	return values
}

func addService(values map[string]string, service *corev1.Service) {
	ports := service.Spec.Ports
	if len(ports) == 0 {
		return
	}
	ip, prefix := service.Spec.ClusterIP, envName(service.Name)
	values[prefix+"_SERVICE_HOST"] = ip
	values[prefix+"_SERVICE_PORT"] = strconv.Itoa(int(ports[0].Port))
	for i, port := range ports {
		number, protocol := strconv.Itoa(int(port.Port)), strings.ToUpper(string(port.Protocol))
		if protocol == "" {
			protocol = string(corev1.ProtocolTCP)
		}
		url := strings.ToLower(protocol) + "://" + net.JoinHostPort(ip, number)
		if port.Name != "" {
			values[prefix+"_SERVICE_PORT_"+envName(port.Name)] = number
		}
		if i == 0 {
			values[prefix+"_PORT"] = url
		}
		key := prefix + "_PORT_" + number + "_" + protocol
		values[key], values[key+"_PROTO"], values[key+"_PORT"], values[key+"_ADDR"] = url, strings.ToLower(protocol), number, ip
	}
}

func envName(name string) string { return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }
