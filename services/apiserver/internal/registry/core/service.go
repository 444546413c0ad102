package core

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/allocator"
)

// Services name sets of pods and give them addresses. Cluster IPs and node
// ports come from allocations; proxying may be nil.
func Services(allocations *allocator.Services, proxying Proxying) *registry.Resource {
	status := serviceBehaviour(allocations)
	status.PrepareForUpdate = func(_ context.Context, obj, old *corev1.Service) { obj.Spec = old.Spec }
	status.ValidateUpdate = validateServiceStatus
	status.ResetFields = []string{"spec"}
	status.Begin, status.Warnings, status.SpecOf = nil, nil, nil
	r := registry.Define(registry.Definition[*corev1.Service]{
		GroupVersion: v1, Resource: "services", Kind: "Service", Singular: "service", ShortNames: []string{"svc"},
		ReturnDeleted: true,
		Categories:    []string{"all"}, Namespaced: true,
		New:       func() *corev1.Service { return &corev1.Service{} },
		NewList:   func() runtime.Object { return &corev1.ServiceList{} },
		KeyPrefix: "/registry/services/specs",
		Fields: func(obj *corev1.Service) fields.Set {
			return fields.Set{"spec.clusterIP": obj.Spec.ClusterIP, "spec.type": string(obj.Spec.Type)}
		},
		Strategy: serviceBehaviour(allocations),
		Columns:  serviceColumns(),
		Row:      serviceRow,
	})
	if proxying != nil {
		r.Subresources = append(r.Subresources,
			proxySubresource("ServiceProxyOptions", func() runtime.Object { return &corev1.ServiceProxyOptions{} }, proxying.ServiceProxy))
	}
	r.Subresources = append(r.Subresources, registry.Subresource{Name: "status", Verbs: readWrite(), Update: registry.Erase(status)})
	return r
}

func serviceBehaviour(allocations *allocator.Services) registry.Behaviour[*corev1.Service] {
	return registry.Behaviour[*corev1.Service]{
		Default: defaultService,
		PrepareForCreate: func(_ context.Context, obj *corev1.Service) {
			obj.Status = corev1.ServiceStatus{}
			completeService(obj, nil)
		},
		PrepareForUpdate: func(_ context.Context, obj, old *corev1.Service) {
			obj.Status = old.Status
			if obj.Spec.Type != corev1.ServiceTypeLoadBalancer {
				obj.Status.LoadBalancer = corev1.LoadBalancerStatus{}
			}
			completeService(obj, old)
		},
		Validate: func(_ context.Context, obj *corev1.Service) field.ErrorList {
			return validateService(obj, nil)
		},
		ValidateUpdate: func(_ context.Context, obj, old *corev1.Service) field.ErrorList {
			return validateServiceUpdate(obj, old)
		},
		ValidateName:        apivalidation.NameIsDNS1035Label,
		AllowCreateOnUpdate: true,
		Warnings:            warnOfService,
		ResetFields:         []string{"status"},
		Begin: func(ctx context.Context, obj, old *corev1.Service, dryRun bool) (func(bool), error) {
			// The engine begins before it prepares, and what a client asked for must be
			// known before addresses are given out.
			mirrorClusterIP(obj, old)
			if old != nil {
				keepAllocated(obj, old)
			}
			return beginService(ctx, allocations, obj, old, dryRun)
		},
		AfterDelete: func(ctx context.Context, obj *corev1.Service) { allocations.Release(ctx, obj) },
	}
}

func defaultService(obj *corev1.Service) {
	spec := &obj.Spec
	if spec.SessionAffinity == "" {
		spec.SessionAffinity = corev1.ServiceAffinityNone
	}
	switch spec.SessionAffinity {
	case corev1.ServiceAffinityNone:
		spec.SessionAffinityConfig = nil
	case corev1.ServiceAffinityClientIP:
		if c := spec.SessionAffinityConfig; c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
			spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
				ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To(corev1.DefaultClientIPServiceAffinitySeconds)},
			}
		}
	}
	if spec.Type == "" {
		spec.Type = corev1.ServiceTypeClusterIP
	}
	for i := range spec.Ports {
		port := &spec.Ports[i]
		if port.Protocol == "" {
			port.Protocol = corev1.ProtocolTCP
		}
		if port.TargetPort == intstr.FromInt32(0) || port.TargetPort == intstr.FromString("") {
			port.TargetPort = intstr.FromInt32(port.Port)
		}
	}
	defaultTraffic(obj)
}

// defaultTraffic sets what depends on the type of a Service.
func defaultTraffic(obj *corev1.Service) {
	spec := &obj.Spec
	if externallyAccessible(obj) && spec.ExternalTrafficPolicy == "" {
		spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	}
	if spec.InternalTrafficPolicy == nil && hasClusterIPType(obj) {
		spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyCluster)
	}
	if spec.Type == corev1.ServiceTypeLoadBalancer {
		if spec.AllocateLoadBalancerNodePorts == nil {
			spec.AllocateLoadBalancerNodePorts = ptr.To(true)
		}
		for i := range obj.Status.LoadBalancer.Ingress {
			if ingress := &obj.Status.LoadBalancer.Ingress[i]; ingress.IP != "" && ingress.IPMode == nil {
				ingress.IPMode = ptr.To(corev1.LoadBalancerIPModeVIP)
			}
		}
	}
}

func hasClusterIPType(obj *corev1.Service) bool {
	switch obj.Spec.Type {
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
		return true
	}
	return false
}

// externallyAccessible says that traffic from outside the cluster can reach a
// Service.
func externallyAccessible(obj *corev1.Service) bool {
	return obj.Spec.Type == corev1.ServiceTypeLoadBalancer || obj.Spec.Type == corev1.ServiceTypeNodePort ||
		(obj.Spec.Type == corev1.ServiceTypeClusterIP && len(obj.Spec.ExternalIPs) > 0)
}

// needsHealthCheck says that a load balancer must ask each node whether it has
// endpoints.
func needsHealthCheck(obj *corev1.Service) bool {
	return obj.Spec.Type == corev1.ServiceTypeLoadBalancer && obj.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// needsNodePorts says that each port of a Service gets a node port.
func needsNodePorts(obj *corev1.Service) bool {
	switch obj.Spec.Type {
	case corev1.ServiceTypeNodePort:
		return true
	case corev1.ServiceTypeLoadBalancer:
		return obj.Spec.AllocateLoadBalancerNodePorts == nil || *obj.Spec.AllocateLoadBalancerNodePorts
	}
	return false
}
