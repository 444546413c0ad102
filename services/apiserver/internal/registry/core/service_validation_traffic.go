package core

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const onlyBalancers = "may only be used when `type` is 'LoadBalancer'"

// validateSourceRanges checks the clients that a load balancer lets in, from
// the field or else from the annotation that was before it.
func validateSourceRanges(obj, old *corev1.Service, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	check := func(cidr string, at *field.Path) {
		var known []string
		if old != nil {
			known = old.Spec.LoadBalancerSourceRanges
		}
		errs = append(errs, utilvalidation.IsValidCIDRForLegacyField(at, strings.TrimSpace(cidr), true, known)...)
	}
	balancer := obj.Spec.Type == corev1.ServiceTypeLoadBalancer
	if ranges := obj.Spec.LoadBalancerSourceRanges; len(ranges) > 0 {
		at := path.Child("LoadBalancerSourceRanges") // as upstream spells it
		if !balancer {
			errs = append(errs, field.Forbidden(at, onlyBalancers))
		}
		for i, cidr := range ranges {
			check(cidr, at.Index(i))
		}
		return errs
	}
	text, set := obj.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey]
	if !set {
		return nil
	}
	at := field.NewPath("metadata", "annotations").Key(corev1.AnnotationLoadBalancerSourceRangesKey)
	if !balancer {
		errs = append(errs, field.Forbidden(at, onlyBalancers))
	}
	if text = strings.TrimSpace(text); text != "" {
		for _, cidr := range strings.Split(text, ",") {
			check(cidr, at)
		}
	}
	return errs
}

func validateBalancerFields(obj, old *corev1.Service, path *field.Path) field.ErrorList {
	spec := &obj.Spec
	balancer := spec.Type == corev1.ServiceTypeLoadBalancer
	var errs field.ErrorList
	if spec.AllocateLoadBalancerNodePorts != nil && !balancer {
		errs = append(errs, field.Forbidden(path.Child("allocateLoadBalancerNodePorts"), onlyBalancers))
	}
	if balancer && spec.AllocateLoadBalancerNodePorts == nil {
		errs = append(errs, field.Required(field.NewPath("allocateLoadBalancerNodePorts"), ""))
	}
	class := path.Child("loadBalancerClass")
	if old != nil && balancer && old.Spec.Type == corev1.ServiceTypeLoadBalancer && !samePointer(spec.LoadBalancerClass, old.Spec.LoadBalancerClass) {
		errs = append(errs, field.Invalid(class, spec.LoadBalancerClass, "may not change once set"))
	}
	if spec.LoadBalancerClass == nil {
		return errs
	}
	if !balancer {
		return append(errs, field.Forbidden(class, onlyBalancers))
	}
	for _, msg := range utilvalidation.IsQualifiedName(*spec.LoadBalancerClass) {
		errs = append(errs, field.Invalid(class, *spec.LoadBalancerClass, msg))
	}
	return errs
}

func validateExternalPolicy(obj *corev1.Service, path *field.Path) field.ErrorList {
	spec := &obj.Spec
	var errs field.ErrorList
	at := path.Child("externalTrafficPolicy")
	if externallyAccessible(obj) {
		errs = append(errs, requiredOneOf(spec.ExternalTrafficPolicy, at,
			corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal)...)
	} else if spec.ExternalTrafficPolicy != "" {
		errs = append(errs, field.Invalid(at, spec.ExternalTrafficPolicy, "may only be set for externally-accessible services"))
	}
	at = path.Child("healthCheckNodePort")
	switch {
	case spec.HealthCheckNodePort == 0: // given out later where it is needed
	case !needsHealthCheck(obj):
		errs = append(errs, field.Invalid(at, spec.HealthCheckNodePort, "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"))
	default:
		for _, msg := range utilvalidation.IsValidPortNum(int(spec.HealthCheckNodePort)) {
			errs = append(errs, field.Invalid(at, spec.HealthCheckNodePort, msg))
		}
	}
	return errs
}

func validateInternalPolicy(obj *corev1.Service, path *field.Path) field.ErrorList {
	at := path.Child("internalTrafficPolicy")
	if p := obj.Spec.InternalTrafficPolicy; p != nil {
		return oneOf(*p, at, corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal)
	}
	if hasClusterIPType(obj) {
		return field.ErrorList{field.Required(at, "")}
	}
	return nil
}

func validateServiceUpdate(obj, old *corev1.Service) field.ErrorList {
	errs := validateClusterIPsUpdate(obj, old)
	errs = append(errs, validateFamiliesUpdate(obj, old)...)
	if needsHealthCheck(old) && needsHealthCheck(obj) && obj.Spec.HealthCheckNodePort != old.Spec.HealthCheckNodePort {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "healthCheckNodePort"), "field is immutable"))
	}
	return append(errs, validateService(obj, old)...)
}

const notOnceSet = "may not change once set"

// validateClusterIPsUpdate keeps the primary address for as long as a Service
// has one.
func validateClusterIPsUpdate(obj, old *corev1.Service) field.ErrorList {
	if !hasClusterIPType(obj) || !hasClusterIPType(old) || (isHeadless(obj) && isHeadless(old)) {
		return nil
	}
	path := field.NewPath("spec", "clusterIPs")
	now, was := obj.Spec.ClusterIPs, old.Spec.ClusterIPs
	switch {
	case len(now) == 0 && len(was) > 0:
		return field.ErrorList{field.Invalid(path.Index(0), now, "primary clusterIP can not be unset")}
	case len(was) == 0 || len(now) == 0:
		return nil
	}
	var errs field.ErrorList
	if now[0] != was[0] {
		errs = append(errs, field.Invalid(path.Index(0), now, notOnceSet))
	}
	if len(now) == len(was) && len(was) == 2 && now[1] != was[1] {
		errs = append(errs, field.Invalid(path.Index(1), now, notOnceSet))
	}
	if len(now) == 1 && len(was) == 2 && !singleStack(obj) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "ipFamilyPolicy"), obj.Spec.IPFamilyPolicy, "must be set to 'SingleStack' when releasing the secondary clusterIP"))
	}
	return errs
}

func validateFamiliesUpdate(obj, old *corev1.Service) field.ErrorList {
	if !hasClusterIPType(obj) || !hasClusterIPType(old) || isHeadless(obj) || isHeadless(old) {
		return nil
	}
	path := field.NewPath("spec", "ipFamilies")
	now, was := obj.Spec.IPFamilies, old.Spec.IPFamilies
	if len(now) == 0 || len(was) == 0 {
		return nil // completed from the rest when addresses are given out
	}
	var errs field.ErrorList
	if now[0] != was[0] || (len(now) == len(was) && !slices.Equal(now, was)) {
		errs = append(errs, field.Invalid(path.Index(0), now, notOnceSet))
	}
	if len(now) == 1 && len(was) == 2 && !singleStack(obj) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "ipFamilyPolicy"), obj.Spec.IPFamilyPolicy, "must be set to 'SingleStack' when releasing the secondary ipFamily"))
	}
	return errs
}

func singleStack(obj *corev1.Service) bool {
	return obj.Spec.IPFamilyPolicy != nil && *obj.Spec.IPFamilyPolicy == corev1.IPFamilyPolicySingleStack
}
