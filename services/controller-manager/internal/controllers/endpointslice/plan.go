package endpointslice

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/controller-manager/internal/endpoint"
	"github.com/sampan-io/sampan/services/controller-manager/internal/pods"
)

// managedBy is the value of the managed-by label on slices of this controller.
const managedBy = "endpointslice-controller.k8s.io"

// state is what one look at a Service sees.
type state struct {
	service *corev1.Service
	pods    []*corev1.Pod // selected by service
	node    func(name string) *corev1.Node
	slices  []*discoveryv1.EndpointSlice // of service, managed by this controller
	limit   int                          // endpoints a slice
	trigger time.Time                    // of the change; zero when unknown
}

// plan is the difference between the slices that stand and those wanted.
type plan struct {
	create []*discoveryv1.EndpointSlice
	update []*discoveryv1.EndpointSlice
	remove []*discoveryv1.EndpointSlice
	// homeless are pods left out because their node is not known (yet).
	homeless []string
}

// group is the endpoints that share one list of ports and one family.
type group struct {
	ports     []discoveryv1.EndpointPort
	endpoints []discoveryv1.Endpoint
}

// decide compares slices with pods for each family of the Service.
func decide(s state) plan {
	var p plan
	byType := map[discoveryv1.AddressType][]*discoveryv1.EndpointSlice{}
	for _, slice := range s.slices {
		byType[slice.AddressType] = append(byType[slice.AddressType], slice)
	}
	for _, family := range endpoint.Families(s.service) {
		kind := discoveryv1.AddressType(family)
		s.decideFamily(&p, family, byType[kind])
		delete(byType, kind)
	}
	for _, kind := range slices.Sorted(maps.Keys(byType)) {
		p.remove = append(p.remove, byType[kind]...)
	}
	return p
}

func (s state) decideFamily(p *plan, family corev1.IPFamily, existing []*discoveryv1.EndpointSlice) {
	wanted := s.groups(p, family)
	standing := map[string][]*discoveryv1.EndpointSlice{}
	for _, slice := range existing {
		if slice.DeletionTimestamp == nil {
			key := portsKey(slice.Ports)
			standing[key] = append(standing[key], slice)
		}
	}
	if len(wanted) == 0 { // a Service always has a slice, so that its consumers can tell "none" from "not yet"
		wanted = map[string]*group{"": {}}
	}
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		s.decideGroup(p, discoveryv1.AddressType(family), wanted[key], standing[key])
		delete(standing, key)
	}
	for _, key := range slices.Sorted(maps.Keys(standing)) {
		p.remove = append(p.remove, standing[key]...)
	}
}

// groups sorts the pods of service by the ports that they offer.
func (s state) groups(p *plan, family corev1.IPFamily) map[string]*group {
	found := map[string]*group{}
	for _, pod := range s.pods {
		address := endpoint.Address(pod, family)
		if address == "" || !endpoint.Included(pod) {
			continue
		}
		node := s.node(pod.Spec.NodeName)
		if node == nil && pod.Spec.NodeName != "" {
			p.homeless = append(p.homeless, pod.Name)
			continue
		}
		ports := slicePorts(endpoint.Ports(pod, s.service))
		key := portsKey(ports)
		if found[key] == nil {
			found[key] = &group{ports: ports}
		}
		found[key].endpoints = append(found[key].endpoints, s.endpoint(pod, node, address))
	}
	return found
}

func (s state) endpoint(pod *corev1.Pod, node *corev1.Node, address string) discoveryv1.Endpoint {
	serving, terminating := pods.Ready(pod), pod.DeletionTimestamp != nil
	ready := s.service.Spec.PublishNotReadyAddresses || serving && !terminating
	made := discoveryv1.Endpoint{
		Addresses:  []string{address},
		Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating},
		TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
	}
	if pod.Spec.NodeName != "" {
		name := pod.Spec.NodeName
		made.NodeName = &name
	}
	if node != nil {
		if zone := node.Labels[corev1.LabelTopologyZone]; zone != "" {
			made.Zone = &zone
		}
	}
	if hostname := endpoint.Hostname(pod, s.service); hostname != "" {
		made.Hostname = &hostname
	}
	return made
}

// decideGroup changes as few slices as it can: endpoints stay where they are, new
// ones fill slices that change anyway, then the fullest slice with room for all
// that is left, then new slices.
func (s state) decideGroup(p *plan, kind discoveryv1.AddressType, wanted *group, standing []*discoveryv1.EndpointSlice) {
	slices.SortFunc(standing, func(a, b *discoveryv1.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
	left := map[identity]discoveryv1.Endpoint{}
	for _, e := range wanted.endpoints {
		left[identify(e)] = e
	}
	var changed, same, empty []*discoveryv1.EndpointSlice
	for _, slice := range standing {
		next := s.retain(slice, left)
		switch {
		case len(next.Endpoints) == 0:
			empty = append(empty, next)
		case equality.Semantic.DeepEqual(slice, next):
			same = append(same, next)
		default:
			changed = append(changed, next)
		}
	}
	fresh := s.remaining(wanted, left)
	for _, slice := range changed {
		fresh = fill(slice, fresh, s.limit)
	}
	if slice := fullestWithRoom(same, len(fresh), s.limit); slice != nil {
		fresh = fill(slice, fresh, s.limit)
		changed = append(changed, slice)
		same = slices.DeleteFunc(same, func(other *discoveryv1.EndpointSlice) bool { return other == slice })
	}
	needed := len(fresh) > 0 || len(changed)+len(same) == 0
	for needed && len(empty) > 0 { // recycle what would be deleted
		fresh = fill(empty[0], fresh, s.limit)
		changed, empty = append(changed, empty[0]), empty[1:]
		needed = len(fresh) > 0
	}
	for needed {
		slice := s.newSlice(kind, wanted.ports)
		fresh = fill(slice, fresh, s.limit)
		p.create = append(p.create, slice)
		needed = len(fresh) > 0
	}
	p.remove = append(p.remove, empty...)
	s.noteUpdates(p, changed, standing)
}

// noteUpdates stamps the slices that differ from what stands.
func (s state) noteUpdates(p *plan, changed, standing []*discoveryv1.EndpointSlice) {
	for _, next := range changed {
		at := slices.IndexFunc(standing, func(old *discoveryv1.EndpointSlice) bool { return old.Name == next.Name })
		if at >= 0 && equality.Semantic.DeepEqual(standing[at], next) {
			continue
		}
		s.stamp(next)
		p.update = append(p.update, next)
	}
}

// retain is slice with the metadata that it should have and those of its
// endpoints that are still wanted, as they should be; it takes them out of left.
func (s state) retain(slice *discoveryv1.EndpointSlice, left map[identity]discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	next := slice.DeepCopy()
	next.Labels = s.labels()
	next.OwnerReferences = s.owners()
	next.Endpoints = nil
	for _, e := range slice.Endpoints {
		id := identify(e)
		if fresh, ok := left[id]; ok && len(next.Endpoints) < s.limit {
			next.Endpoints = append(next.Endpoints, fresh)
			delete(left, id)
		}
	}
	return next
}

// remaining is what of wanted is in left, in the order of wanted.
func (s state) remaining(wanted *group, left map[identity]discoveryv1.Endpoint) []discoveryv1.Endpoint {
	var fresh []discoveryv1.Endpoint
	for _, e := range wanted.endpoints {
		if _, ok := left[identify(e)]; ok {
			fresh = append(fresh, e)
			delete(left, identify(e))
		}
	}
	return fresh
}

func fill(slice *discoveryv1.EndpointSlice, fresh []discoveryv1.Endpoint, limit int) []discoveryv1.Endpoint {
	room := min(limit-len(slice.Endpoints), len(fresh))
	if room <= 0 {
		return fresh
	}
	slice.Endpoints = append(slice.Endpoints, fresh[:room]...)
	return fresh[room:]
}

func fullestWithRoom(from []*discoveryv1.EndpointSlice, count, limit int) *discoveryv1.EndpointSlice {
	var best *discoveryv1.EndpointSlice
	for _, slice := range from {
		if count == 0 || len(slice.Endpoints)+count > limit {
			continue
		}
		if best == nil || len(slice.Endpoints) > len(best.Endpoints) {
			best = slice
		}
	}
	return best
}

func (s state) newSlice(kind discoveryv1.AddressType, ports []discoveryv1.EndpointPort) *discoveryv1.EndpointSlice {
	prefix := s.service.Name + "-"
	if len(validation.NameIsDNSSubdomain(prefix, true)) != 0 {
		prefix = s.service.Name
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.service.Namespace, GenerateName: prefix, Labels: s.labels(), OwnerReferences: s.owners(),
		},
		AddressType: kind, Ports: ports, Endpoints: []discoveryv1.Endpoint{},
	}
	s.stamp(slice)
	return slice
}

// stamp notes when the change happened that slice is written for.
func (s state) stamp(slice *discoveryv1.EndpointSlice) {
	if s.trigger.IsZero() {
		delete(slice.Annotations, corev1.EndpointsLastChangeTriggerTime)
		return
	}
	if slice.Annotations == nil {
		slice.Annotations = map[string]string{}
	}
	slice.Annotations[corev1.EndpointsLastChangeTriggerTime] = s.trigger.UTC().Format(time.RFC3339Nano)
}

// labels is those of the Service, and those that say what the slice is.
func (s state) labels() map[string]string {
	made := make(map[string]string, len(s.service.Labels)+3)
	maps.Copy(made, s.service.Labels)
	delete(made, corev1.IsHeadlessService)
	if endpoint.Headless(s.service) {
		made[corev1.IsHeadlessService] = ""
	}
	made[discoveryv1.LabelServiceName] = s.service.Name
	made[discoveryv1.LabelManagedBy] = managedBy
	return made
}

func (s state) owners() []metav1.OwnerReference {
	return []metav1.OwnerReference{*metav1.NewControllerRef(s.service, corev1.SchemeGroupVersion.WithKind("Service"))}
}

// identity tells endpoints apart across changes of their conditions.
type identity struct{ address, uid, pod string }

func identify(e discoveryv1.Endpoint) identity {
	id := identity{}
	if len(e.Addresses) > 0 {
		id.address = e.Addresses[0]
	}
	if e.TargetRef != nil {
		id.uid, id.pod = string(e.TargetRef.UID), e.TargetRef.Name
	}
	return id
}

func slicePorts(ports []endpoint.Port) []discoveryv1.EndpointPort {
	made := make([]discoveryv1.EndpointPort, 0, len(ports))
	for _, port := range ports {
		made = append(made, discoveryv1.EndpointPort{Name: &port.Name, Port: &port.Number, Protocol: &port.Protocol, AppProtocol: port.AppProtocol})
	}
	return made
}

func portsKey(ports []discoveryv1.EndpointPort) string {
	plain := make([]endpoint.Port, 0, len(ports))
	for _, port := range ports {
		p := endpoint.Port{Protocol: corev1.ProtocolTCP, AppProtocol: port.AppProtocol}
		if port.Name != nil {
			p.Name = *port.Name
		}
		if port.Port != nil {
			p.Number = *port.Port
		}
		if port.Protocol != nil {
			p.Protocol = *port.Protocol
		}
		plain = append(plain, p)
	}
	return endpoint.PortsKey(plain)
}
