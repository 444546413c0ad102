package core

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
)

func validateEndpoints(obj *corev1.Endpoints) field.ErrorList {
	var errs field.ErrorList
	for i := range obj.Subsets {
		subset, path := &obj.Subsets[i], field.NewPath("subsets").Index(i)
		if len(subset.Addresses) == 0 && len(subset.NotReadyAddresses) == 0 {
			errs = append(errs, field.Required(path, "must specify `addresses` or `notReadyAddresses`"))
		}
		for j := range subset.Addresses {
			errs = append(errs, validateEndpointAddress(&subset.Addresses[j], path.Child("addresses").Index(j))...)
		}
		for j := range subset.NotReadyAddresses {
			errs = append(errs, validateEndpointAddress(&subset.NotReadyAddresses[j], path.Child("notReadyAddresses").Index(j))...)
		}
		for j := range subset.Ports {
			errs = append(errs, validateEndpointPort(&subset.Ports[j], len(subset.Ports) > 1, path.Child("ports").Index(j))...)
		}
	}
	return errs
}

func validateEndpointAddress(address *corev1.EndpointAddress, path *field.Path) field.ErrorList {
	errs := utilvalidation.IsValidIPForLegacyField(path.Child("ip"), address.IP, true, nil)
	if address.Hostname != "" {
		for _, msg := range utilvalidation.IsDNS1123Label(address.Hostname) {
			errs = append(errs, field.Invalid(path.Child("hostname"), address.Hostname, msg))
		}
	}
	if address.NodeName != nil {
		for _, msg := range utilvalidation.IsDNS1123Subdomain(*address.NodeName) {
			errs = append(errs, field.Invalid(path.Child("nodeName"), *address.NodeName, msg))
		}
	}
	return append(errs, ValidateEndpointIP(address.IP, path.Child("ip"))...)
}

// ValidateEndpointIP refuses addresses that could make a proxy reach into its
// own host: unspecified, loopback, link-local and multicast ones.
func ValidateEndpointIP(ip string, path *field.Path) field.ErrorList {
	parsed := netutils.ParseIPSloppy(ip)
	if parsed == nil {
		return field.ErrorList{field.Invalid(path, ip, "must be a valid IP address")}
	}
	var errs field.ErrorList
	if parsed.IsUnspecified() {
		errs = append(errs, field.Invalid(path, ip, fmt.Sprintf("may not be unspecified (%v)", ip)))
	}
	if parsed.IsLoopback() {
		errs = append(errs, field.Invalid(path, ip, "may not be in the loopback range (127.0.0.0/8, ::1/128)"))
	}
	if parsed.IsLinkLocalUnicast() {
		errs = append(errs, field.Invalid(path, ip, "may not be in the link-local range (169.254.0.0/16, fe80::/10)"))
	}
	if parsed.IsLinkLocalMulticast() {
		errs = append(errs, field.Invalid(path, ip, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"))
	}
	return errs
}

func validateEndpointPort(port *corev1.EndpointPort, named bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if named && port.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), ""))
	} else if port.Name != "" {
		for _, msg := range utilvalidation.IsDNS1123Label(port.Name) {
			errs = append(errs, field.Invalid(path.Child("name"), port.Name, msg))
		}
	}
	for _, msg := range utilvalidation.IsValidPortNum(int(port.Port)) {
		errs = append(errs, field.Invalid(path.Child("port"), port.Port, msg))
	}
	errs = append(errs, podspec.ValidateProtocol(port.Protocol, path.Child("protocol"))...)
	if port.AppProtocol != nil {
		for _, msg := range utilvalidation.IsQualifiedName(*port.AppProtocol) {
			errs = append(errs, field.Invalid(path.Child("appProtocol"), *port.AppProtocol, msg))
		}
	}
	return errs
}
