// Package node registers this node with the API server and keeps its status and
// its lease.
package node

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"runtime"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Config is what a Node is made of.
type Config struct {
	Name       string
	IPs        []netip.Addr // its addresses, the primary one first
	Labels     map[string]string
	Taints     []corev1.Taint
	Register   bool
	ProviderID string
	Port       int32 // of the agent's API
	MaxPods    int64
	RootDir    string
	Reserved   corev1.ResourceList // of allocatable, for the system
	// Kept is what more of the capacity is not for pods; nil is nothing.
	Kept func(capacity corev1.ResourceList) corev1.ResourceList
	// Unready tells why the node takes no pods though its runtime is well; nil or "" is
	// not.
	Unready func() string
	// Devices are what device plugins offer; nil is nothing.
	Devices func() (capacity, allocatable corev1.ResourceList)
	// Pressure are the conditions that the node has besides readiness; nil is none.
	Pressure func() []corev1.NodeConditionType
	// VolumesInUse are the volumes that must not be detached; nil is none.
	VolumesInUse func() []corev1.UniqueVolumeName
	MaxImages    int           // in the status; below 0 is all
	UpdateEvery  time.Duration // how often the status is made
	ReportEvery  time.Duration // how often it is sent though nothing has changed
	LeaseFor     time.Duration

	Machine Machine
	Client  kubernetes.Interface
	Runtime Runtime
	// PodCIDRs is called when the node has been given its ranges, and again at each
	// start; the node becomes ready after it.
	PodCIDRs func(ctx context.Context, cidrs []netip.Prefix) error
	Log      *slog.Logger
}

// Runtime is what the status tells of the container runtime.
type Runtime interface {
	Status(ctx context.Context) (*runtimeapi.StatusResponse, error)
	Version(ctx context.Context) (*runtimeapi.VersionResponse, error)
	Images(ctx context.Context) ([]*runtimeapi.Image, error)
}

// Node keeps one node's object.
type Node struct {
	cfg     Config
	trigger chan struct{}
	ready   chan struct{} // closed when the object exists

	mu      sync.Mutex
	object  *corev1.Node // as the API server has it
	network bool         // its ranges have been set up
}

// New makes one; Run does the work.
func New(cfg Config) *Node {
	return &Node{cfg: cfg, trigger: make(chan struct{}, 1), ready: make(chan struct{})}
}

// Registered is closed once the node's object exists.
func (n *Node) Registered() <-chan struct{} { return n.ready }

// Object is the node as the API server has it, or nil.
func (n *Node) Object() *corev1.Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.object
}

// Changed lets the status be made and sent at once.
func (n *Node) Changed() {
	select {
	case n.trigger <- struct{}{}:
	default:
	}
}

// Capacity is what the machine has.
func (n *Node) Capacity() corev1.ResourceList {
	list := corev1.ResourceList{
		corev1.ResourceCPU:    quantity(n.cfg.Machine.CPUs, resource.DecimalSI),
		corev1.ResourceMemory: quantity(n.cfg.Machine.Memory, resource.BinarySI),
		corev1.ResourcePods:   quantity(n.cfg.MaxPods, resource.DecimalSI),
	}
	for name, bytes := range n.cfg.Machine.HugePages {
		list[name] = quantity(bytes, resource.BinarySI)
	}
	if size, err := diskSize(n.cfg.RootDir); err == nil {
		list[corev1.ResourceEphemeralStorage] = quantity(size, resource.BinarySI)
	}
	if n.cfg.Devices != nil {
		capacity, _ := n.cfg.Devices()
		maps.Copy(list, capacity)
	}
	return list
}

// Allocatable is what pods may use of it.
func (n *Node) Allocatable() corev1.ResourceList {
	list := n.Capacity()
	kept := []corev1.ResourceList{n.cfg.Reserved}
	for _, bytes := range n.cfg.Machine.HugePages { // nothing else can be put there
		kept = append(kept, corev1.ResourceList{corev1.ResourceMemory: quantity(bytes, resource.BinarySI)})
	}
	if n.cfg.Kept != nil {
		kept = append(kept, n.cfg.Kept(list))
	}
	for _, reserved := range kept {
		subtract(list, reserved)
	}
	if n.cfg.Devices != nil {
		_, allocatable := n.cfg.Devices()
		maps.Copy(list, allocatable)
	}
	return list
}

// subtract leaves at least nothing.
func subtract(list, reserved corev1.ResourceList) {
	for name, amount := range reserved {
		value, known := list[name]
		if !known {
			continue
		}
		value.Sub(amount)
		if value.Sign() < 0 {
			value = resource.Quantity{Format: value.Format}
		}
		list[name] = value
	}
}

// desired is the node as it is registered.
func (n *Node) desired() *corev1.Node {
	labels := map[string]string{
		corev1.LabelHostname: n.cfg.Name, corev1.LabelOSStable: runtime.GOOS, corev1.LabelArchStable: runtime.GOARCH,
		"beta.kubernetes.io/os": runtime.GOOS, "beta.kubernetes.io/arch": runtime.GOARCH,
	}
	maps.Copy(labels, n.cfg.Labels)
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: n.cfg.Name, Labels: labels, Annotations: map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
		},
		Spec: corev1.NodeSpec{ProviderID: n.cfg.ProviderID, Taints: n.cfg.Taints},
	}
}

// addresses are the node's, with its name.
func (n *Node) addresses() []corev1.NodeAddress {
	var list []corev1.NodeAddress
	for _, ip := range n.cfg.IPs {
		list = append(list, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip.String()})
	}
	return append(list, corev1.NodeAddress{Type: corev1.NodeHostName, Address: n.cfg.Name})
}

func parseCIDRs(texts []string) ([]netip.Prefix, error) {
	var list []netip.Prefix
	for _, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("the node's pod CIDR: %w", err)
		}
		list = append(list, prefix)
	}
	return list, nil
}
