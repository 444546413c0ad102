// Package criconfig turns pods into what the container runtime is asked for.
// It is pure but for the files that it is told to write.
package criconfig

import (
	"errors"
	"path/filepath"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/cri"
	"github.com/sampan-io/sampan/services/node-agent/internal/qos"
)

// Node is what pods get from the node that they run on.
type Node struct {
	Name     string
	HostIPs  []string
	Hostname string // of the machine, for pods on the host's network
	LogsDir  string // parent of pods' log directories

	ClusterDNS    []string
	ClusterDomain string
	ResolvConf    string // path of the node's resolver configuration

	Cgroups        qos.Tree
	MemoryCapacity int64 // bytes
	SwapCapacity   int64 // bytes that containers may share by what they ask for; 0 gives none any
	// HugePages are the sizes that the machine has, by the resource's name; containers are
	// held to their limits of each.
	HugePages      []corev1.ResourceName
	Allocatable    func() corev1.ResourceList
	SeccompRoot    string // folder of Localhost seccomp profiles
	SeccompDefault bool   // RuntimeDefault for containers that say nothing
	UnsafeSysctls  []string
	// Users is the user namespace of a pod, nil for those that have the node's. Without
	// it no pod can have its own.
	Users func(pod *corev1.Pod) (*runtimeapi.UserNamespace, error)
}

// PodLogsDir is where the logs of a pod's containers lie.
func (n Node) PodLogsDir(pod *corev1.Pod) string {
	return filepath.Join(n.LogsDir, pod.Namespace+"_"+pod.Name+"_"+string(pod.UID))
}

// Sandbox is the configuration of the pod's sandbox; attempt tells how many it
// had before.
func (n Node) Sandbox(pod *corev1.Pod, attempt uint32) (*runtimeapi.PodSandboxConfig, error) {
	dns, err := n.DNS(pod)
	if err != nil {
		return nil, err
	}
	linux, err := n.sandboxLinux(pod)
	if err != nil {
		return nil, err
	}
	config := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: attempt},
		LogDirectory: n.PodLogsDir(pod),
		DnsConfig:    dns,
		Labels:       podLabels(pod),
		Annotations:  pod.Annotations,
		PortMappings: portMappings(pod),
		Linux:        linux,
	}
	if !pod.Spec.HostNetwork {
		hostname, _ := n.HostnameOf(pod)
		config.Hostname = hostname
	}
	if pod.Spec.HostNetwork && pod.Spec.HostnameOverride != nil {
		config.Hostname = *pod.Spec.HostnameOverride
	}
	return config, nil
}

func podLabels(pod *corev1.Pod) map[string]string {
	labels := make(map[string]string, len(pod.Labels)+3)
	for key, value := range pod.Labels {
		labels[key] = value
	}
	labels[cri.LabelPodName], labels[cri.LabelPodNamespace], labels[cri.LabelPodUID] = pod.Name, pod.Namespace, string(pod.UID)
	return labels
}

func portMappings(pod *corev1.Pod) []*runtimeapi.PortMapping {
	if pod.Spec.HostNetwork {
		return nil
	}
	var mappings []*runtimeapi.PortMapping
	add := func(c *corev1.Container) {
		for _, port := range c.Ports {
			protocol := runtimeapi.Protocol_TCP
			switch port.Protocol {
			case corev1.ProtocolUDP:
				protocol = runtimeapi.Protocol_UDP
			case corev1.ProtocolSCTP:
				protocol = runtimeapi.Protocol_SCTP
			}
			mappings = append(mappings, &runtimeapi.PortMapping{
				HostIp: port.HostIP, HostPort: port.HostPort, ContainerPort: port.ContainerPort, Protocol: protocol,
			})
		}
	}
	for i := range pod.Spec.InitContainers {
		if Restartable(&pod.Spec.InitContainers[i]) {
			add(&pod.Spec.InitContainers[i])
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return mappings
}

// Restartable tells whether an init container is a sidecar.
func Restartable(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

func (n Node) sandboxLinux(pod *corev1.Pod) (*runtimeapi.LinuxPodSandboxConfig, error) {
	namespaces, err := n.namespaces(pod)
	if err != nil {
		return nil, err
	}
	security := &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions: namespaces,
		Privileged:       privilegedPod(pod),
		Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
	}
	linux := &runtimeapi.LinuxPodSandboxConfig{CgroupParent: n.Cgroups.Pod(pod), SecurityContext: security}
	if context := pod.Spec.SecurityContext; context != nil {
		if context.RunAsUser != nil {
			security.RunAsUser = &runtimeapi.Int64Value{Value: *context.RunAsUser}
		}
		if context.RunAsGroup != nil {
			security.RunAsGroup = &runtimeapi.Int64Value{Value: *context.RunAsGroup}
		}
		security.SupplementalGroups = supplementalGroups(pod)
		if len(context.Sysctls) > 0 {
			linux.Sysctls = make(map[string]string, len(context.Sysctls))
			for _, sysctl := range context.Sysctls {
				linux.Sysctls[sysctl.Name] = sysctl.Value
			}
		}
	}
	return linux, nil
}

// namespaces says which namespaces the pod shares with the node, and who its users are.
func (n Node) namespaces(pod *corev1.Pod) (*runtimeapi.NamespaceOption, error) {
	options := sharedNamespaces(pod)
	switch {
	case n.Users != nil:
		var err error
		if options.UsernsOptions, err = n.Users(pod); err != nil {
			return nil, err
		}
	case pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers:
		return nil, errors.New("this node gives pods no user namespaces")
	}
	return options, nil
}

func sharedNamespaces(pod *corev1.Pod) *runtimeapi.NamespaceOption {
	options := &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_POD, Ipc: runtimeapi.NamespaceMode_POD, Pid: runtimeapi.NamespaceMode_CONTAINER}
	if pod.Spec.HostNetwork {
		options.Network = runtimeapi.NamespaceMode_NODE
	}
	if pod.Spec.HostIPC {
		options.Ipc = runtimeapi.NamespaceMode_NODE
	}
	if pod.Spec.ShareProcessNamespace != nil && *pod.Spec.ShareProcessNamespace {
		options.Pid = runtimeapi.NamespaceMode_POD
	}
	if pod.Spec.HostPID {
		options.Pid = runtimeapi.NamespaceMode_NODE
	}
	return options
}

func privilegedPod(pod *corev1.Pod) bool {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range list {
			if c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged {
				return true
			}
		}
	}
	return false
}

func supplementalGroups(pod *corev1.Pod) []int64 {
	context := pod.Spec.SecurityContext
	if context == nil {
		return nil
	}
	groups := append([]int64(nil), context.SupplementalGroups...)
	if context.FSGroup != nil {
		groups = append(groups, *context.FSGroup)
	}
	return groups
}

// HostnameOf is the pod's host name and its domain, "" for none.
func (n Node) HostnameOf(pod *corev1.Pod) (hostname, domain string) {
	hostname = pod.Name
	if pod.Spec.HostnameOverride != nil {
		return *pod.Spec.HostnameOverride, ""
	}
	if pod.Spec.Hostname != "" {
		hostname = pod.Spec.Hostname
	} else {
		hostname = truncateHostname(hostname)
	}
	if pod.Spec.Subdomain != "" {
		domain = pod.Spec.Subdomain + "." + pod.Namespace + ".svc." + n.ClusterDomain
	}
	if pod.Spec.SetHostnameAsFQDN != nil && *pod.Spec.SetHostnameAsFQDN && domain != "" {
		return hostname + "." + domain, domain
	}
	return hostname, domain
}

// truncateHostname fits a name into the kernel's 63 bytes, without an end that no
// host name may have.
func truncateHostname(name string) string {
	const most = 63
	if len(name) <= most {
		return name
	}
	name = name[:most]
	for name != "" && (name[len(name)-1] == '-' || name[len(name)-1] == '.') {
		name = name[:len(name)-1]
	}
	return name
}

// LogPath is the log of a container below its pod's log directory.
func LogPath(container string, restarts int32) string {
	return filepath.Join(container, strconv.Itoa(int(restarts))+".log")
}
