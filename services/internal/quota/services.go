package quota

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// services measures Services, their node ports and load balancers.
type services struct{ unscoped }

// Resource implements Evaluator.
func (services) Resource() schema.GroupResource { return corev1.Resource("services") }

// Tracks implements Evaluator.
func (services) Tracks(name corev1.ResourceName) bool {
	return slices.Contains([]corev1.ResourceName{"count/services", corev1.ResourceServices, corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers}, name)
}

// Usage implements Evaluator. Node ports are those that the Service will have,
// for they are not allocated yet when it is charged.
func (services) Usage(obj runtime.Object) corev1.ResourceList {
	service, ok := obj.(*corev1.Service)
	if !ok {
		return nil
	}
	nodePorts, balancers := 0, int64(0)
	switch service.Spec.Type {
	case corev1.ServiceTypeNodePort:
		nodePorts = len(service.Spec.Ports)
	case corev1.ServiceTypeLoadBalancer:
		balancers = 1
		for _, port := range service.Spec.Ports {
			allocate := service.Spec.AllocateLoadBalancerNodePorts
			if allocate == nil || *allocate || port.NodePort != 0 {
				nodePorts++
			}
		}
	}
	return corev1.ResourceList{
		"count/services": number(1), corev1.ResourceServices: number(1),
		corev1.ResourceServicesNodePorts: number(int64(nodePorts)), corev1.ResourceServicesLoadBalancers: number(balancers),
	}
}

// Charges implements Evaluator. A Service's type and ports may change.
func (services) Charges(subresource string, _, _ runtime.Object) bool { return subresource == "" }

// Freed implements Evaluator.
func (s services) Freed(obj, old runtime.Object) bool { return !Equal(s.Usage(old), s.Usage(obj)) }
