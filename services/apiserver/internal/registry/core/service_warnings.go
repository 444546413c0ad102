package core

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func warnOfService(_ context.Context, obj, old *corev1.Service) []string {
	var warnings []string
	spec := field.NewPath("spec")
	if _, set := obj.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]; set {
		warnings = append(warnings, fmt.Sprintf("annotation %s is deprecated, please use %s instead", corev1.DeprecatedAnnotationTopologyAwareHints, corev1.AnnotationTopologyMode))
	}
	if isHeadless(obj) {
		if obj.Spec.LoadBalancerIP != "" {
			warnings = append(warnings, "spec.loadBalancerIP is ignored for headless services")
		}
		if len(obj.Spec.ExternalIPs) > 0 {
			warnings = append(warnings, "spec.externalIPs is ignored for headless services")
		}
		if obj.Spec.SessionAffinity != corev1.ServiceAffinityNone {
			warnings = append(warnings, "spec.SessionAffinity is ignored for headless services")
		}
	}
	for i, ip := range obj.Spec.ClusterIPs {
		if ip != corev1.ClusterIPNone && (old == nil || len(old.Spec.ClusterIPs) == 0) {
			warnings = append(warnings, utilvalidation.GetWarningsForIP(spec.Child("clusterIPs").Index(i), ip)...)
		}
	}
	if obj.Spec.Type == corev1.ServiceTypeExternalName {
		for i, ip := range obj.Spec.ExternalIPs {
			warnings = append(warnings, utilvalidation.GetWarningsForIP(spec.Child("externalIPs").Index(i), ip)...)
		}
	}
	for i, cidr := range obj.Spec.LoadBalancerSourceRanges {
		warnings = append(warnings, utilvalidation.GetWarningsForCIDR(spec.Child("loadBalancerSourceRanges").Index(i), strings.TrimSpace(cidr))...)
	}
	return warnings
}
