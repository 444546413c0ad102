// Package admission decides whether a pod that is bound to this node can run on
// it, as the scheduler should have, for there may be another scheduler or none.
package admission

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/sampan-io/sampan/services/node-agent/internal/status"
)

// Node is what pods are compared with.
type Node struct {
	Name          string
	Labels        func() map[string]string // nil while they are not known
	Allocatable   func() corev1.ResourceList
	UnsafeSysctls []string // patterns that are allowed besides the safe ones
}

// Admit tells why the pod cannot run beside the others, or nil.
func (n Node) Admit(pod *corev1.Pod, others []*corev1.Pod) *status.End {
	rest := active(others)
	for _, check := range n.checks() {
		if end := check.run(pod, rest); end != nil {
			end.Message = "Pod was rejected: " + end.Message
			return end
		}
	}
	return nil
}

// check is one condition. Other tells that it is not about amounts of resources.
type check struct {
	run   func(pod *corev1.Pod, others []*corev1.Pod) *status.End
	other bool
}

func (n Node) checks() []check {
	return []check{{n.nodeName, true}, {n.nodeAffinity, true}, {n.resources, false}, {n.ports, true}, {n.sysctls, true}, {n.system, true}}
}

// active are the pods that have not ended.
func active(pods []*corev1.Pod) []*corev1.Pod {
	var out []*corev1.Pod
	for _, pod := range pods {
		if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			out = append(out, pod)
		}
	}
	return out
}

func (n Node) nodeName(pod *corev1.Pod, _ []*corev1.Pod) *status.End {
	if pod.Spec.NodeName != n.Name {
		return &status.End{Reason: "NodeName", Message: "Predicate NodeName failed: node(s) didn't match the requested node name"}
	}
	return nil
}

func (n Node) nodeAffinity(pod *corev1.Pod, _ []*corev1.Pod) *status.End {
	labels := n.Labels()
	if labels == nil {
		return nil
	}
	node := &corev1.Node{}
	node.Name, node.Labels = n.Name, labels
	if match, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err != nil || !match {
		return &status.End{Reason: "NodeAffinity", Message: "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"}
	}
	return nil
}

func (n Node) resources(pod *corev1.Pod, others []*corev1.Pod) *status.End {
	used, wanted, allocatable := usedBy(others), requests(pod), n.Allocatable()
	for _, name := range checked(wanted, allocatable) {
		request, taken, most := wanted[name], used[name], allocatable[name]
		if request.IsZero() {
			continue
		}
		total := taken.DeepCopy()
		total.Add(request)
		if total.Cmp(most) > 0 {
			return &status.End{Reason: "OutOf" + string(name), Message: fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
				name, amount(name, request), amount(name, taken), amount(name, most))}
		}
	}
	return nil
}

// usedBy is what the pods have of the node.
func usedBy(pods []*corev1.Pod) corev1.ResourceList {
	used := corev1.ResourceList{}
	for _, pod := range pods {
		for name, value := range requests(pod) {
			sum := used[name]
			sum.Add(value)
			used[name] = sum
		}
	}
	return used
}

// checked are the resources that a pod must fit into, in order. What this node does not
// offer is somebody else's to check.
func checked(wanted, allocatable corev1.ResourceList) []corev1.ResourceName {
	names := []corev1.ResourceName{corev1.ResourcePods, corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if _, offered := allocatable[name]; offered && (strings.Contains(string(name), "/") || strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)) {
			names = append(names, name)
		}
	}
	return names
}

func one() resource.Quantity { return *resource.NewQuantity(1, resource.DecimalSI) }

// Resizable tells why a pod that runs cannot be given what it asks for: Infeasible
// if the node never has as much, Deferred if the other pods have it; or nil.
func (n Node) Resizable(pod *corev1.Pod, others []*corev1.Pod) *status.End {
	wanted, allocatable := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}), n.Allocatable()
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		request, most := wanted[name], allocatable[name]
		if request.Cmp(most) > 0 {
			return &status.End{Reason: corev1.PodReasonInfeasible, Message: fmt.Sprintf("Node didn't have enough capacity: %s, requested: %d, capacity: %d",
				name, amount(name, request), amount(name, most))}
		}
	}
	if end := n.resources(pod, active(others)); end != nil {
		return &status.End{Reason: corev1.PodReasonDeferred, Message: end.Message}
	}
	return nil
}

func amount(name corev1.ResourceName, q resource.Quantity) int64 {
	if name == corev1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

type hostPort struct {
	ip       string
	port     int32
	protocol corev1.Protocol
}

func hostPorts(pod *corev1.Pod) []hostPort {
	var ports []hostPort
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for _, p := range list[i].Ports {
				port := p.HostPort
				if pod.Spec.HostNetwork && port == 0 {
					port = p.ContainerPort
				}
				if port == 0 {
					continue
				}
				ip := p.HostIP
				if ip == "" {
					ip = "0.0.0.0"
				}
				protocol := p.Protocol
				if protocol == "" {
					protocol = corev1.ProtocolTCP
				}
				ports = append(ports, hostPort{ip, port, protocol})
			}
		}
	}
	return ports
}

func (p hostPort) conflicts(other hostPort) bool {
	if p.port != other.port || p.protocol != other.protocol {
		return false
	}
	return p.ip == other.ip || p.ip == "0.0.0.0" || other.ip == "0.0.0.0"
}

func (n Node) ports(pod *corev1.Pod, others []*corev1.Pod) *status.End {
	wanted := hostPorts(pod)
	for _, other := range others {
		for _, taken := range hostPorts(other) {
			for _, port := range wanted {
				if port.conflicts(taken) {
					return &status.End{Reason: "NodePorts", Message: "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"}
				}
			}
		}
	}
	return nil
}

// safeSysctls belong to the pod's own namespaces and harm no other.
func safeSysctls() []string {
	return []string{
		"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range",
		"net.ipv4.ip_unprivileged_port_start", "net.ipv4.ip_local_reserved_ports", "net.ipv4.tcp_keepalive_time",
		"net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem",
	}
}

func (n Node) sysctls(pod *corev1.Pod, _ []*corev1.Pod) *status.End {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	for _, sysctl := range pod.Spec.SecurityContext.Sysctls {
		name := strings.ReplaceAll(sysctl.Name, "/", ".")
		allowed := false
		for _, pattern := range append(safeSysctls(), n.UnsafeSysctls...) {
			prefix, wild := strings.CutSuffix(pattern, "*")
			allowed = allowed || name == pattern || (wild && strings.HasPrefix(name, prefix))
		}
		if !allowed {
			return &status.End{Reason: "SysctlForbidden", Message: fmt.Sprintf("forbidden sysctl: %q not allowlisted", path.Clean(sysctl.Name))}
		}
	}
	return nil
}

func (n Node) system(pod *corev1.Pod, _ []*corev1.Pod) *status.End {
	if pod.Spec.OS != nil && pod.Spec.OS.Name != corev1.Linux {
		return &status.End{Reason: "PodOSNotSupported", Message: "Failed to admit pod as the OS field doesn't match node OS"}
	}
	return nil
}
