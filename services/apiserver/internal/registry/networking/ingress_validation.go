package networking

import (
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
)

func validateIngressCreate(obj *networkingv1.Ingress) field.ErrorList {
	errs := validateIngress(obj)
	if _, set := obj.Annotations[classAnnotation]; set && obj.Spec.IngressClassName != nil {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "annotations", classAnnotation), obj.Annotations[classAnnotation], "can not be set when the class field is also set"))
	}
	return errs
}

func validateIngress(obj *networkingv1.Ingress) field.ErrorList {
	spec, path := &obj.Spec, field.NewPath("spec")
	var errs field.ErrorList
	if len(spec.Rules) == 0 && spec.DefaultBackend == nil {
		errs = append(errs, field.Invalid(path, spec.Rules, "either `defaultBackend` or `rules` must be specified"))
	}
	if spec.DefaultBackend != nil {
		errs = append(errs, validateBackend(spec.DefaultBackend, path.Child("defaultBackend"))...)
	}
	for i := range spec.Rules {
		at := path.Child("rules").Index(i)
		errs = append(errs, validateHost(spec.Rules[i].Host, at.Child("host"))...)
		if http := spec.Rules[i].HTTP; http != nil {
			errs = append(errs, validateHTTP(http, at.Child("http"))...)
		}
	}
	for i, tls := range spec.TLS {
		at := path.Child("tls").Index(i)
		for j, host := range tls.Hosts {
			if strings.Contains(host, "*") {
				errs = append(errs, invalid(at.Child("hosts").Index(j), host, utilvalidation.IsWildcardDNS1123Subdomain(host))...)
			} else {
				errs = append(errs, dnsSubdomain(host, at.Child("hosts").Index(j))...)
			}
		}
		if tls.SecretName != "" {
			errs = append(errs, invalid(at.Child("secretName"), tls.SecretName, apivalidation.NameIsDNSSubdomain(tls.SecretName, false))...)
		}
	}
	if class := spec.IngressClassName; class != nil {
		errs = append(errs, invalid(path.Child("ingressClassName"), *class, apivalidation.NameIsDNSSubdomain(*class, false))...)
	}
	return errs
}

func validateHost(host string, path *field.Path) field.ErrorList {
	if host == "" {
		return nil
	}
	var errs field.ErrorList
	if netutils.ParseIPSloppy(host) != nil {
		errs = append(errs, field.Invalid(path, host, "must be a DNS name, not an IP address"))
	}
	if strings.Contains(host, "*") {
		return append(errs, invalid(path, host, utilvalidation.IsWildcardDNS1123Subdomain(host))...)
	}
	return append(errs, dnsSubdomain(host, path)...)
}

func validateHTTP(http *networkingv1.HTTPIngressRuleValue, path *field.Path) field.ErrorList {
	if len(http.Paths) == 0 {
		return field.ErrorList{field.Required(path.Child("paths"), "")}
	}
	var errs field.ErrorList
	for i := range http.Paths {
		errs = append(errs, validatePath(&http.Paths[i], path.Child("paths").Index(i))...)
	}
	return errs
}

// evasions are path parts that a proxy and a server may read differently.
func evasions() (anywhere, atEnd []string) {
	return []string{"//", "/./", "/../", "%2f", "%2F"}, []string{"/..", "/."}
}

func validatePath(p *networkingv1.HTTPIngressPath, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	kinds := []networkingv1.PathType{networkingv1.PathTypeExact, networkingv1.PathTypeImplementationSpecific, networkingv1.PathTypePrefix}
	if p.PathType == nil {
		return field.ErrorList{field.Required(path.Child("pathType"), "pathType must be specified")}
	}
	at := path.Child("path")
	switch *p.PathType {
	case networkingv1.PathTypeExact, networkingv1.PathTypePrefix:
		if !strings.HasPrefix(p.Path, "/") {
			errs = append(errs, field.Invalid(at, p.Path, "must be an absolute path"))
		}
		if p.Path != "" {
			anywhere, atEnd := evasions()
			for _, part := range anywhere {
				if strings.Contains(p.Path, part) {
					errs = append(errs, field.Invalid(at, p.Path, fmt.Sprintf("must not contain '%s'", part)))
				}
			}
			for _, part := range atEnd {
				if strings.HasSuffix(p.Path, part) {
					errs = append(errs, field.Invalid(at, p.Path, fmt.Sprintf("cannot end with '%s'", part)))
				}
			}
		}
	case networkingv1.PathTypeImplementationSpecific:
		if p.Path != "" && !strings.HasPrefix(p.Path, "/") {
			errs = append(errs, field.Invalid(at, p.Path, "must be an absolute path"))
		}
	default:
		errs = append(errs, field.NotSupported(path.Child("pathType"), *p.PathType, kinds))
	}
	return append(errs, validateBackend(&p.Backend, path.Child("backend"))...)
}

func validateBackend(b *networkingv1.IngressBackend, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch {
	case b.Resource != nil && b.Service != nil:
		return field.ErrorList{field.Invalid(path, "", "cannot set both resource and service backends")}
	case b.Resource != nil:
		return validateReference(b.Resource, path.Child("resource"))
	case b.Service == nil:
		return field.ErrorList{field.Required(path.Child("service"), "")} // or a resource
	}
	at := path.Child("service")
	if b.Service.Name == "" {
		errs = append(errs, field.Required(at.Child("name"), ""))
	} else {
		errs = append(errs, invalid(at.Child("name"), b.Service.Name, apivalidation.NameIsDNS1035Label(b.Service.Name, false))...)
	}
	port := at.Child("port")
	switch {
	case b.Service.Port.Name != "" && b.Service.Port.Number != 0:
		errs = append(errs, field.Invalid(port, "", "cannot set both port name & port number"))
	case b.Service.Port.Name != "":
		errs = append(errs, invalid(port.Child("name"), b.Service.Port.Name, utilvalidation.IsValidPortName(b.Service.Port.Name))...)
	case b.Service.Port.Number != 0:
		errs = append(errs, invalid(port.Child("number"), b.Service.Port.Number, utilvalidation.IsValidPortNum(int(b.Service.Port.Number)))...)
	default:
		errs = append(errs, field.Required(port, "port name or number is required"))
	}
	return errs
}

func validateReference(ref *corev1.TypedLocalObjectReference, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if ref.APIGroup != nil {
		errs = append(errs, dnsSubdomain(*ref.APIGroup, path.Child("apiGroup"))...)
	}
	for name, value := range map[string]string{"kind": ref.Kind, "name": ref.Name} {
		if value == "" {
			errs = append(errs, field.Required(path.Child(name), ""))
		} else if regexp.MustCompile(`[/%]`).MatchString(value) || value == "." || value == ".." {
			errs = append(errs, field.Invalid(path.Child(name), value, "may not be '.', '..' or contain '/' or '%'"))
		}
	}
	return errs
}

func validateIngressStatus(status *networkingv1.IngressStatus) field.ErrorList {
	var errs field.ErrorList
	for i, ingress := range status.LoadBalancer.Ingress {
		at := field.NewPath("status", "loadBalancer", "ingress").Index(i)
		if ingress.IP != "" {
			errs = append(errs, utilvalidation.IsValidIPForLegacyField(at.Child("ip"), ingress.IP, true, nil)...)
		}
		if ingress.Hostname == "" {
			continue
		}
		errs = append(errs, dnsSubdomain(ingress.Hostname, at.Child("hostname"))...)
		if netutils.ParseIPSloppy(ingress.Hostname) != nil {
			errs = append(errs, field.Invalid(at.Child("hostname"), ingress.Hostname, "must be a DNS name, not an IP address"))
		}
	}
	return errs
}
