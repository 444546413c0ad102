//nolint:staticcheck // Endpoints are deprecated, and older clients still read them
package endpoints

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/controller-manager/internal/endpoint"
	"github.com/sampan-io/sampan/services/controller-manager/internal/pods"
)

// capacity is how many addresses one Endpoints object holds; the rest is left
// out and the object says so.
const capacity = 1000

const (
	managedByLabel = "endpoints.kubernetes.io/managed-by"
	managedBy      = "endpoint-controller"
	truncated      = "truncated"
)

// decide is the Endpoints that service should have, and whether they differ from
// current, which is nil when there are none.
func decide(service *corev1.Service, behind []*corev1.Pod, current *corev1.Endpoints, trigger time.Time) (*corev1.Endpoints, bool) {
	next := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: service.Namespace, Name: service.Name}}
	if current != nil {
		next = current.DeepCopy()
	}
	over := false
	next.Subsets, over = limit(subsets(service, behind))
	next.Labels = maps.Clone(service.Labels)
	if next.Labels == nil {
		next.Labels = map[string]string{}
	}
	delete(next.Labels, corev1.IsHeadlessService)
	if endpoint.Headless(service) {
		next.Labels[corev1.IsHeadlessService] = ""
	}
	next.Labels[managedByLabel] = managedBy
	annotate(next, corev1.EndpointsOverCapacity, truncated, over)
	if current != nil && equality.Semantic.DeepEqual(current, next) {
		return current, false
	}
	annotate(next, corev1.EndpointsLastChangeTriggerTime, trigger.UTC().Format(time.RFC3339Nano), !trigger.IsZero())
	return next, true
}

func annotate(object *corev1.Endpoints, key, value string, set bool) {
	if !set {
		delete(object.Annotations, key)
		return
	}
	if object.Annotations == nil {
		object.Annotations = map[string]string{}
	}
	object.Annotations[key] = value
}

// subsets groups the pods behind service by the ports that they offer.
func subsets(service *corev1.Service, behind []*corev1.Pod) []corev1.EndpointSubset {
	groups := map[string]*corev1.EndpointSubset{}
	for _, pod := range behind {
		address := endpoint.Address(pod, endpoint.Families(service)[0])
		if address == "" || !endpoint.Included(pod) || pod.DeletionTimestamp != nil && !service.Spec.PublishNotReadyAddresses {
			continue
		}
		ports := endpoint.Ports(pod, service)
		if len(ports) == 0 && (!endpoint.Headless(service) || len(service.Spec.Ports) > 0) {
			continue
		}
		key := endpoint.PortsKey(ports)
		if groups[key] == nil {
			groups[key] = &corev1.EndpointSubset{Ports: endpointPorts(ports)}
		}
		made := corev1.EndpointAddress{
			IP: address, Hostname: endpoint.Hostname(pod, service),
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		}
		if pod.Spec.NodeName != "" {
			made.NodeName = &pod.Spec.NodeName
		}
		if service.Spec.PublishNotReadyAddresses || pods.Ready(pod) {
			groups[key].Addresses = append(groups[key].Addresses, made)
		} else {
			groups[key].NotReadyAddresses = append(groups[key].NotReadyAddresses, made)
		}
	}
	var made []corev1.EndpointSubset
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		slices.SortFunc(groups[key].Addresses, byAddress)
		slices.SortFunc(groups[key].NotReadyAddresses, byAddress)
		made = append(made, *groups[key])
	}
	return made
}

func byAddress(a, b corev1.EndpointAddress) int {
	if c := cmp.Compare(a.IP, b.IP); c != 0 {
		return c
	}
	return cmp.Compare(a.TargetRef.UID, b.TargetRef.UID)
}

func endpointPorts(ports []endpoint.Port) []corev1.EndpointPort {
	var made []corev1.EndpointPort
	for _, port := range ports {
		made = append(made, corev1.EndpointPort{Name: port.Name, Port: port.Number, Protocol: port.Protocol, AppProtocol: port.AppProtocol})
	}
	slices.SortFunc(made, func(a, b corev1.EndpointPort) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
	})
	return made
}

// limit cuts subsets to the capacity, addresses that are not ready first.
func limit(all []corev1.EndpointSubset) ([]corev1.EndpointSubset, bool) {
	total := 0
	for _, s := range all {
		total += len(s.Addresses) + len(s.NotReadyAddresses)
	}
	if total <= capacity {
		return all, false
	}
	room := capacity
	for i := range all {
		keep := min(room, len(all[i].Addresses))
		all[i].Addresses, room = all[i].Addresses[:keep], room-keep
	}
	for i := range all {
		keep := min(room, len(all[i].NotReadyAddresses))
		all[i].NotReadyAddresses, room = all[i].NotReadyAddresses[:keep], room-keep
	}
	return slices.DeleteFunc(all, func(s corev1.EndpointSubset) bool {
		return len(s.Addresses)+len(s.NotReadyAddresses) == 0
	}), true
}
