package core

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
)

// validateService checks a Service. Addresses that are given out later may
// still be missing.
func validateService(obj, old *corev1.Service) field.ErrorList {
	spec, path := &obj.Spec, field.NewPath("spec")
	errs := validateTopologyAnnotations(obj)
	if len(spec.Ports) == 0 && !isHeadless(obj) && spec.Type != corev1.ServiceTypeExternalName {
		errs = append(errs, field.Required(path.Child("ports"), ""))
	}
	errs = append(errs, validateServiceType(obj, path)...)
	errs = append(errs, validateServicePorts(obj, path.Child("ports"))...)
	errs = append(errs, metav1validation.ValidateLabels(spec.Selector, path.Child("selector"))...)
	errs = append(errs, validateAffinity(spec, path)...)
	errs = append(errs, validateClusterIPFields(obj)...)
	for i, ip := range spec.ExternalIPs {
		at := path.Child("externalIPs").Index(i)
		if bad := utilvalidation.IsValidIPForLegacyField(at, ip, true, externalIPs(old)); len(bad) > 0 {
			errs = append(errs, bad...)
		} else {
			errs = append(errs, ValidateEndpointIP(ip, at)...)
		}
	}
	errs = append(errs, validateSourceRanges(obj, old, path)...)
	errs = append(errs, validateBalancerFields(obj, old, path)...)
	errs = append(errs, validateExternalPolicy(obj, path)...)
	errs = append(errs, validateInternalPolicy(obj, path)...)
	if d := spec.TrafficDistribution; d != nil {
		supported := []string{corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameNode, corev1.ServiceTrafficDistributionPreferSameZone}
		errs = append(errs, oneOf(*d, path.Child("trafficDistribution"), supported...)...)
	}
	return errs
}

func externalIPs(old *corev1.Service) []string {
	if old == nil {
		return nil
	}
	return old.Spec.ExternalIPs
}

// oneOf refuses values that are not supported.
func oneOf[T ~string](value T, path *field.Path, supported ...T) field.ErrorList {
	for _, s := range supported {
		if value == s {
			return nil
		}
	}
	return field.ErrorList{field.NotSupported(path, value, supported)}
}

// requiredOneOf also refuses none.
func requiredOneOf[T ~string](value T, path *field.Path, supported ...T) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return oneOf(value, path, supported...)
}

func isHeadless(obj *corev1.Service) bool {
	return len(obj.Spec.ClusterIPs) == 1 && obj.Spec.ClusterIPs[0] == corev1.ClusterIPNone
}

func validateTopologyAnnotations(obj *corev1.Service) field.ErrorList {
	hints, hinted := obj.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]
	mode, set := obj.Annotations[corev1.AnnotationTopologyMode]
	if set && hinted && mode != hints {
		return field.ErrorList{field.Invalid(field.NewPath("metadata", "annotations").Key(corev1.AnnotationTopologyMode), mode,
			fmt.Sprintf("must match annotations[%s] when both are specified", corev1.DeprecatedAnnotationTopologyAwareHints))}
	}
	return nil
}

func validateServiceType(obj *corev1.Service, path *field.Path) field.ErrorList {
	spec := &obj.Spec
	errs := requiredOneOf(spec.Type, path.Child("type"),
		corev1.ServiceTypeClusterIP, corev1.ServiceTypeExternalName, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort)
	switch spec.Type {
	case corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort:
		if isHeadless(obj) {
			errs = append(errs, field.Invalid(path.Child("clusterIPs").Index(0), spec.ClusterIPs[0], fmt.Sprintf("may not be set to 'None' for %s services", spec.Type)))
		}
	case corev1.ServiceTypeExternalName:
		const refused = "may not be set for ExternalName services"
		if len(spec.ClusterIPs) > 0 {
			errs = append(errs, field.Forbidden(path.Child("clusterIPs"), refused))
		}
		if len(spec.IPFamilies) > 0 {
			errs = append(errs, field.Forbidden(path.Child("ipFamilies"), refused))
		}
		if spec.IPFamilyPolicy != nil {
			errs = append(errs, field.Forbidden(path.Child("ipFamilyPolicy"), refused))
		}
		at := path.Child("externalName")
		name := strings.TrimSuffix(spec.ExternalName, ".")
		if name == "" {
			return append(errs, field.Required(at, ""))
		}
		for _, msg := range utilvalidation.IsDNS1123Subdomain(name) {
			errs = append(errs, field.Invalid(at, name, msg))
		}
	}
	return errs
}

func validateServicePorts(obj *corev1.Service, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := map[string]bool{}
	for i := range obj.Spec.Ports {
		errs = append(errs, validateServicePort(&obj.Spec.Ports[i], len(obj.Spec.Ports) > 1, names, path.Index(i))...)
	}
	type key struct {
		protocol corev1.Protocol
		number   int32
	}
	nodePorts, ports := map[key]bool{}, map[key]bool{}
	for i, port := range obj.Spec.Ports {
		if port.NodePort != 0 {
			at := path.Index(i).Child("nodePort")
			if obj.Spec.Type == corev1.ServiceTypeClusterIP {
				errs = append(errs, field.Forbidden(at, "may not be used when `type` is 'ClusterIP'"))
			}
			id := key{port.Protocol, port.NodePort}
			if nodePorts[id] {
				errs = append(errs, field.Duplicate(at, port.NodePort))
			}
			nodePorts[id] = true
		}
		id := key{port.Protocol, port.Port}
		if ports[id] {
			errs = append(errs, field.Duplicate(path.Index(i), corev1.ServicePort{Protocol: port.Protocol, Port: port.Port}))
		}
		ports[id] = true
	}
	return errs
}

func validateServicePort(port *corev1.ServicePort, named bool, names map[string]bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if port.Name == "" && named {
		errs = append(errs, field.Required(path.Child("name"), ""))
	} else if port.Name != "" {
		for _, msg := range utilvalidation.IsDNS1123Label(port.Name) {
			errs = append(errs, field.Invalid(path.Child("name"), port.Name, msg))
		}
		if names[port.Name] {
			errs = append(errs, field.Duplicate(path.Child("name"), port.Name))
		}
		names[port.Name] = true
	}
	for _, msg := range utilvalidation.IsValidPortNum(int(port.Port)) {
		errs = append(errs, field.Invalid(path.Child("port"), port.Port, msg))
	}
	errs = append(errs, podspec.ValidateProtocol(port.Protocol, path.Child("protocol"))...)
	errs = append(errs, podspec.ValidatePort(port.TargetPort, path.Child("targetPort"))...)
	if port.AppProtocol != nil {
		for _, msg := range utilvalidation.IsQualifiedName(*port.AppProtocol) {
			errs = append(errs, field.Invalid(path.Child("appProtocol"), *port.AppProtocol, msg))
		}
	}
	return errs
}

func validateAffinity(spec *corev1.ServiceSpec, path *field.Path) field.ErrorList {
	errs := requiredOneOf(spec.SessionAffinity, path.Child("sessionAffinity"), corev1.ServiceAffinityClientIP, corev1.ServiceAffinityNone)
	at := path.Child("sessionAffinityConfig")
	config := spec.SessionAffinityConfig
	switch spec.SessionAffinity {
	case corev1.ServiceAffinityNone:
		if config != nil {
			errs = append(errs, field.Forbidden(at, fmt.Sprintf("must not be set when session affinity is %s", corev1.ServiceAffinityNone)))
		}
	case corev1.ServiceAffinityClientIP:
		when := fmt.Sprintf("when session affinity type is %s", corev1.ServiceAffinityClientIP)
		switch {
		case config == nil:
			errs = append(errs, field.Required(at, when))
		case config.ClientIP == nil:
			errs = append(errs, field.Required(at.Child("clientIP"), when))
		case config.ClientIP.TimeoutSeconds == nil:
			errs = append(errs, field.Required(at.Child("clientIP", "timeoutSeconds"), when))
		default:
			const most = 86400
			if t := *config.ClientIP.TimeoutSeconds; t <= 0 || t > most {
				errs = append(errs, field.Invalid(at.Child("clientIP", "timeoutSeconds"), t, fmt.Sprintf("must be greater than 0 and less than %d", most)))
			}
		}
	}
	return errs
}

// validateServiceStatus checks what a load balancer reports.
func validateServiceStatus(_ context.Context, obj, _ *corev1.Service) field.ErrorList {
	path := field.NewPath("status", "loadBalancer", "ingress")
	ingresses := obj.Status.LoadBalancer.Ingress
	if obj.Spec.Type != corev1.ServiceTypeLoadBalancer && len(ingresses) > 0 {
		return field.ErrorList{field.Forbidden(path, "may only be used when `spec.type` is 'LoadBalancer'")}
	}
	var errs field.ErrorList
	for i, ingress := range ingresses {
		at := path.Index(i)
		if ingress.IP != "" {
			errs = append(errs, utilvalidation.IsValidIPForLegacyField(at.Child("ip"), ingress.IP, true, nil)...)
		}
		switch {
		case ingress.IPMode == nil && ingress.IP != "":
			errs = append(errs, field.Required(at.Child("ipMode"), "must be specified when `ip` is set"))
		case ingress.IPMode != nil && ingress.IP == "":
			errs = append(errs, field.Forbidden(at.Child("ipMode"), "may not be specified when `ip` is not set"))
		case ingress.IPMode != nil:
			errs = append(errs, oneOf(*ingress.IPMode, at.Child("ipMode"), corev1.LoadBalancerIPModeProxy, corev1.LoadBalancerIPModeVIP)...)
		}
		if ingress.Hostname == "" {
			continue
		}
		for _, msg := range utilvalidation.IsDNS1123Subdomain(ingress.Hostname) {
			errs = append(errs, field.Invalid(at.Child("hostname"), ingress.Hostname, msg))
		}
		if netutils.ParseIPSloppy(ingress.Hostname) != nil {
			errs = append(errs, field.Invalid(at.Child("hostname"), ingress.Hostname, "must be a DNS name, not an IP address"))
		}
	}
	return errs
}
