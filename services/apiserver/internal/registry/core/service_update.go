package core

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// completeService fills in what a client may leave out of a Service and drops
// what only its former type had. Begin needs it before it gives anything out,
// and the preparation again, since the two may come in either order.
func completeService(obj, old *corev1.Service) {
	mirrorClusterIP(obj, old)
	if old != nil {
		keepAllocated(obj, old)
		dropTypeDependent(obj, old)
	}
}

// mirrorClusterIP keeps clusterIP and clusterIPs[0] equal when a client knows
// only one of them. The rest of a client's mistakes is left for validation.
func mirrorClusterIP(obj, old *corev1.Service) {
	spec := &obj.Spec
	if old == nil {
		if spec.ClusterIP != "" && len(spec.ClusterIPs) == 0 {
			spec.ClusterIPs = []string{spec.ClusterIP}
		}
		return
	}
	same := slices.Equal(spec.ClusterIPs, old.Spec.ClusterIPs)
	switch {
	case spec.ClusterIP == old.Spec.ClusterIP:
	case spec.ClusterIP == "" && same: // cleared by a client that does not know clusterIPs
		spec.ClusterIPs = nil
	case spec.ClusterIP != "" && same: // changed by such a client
		spec.ClusterIPs = []string{spec.ClusterIP}
		return
	}
	if spec.ClusterIP != "" && len(spec.ClusterIPs) == 0 && len(old.Spec.ClusterIPs) == 0 {
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
	// A patch that cleared clusterIPs alone clears clusterIP with it.
	if spec.ClusterIP == old.Spec.ClusterIP && len(spec.ClusterIPs) == 0 && len(old.Spec.ClusterIPs) > 0 {
		spec.ClusterIP = ""
	}
}

// keepAllocated fills in what a PUT left out and the server had given, where
// the types before and after both need it.
func keepAllocated(obj, old *corev1.Service) {
	if hasClusterIPType(obj) && hasClusterIPType(old) {
		if obj.Spec.ClusterIP == "" {
			obj.Spec.ClusterIP = old.Spec.ClusterIP
		}
		if len(obj.Spec.ClusterIPs) == 0 && obj.Spec.ClusterIP == old.Spec.ClusterIP {
			obj.Spec.ClusterIPs = slices.Clone(old.Spec.ClusterIPs)
		}
	}
	if needsNodePorts(obj) && needsNodePorts(old) {
		keepNodePorts(obj, old)
	}
	if needsHealthCheck(obj) && needsHealthCheck(old) && obj.Spec.HealthCheckNodePort == 0 {
		obj.Spec.HealthCheckNodePort = old.Spec.HealthCheckNodePort
	}
}

// keepNodePorts gives ports that name no node port the one that the same port
// and protocol had, unless another port asks for it.
func keepNodePorts(obj, old *corev1.Service) {
	type portProtocol struct {
		protocol corev1.Protocol
		port     int32
	}
	had, wanted := map[portProtocol]int32{}, map[int32]bool{}
	for _, p := range old.Spec.Ports {
		had[portProtocol{p.Protocol, p.Port}] = p.NodePort
	}
	for _, p := range obj.Spec.Ports {
		if p.NodePort != 0 {
			wanted[p.NodePort] = true
		}
	}
	for i := range obj.Spec.Ports {
		p := &obj.Spec.Ports[i]
		was := had[portProtocol{p.Protocol, p.Port}]
		if p.NodePort == 0 && was != 0 && !wanted[was] {
			p.NodePort = was
			wanted[was] = true
		}
	}
}

// dropTypeDependent drops values that the new type has no use for and that the
// client did not set itself but carried over from the old type.
func dropTypeDependent(obj, old *corev1.Service) {
	now, was := &obj.Spec, &old.Spec
	if hasClusterIPType(old) && !hasClusterIPType(obj) && now.ClusterIP == was.ClusterIP && slices.Equal(now.ClusterIPs, was.ClusterIPs) {
		now.ClusterIP, now.ClusterIPs = "", nil
	}
	if hasClusterIPType(old) && !hasClusterIPType(obj) {
		if samePointer(now.IPFamilyPolicy, was.IPFamilyPolicy) {
			now.IPFamilyPolicy = nil
		}
		if slices.Equal(now.IPFamilies, was.IPFamilies) {
			now.IPFamilies = nil
		}
		if samePointer(now.InternalTrafficPolicy, was.InternalTrafficPolicy) {
			now.InternalTrafficPolicy = nil
		}
	}
	if needsNodePorts(old) && !needsNodePorts(obj) && sameNodePorts(now.Ports, was.Ports) {
		for i := range now.Ports {
			now.Ports[i].NodePort = 0
		}
	}
	if needsHealthCheck(old) && !needsHealthCheck(obj) && now.HealthCheckNodePort == was.HealthCheckNodePort {
		now.HealthCheckNodePort = 0
	}
	if externallyAccessible(old) && !externallyAccessible(obj) && now.ExternalTrafficPolicy == was.ExternalTrafficPolicy {
		now.ExternalTrafficPolicy = ""
	}
	if was.Type == corev1.ServiceTypeLoadBalancer && now.Type != corev1.ServiceTypeLoadBalancer {
		if samePointer(now.AllocateLoadBalancerNodePorts, was.AllocateLoadBalancerNodePorts) {
			now.AllocateLoadBalancerNodePorts = nil
		}
		if samePointer(now.LoadBalancerClass, was.LoadBalancerClass) {
			now.LoadBalancerClass = nil
		}
	}
	if was.Type == corev1.ServiceTypeExternalName && now.Type != corev1.ServiceTypeExternalName && now.ExternalName == was.ExternalName {
		now.ExternalName = ""
	}
}

func samePointer[T comparable](a, b *T) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// sameNodePorts says that no node port of now is new.
func sameNodePorts(now, was []corev1.ServicePort) bool {
	had := map[int32]bool{}
	for _, p := range was {
		had[p.NodePort] = true
	}
	for _, p := range now {
		if p.NodePort != 0 && !had[p.NodePort] {
			return false
		}
	}
	return true
}
