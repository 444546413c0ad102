package cluster

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const anyIP = "0.0.0.0"

// Node is a node with its pods and their sums. It never changes: With and Without
// make new ones.
type Node struct {
	Object      *corev1.Node // nil while only pods of it are known
	Name        string
	Slot        int // place in the indexes; stays for the node's life, then is used again
	Allocatable Resource
	Pods        []*Pod
	Requested   Resource
	Scored      Resource         // requested, with defaults
	Images      map[string]int64 // sizes in bytes, by every name of an image

	ports map[HostPort]int
}

// NewNode is a node without pods.
func NewNode(object *corev1.Node, slot int) *Node {
	n := &Node{Name: object.Name, Slot: slot}
	n.describe(object)
	return n
}

// NewUnknownNode holds pods bound to a node that has not been seen, or is gone.
func NewUnknownNode(name string, slot int) *Node { return &Node{Name: name, Slot: slot} }

func (n *Node) describe(object *corev1.Node) {
	n.Object = object
	n.Allocatable, n.Images = Resource{}, nil
	if object == nil {
		return
	}
	n.Allocatable = NewResource(object.Status.Allocatable)
	n.Images = map[string]int64{}
	for _, image := range object.Status.Images {
		for _, name := range image.Names {
			n.Images[name] = image.SizeBytes
		}
	}
}

// Described is n with the same pods and another description, which may be nil.
func (n *Node) Described(object *corev1.Node) *Node {
	next := *n
	next.describe(object)
	return &next
}

// With is n with pod on it too.
func (n *Node) With(pod *Pod) *Node {
	next := *n
	next.Pods = append(slices.Clip(n.Pods), pod)
	next.sum(pod, 1)
	return &next
}

// Without is n without the pod of that UID; n itself when it has no such pod.
func (n *Node) Without(uid types.UID) *Node {
	at := slices.IndexFunc(n.Pods, func(p *Pod) bool { return p.Object.UID == uid })
	if at < 0 {
		return n
	}
	next := *n
	next.Pods = make([]*Pod, 0, len(n.Pods)-1)
	next.Pods = append(append(next.Pods, n.Pods[:at]...), n.Pods[at+1:]...)
	next.sum(n.Pods[at], -1)
	return &next
}

func (n *Node) sum(pod *Pod, sign int64) {
	n.Requested = n.Requested.Plus(&pod.Requests, sign)
	n.Scored = n.Scored.Plus(&pod.Scored, sign)
	if len(pod.Ports) == 0 {
		return
	}
	n.ports = maps.Clone(n.ports)
	if n.ports == nil {
		n.ports = map[HostPort]int{}
	}
	for _, port := range pod.Ports {
		n.ports[port] += int(sign)
		if n.ports[port] <= 0 {
			delete(n.ports, port)
		}
	}
}

// PortsFree says whether none of wanted is taken on n.
func (n *Node) PortsFree(wanted []HostPort) bool {
	for _, port := range wanted {
		if port.IP != anyIP {
			if n.ports[port] > 0 || n.ports[HostPort{IP: anyIP, Protocol: port.Protocol, Port: port.Port}] > 0 {
				return false
			}
			continue
		}
		for taken := range n.ports {
			if taken.Port == port.Port && taken.Protocol == port.Protocol {
				return false
			}
		}
	}
	return true
}
