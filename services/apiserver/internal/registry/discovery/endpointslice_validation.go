package discovery

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry/core"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// The most of each that one slice, endpoint or hint holds.
const (
	maxTopologyLabels = 16
	maxAddresses      = 100
	maxPorts          = 20000
	maxEndpoints      = 1000
	maxZoneHints      = 8
	maxNodeHints      = 8
)

func validateSlice(obj, old *discoveryv1.EndpointSlice) field.ErrorList {
	var oldEndpoints []discoveryv1.Endpoint
	if old != nil {
		oldEndpoints = old.Endpoints
	}
	errs := validateAddressType(obj.AddressType)
	errs = append(errs, validateEndpoints(obj.Endpoints, oldEndpoints, obj.AddressType, field.NewPath("endpoints"))...)
	return append(errs, validatePorts(obj.Ports, field.NewPath("ports"))...)
}

func validateAddressType(kind discoveryv1.AddressType) field.ErrorList {
	supported := []discoveryv1.AddressType{discoveryv1.AddressTypeFQDN, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}
	switch {
	case kind == "":
		return field.ErrorList{field.Required(field.NewPath("addressType"), "")}
	case !slices.Contains(supported, kind):
		return field.ErrorList{field.NotSupported(field.NewPath("addressType"), kind, supported)}
	}
	return nil
}

func validateEndpoints(endpoints, old []discoveryv1.Endpoint, kind discoveryv1.AddressType, path *field.Path) field.ErrorList {
	if len(endpoints) > maxEndpoints {
		return field.ErrorList{field.TooMany(path, len(endpoints), maxEndpoints)}
	}
	var known []string
	for i := range old {
		known = append(known, old[i].Addresses...)
	}
	var errs field.ErrorList
	for i := range endpoints {
		errs = append(errs, validateEndpoint(&endpoints[i], known, kind, path.Index(i))...)
	}
	return errs
}

func validateEndpoint(endpoint *discoveryv1.Endpoint, known []string, kind discoveryv1.AddressType, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	addresses := path.Child("addresses")
	if len(endpoint.Addresses) == 0 {
		errs = append(errs, field.Required(addresses, "must contain at least 1 address"))
	} else if len(endpoint.Addresses) > maxAddresses {
		errs = append(errs, field.TooMany(addresses, len(endpoint.Addresses), maxAddresses))
	}
	for i, address := range endpoint.Addresses {
		errs = append(errs, validateAddress(address, known, kind, addresses.Index(i))...)
	}
	if endpoint.NodeName != nil {
		for _, msg := range utilvalidation.IsDNS1123Subdomain(*endpoint.NodeName) {
			errs = append(errs, field.Invalid(path.Child("nodeName"), *endpoint.NodeName, msg))
		}
	}
	topology := path.Child("deprecatedTopology")
	if len(endpoint.DeprecatedTopology) > maxTopologyLabels {
		errs = append(errs, field.TooMany(topology, len(endpoint.DeprecatedTopology), maxTopologyLabels))
	}
	errs = append(errs, metav1validation.ValidateLabels(endpoint.DeprecatedTopology, topology)...)
	if _, host := endpoint.DeprecatedTopology[corev1.LabelHostname]; host {
		errs = append(errs, field.Invalid(topology.Key(corev1.LabelHostname), "", "may not be set; use nodeName instead"))
	}
	if endpoint.Hostname != nil {
		for _, msg := range utilvalidation.IsDNS1123Label(*endpoint.Hostname) {
			errs = append(errs, field.Invalid(path.Child("hostname"), *endpoint.Hostname, msg))
		}
	}
	if endpoint.Hints != nil {
		errs = append(errs, validateHints(endpoint.Hints, path.Child("hints"))...)
	}
	return errs
}

func validateAddress(address string, known []string, kind discoveryv1.AddressType, path *field.Path) field.ErrorList {
	switch kind {
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6:
		errs := utilvalidation.IsValidIPForLegacyField(path, address, true, known)
		if len(errs) > 0 {
			return errs
		}
		if parsed, err := netip.ParseAddr(address); err == nil {
			if kind == discoveryv1.AddressTypeIPv4 && !parsed.Unmap().Is4() {
				return field.ErrorList{field.Invalid(path, address, "must be an IPv4 address")}
			}
			if kind == discoveryv1.AddressTypeIPv6 && parsed.Is4() {
				return field.ErrorList{field.Invalid(path, address, "must be an IPv6 address")}
			}
		}
		return core.ValidateEndpointIP(address, path)
	case discoveryv1.AddressTypeFQDN:
		return utilvalidation.IsFullyQualifiedDomainName(path, address)
	}
	return nil
}

func validateHints(hints *discoveryv1.EndpointHints, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	check := func(names []string, most int, path *field.Path, valid func(string) []string) {
		if len(names) > most {
			errs = append(errs, field.TooMany(path, len(names), most))
			return
		}
		for i, name := range names {
			at := path.Index(i).Child("name")
			if slices.Contains(names[:i], name) {
				errs = append(errs, field.Duplicate(at, name))
				continue
			}
			for _, msg := range valid(name) {
				errs = append(errs, field.Invalid(at, name, msg))
			}
		}
	}
	var zones, nodes []string
	for _, zone := range hints.ForZones {
		zones = append(zones, zone.Name)
	}
	for _, node := range hints.ForNodes {
		nodes = append(nodes, node.Name)
	}
	check(zones, maxZoneHints, path.Child("forZones"), utilvalidation.IsValidLabelValue)
	check(nodes, maxNodeHints, path.Child("forNodes"), utilvalidation.IsDNS1123Subdomain)
	return errs
}

func validatePorts(ports []discoveryv1.EndpointPort, path *field.Path) field.ErrorList {
	if len(ports) > maxPorts {
		return field.ErrorList{field.TooMany(path, len(ports), maxPorts)}
	}
	var errs field.ErrorList
	names := map[string]bool{}
	for i := range ports {
		port, at := &ports[i], path.Index(i)
		name := table.Value(port.Name)
		if name != "" {
			for _, msg := range utilvalidation.IsDNS1123Label(name) {
				errs = append(errs, field.Invalid(at.Child("name"), port.Name, msg))
			}
		}
		if names[name] {
			errs = append(errs, field.Duplicate(at.Child("name"), port.Name))
		}
		names[name] = true
		errs = append(errs, validatePort(port, at)...)
	}
	return errs
}

func validatePort(port *discoveryv1.EndpointPort, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	supported := []corev1.Protocol{corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP}
	switch {
	case port.Protocol == nil:
		errs = append(errs, field.Required(path.Child("protocol"), ""))
	case !slices.Contains(supported, *port.Protocol):
		errs = append(errs, field.NotSupported(path.Child("protocol"), *port.Protocol, supported))
	}
	if port.Port != nil && (*port.Port < 1 || *port.Port > 65535) {
		errs = append(errs, field.Invalid(path.Child("port"), *port.Port, utilvalidation.InclusiveRangeError(1, 65535)))
	}
	if port.AppProtocol != nil {
		for _, msg := range utilvalidation.IsQualifiedName(*port.AppProtocol) {
			errs = append(errs, field.Invalid(path.Child("appProtocol"), port.AppProtocol, msg))
		}
	}
	return errs
}
