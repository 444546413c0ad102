package app

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"

	"github.com/sampan-io/sampan/services/node-agent/internal/cpus"
	"github.com/sampan-io/sampan/services/node-agent/internal/numa"
	"github.com/sampan-io/sampan/services/node-agent/internal/topology"
)

// Values of --enforce-node-allocatable, and of policies that do nothing.
const (
	enforcePods   = "pods"
	enforceSystem = "system-reserved"
	enforceKube   = "kube-reserved"
	enforceNone   = "none"
	noPolicy      = "none"
)

func (o *Options) addReservedFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.cpuPolicy, "cpu-manager-policy", o.cpuPolicy, "none, or static to give whole CPUs to guaranteed containers that ask for a whole number")
	fs.StringVar(&o.memoryPolicy, "memory-manager-policy", o.memoryPolicy, "None, or Static to give guaranteed containers memory of single NUMA nodes")
	fs.StringVar(&o.topologyPolicy, "topology-manager-policy", o.topologyPolicy, "none, best-effort, restricted or single-numa-node: whether CPUs, memory and devices of a container come from the same NUMA nodes")
	fs.StringVar(&o.topologyScope, "topology-manager-scope", o.topologyScope, "container, or pod to give all containers of a pod the same NUMA nodes")
	fs.StringVar(&o.reservedCPUs, "reserved-cpus", o.reservedCPUs, "CPUs for the system, as 0-1,4; they take the place of the CPUs in --system-reserved and --kube-reserved")
	fs.StringVar(&o.reservedMemory, "reserved-memory", o.reservedMemory, "memory for the system by NUMA node, as 0:memory=1Gi;1:memory=1Gi")
	fs.StringToStringVar(&o.systemReserved, "system-reserved", o.systemReserved, "resources for the system, as cpu=100m,memory=1Gi,ephemeral-storage=1Gi,pid=100")
	fs.StringToStringVar(&o.kubeReserved, "kube-reserved", o.kubeReserved, "resources for this program and the runtime, as --system-reserved")
	fs.StringSliceVar(&o.enforce, "enforce-node-allocatable", o.enforce, "what is held to its limits by the kernel: pods, system-reserved, kube-reserved, or none")
	fs.StringVar(&o.systemGroup, "system-reserved-cgroup", o.systemGroup, "control group of the system, which must be there, for system-reserved")
	fs.StringVar(&o.kubeGroup, "kube-reserved-cgroup", o.kubeGroup, "control group of this program and the runtime, which must be there, for kube-reserved")
}

// parseReserved sums up what is not for pods.
func (o *Options) parseReserved() error {
	if !slices.Contains([]string{noPolicy, cpus.Policy}, o.cpuPolicy) {
		return fmt.Errorf("--cpu-manager-policy: %q is neither none nor static", o.cpuPolicy)
	}
	if !slices.Contains([]string{"None", numa.Policy}, o.memoryPolicy) {
		return fmt.Errorf("--memory-manager-policy: %q is neither None nor Static", o.memoryPolicy)
	}
	if !slices.Contains(topology.Policies(), topology.Policy(o.topologyPolicy)) {
		return fmt.Errorf("--topology-manager-policy: %q is not none, best-effort, restricted or single-numa-node", o.topologyPolicy)
	}
	if !slices.Contains([]topology.Scope{topology.Container, topology.Pod}, topology.Scope(o.topologyScope)) {
		return fmt.Errorf("--topology-manager-scope: %q is neither container nor pod", o.topologyScope)
	}
	for _, one := range []struct {
		flag string
		list map[string]string
	}{{"system-reserved", o.systemReserved}, {"kube-reserved", o.kubeReserved}} {
		amounts, err := parseAmounts(one.list)
		if err != nil {
			return fmt.Errorf("--%s: %w", one.flag, err)
		}
		for name, value := range amounts {
			sum := o.reserved[name]
			sum.Add(value)
			o.reserved[name] = sum
		}
	}
	var err error
	if o.parsed.reservedCPUs, err = cpuset.Parse(o.reservedCPUs); err != nil {
		return fmt.Errorf("--reserved-cpus: %w", err)
	}
	if n := o.parsed.reservedCPUs.Size(); n > 0 {
		o.reserved[corev1.ResourceCPU] = *resource.NewQuantity(int64(n), resource.DecimalSI)
	}
	if o.parsed.reservedMemory == nil {
		if o.parsed.reservedMemory, err = parseReservedMemory(o.reservedMemory); err != nil {
			return fmt.Errorf("--reserved-memory: %w", err)
		}
	}
	return o.checkEnforced()
}

func parseAmounts(list map[string]string) (corev1.ResourceList, error) {
	out := corev1.ResourceList{}
	for name, text := range list {
		switch corev1.ResourceName(name) {
		case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, "pid":
		default:
			return nil, fmt.Errorf("cannot reserve %q resource", name)
		}
		value, err := resource.ParseQuantity(text)
		if err != nil || value.Sign() < 0 {
			return nil, fmt.Errorf("%s: %q is not an amount", name, text)
		}
		out[corev1.ResourceName(name)] = value
	}
	return out, nil
}

func parseBytes(text string) (int64, error) {
	value, err := resource.ParseQuantity(text)
	if err != nil || value.Sign() < 0 {
		return 0, fmt.Errorf("%q is not an amount", text)
	}
	return value.Value(), nil
}

func (o *Options) checkEnforced() error {
	for _, what := range o.enforce {
		switch {
		case what == enforceSystem && o.systemGroup == "":
			return errors.New("--enforce-node-allocatable: system-reserved needs --system-reserved-cgroup")
		case what == enforceKube && o.kubeGroup == "":
			return errors.New("--enforce-node-allocatable: kube-reserved needs --kube-reserved-cgroup")
		case what == enforceNone && len(o.enforce) > 1:
			return errors.New("--enforce-node-allocatable: none goes with nothing else")
		case !slices.Contains([]string{enforcePods, enforceSystem, enforceKube, enforceNone, ""}, what):
			return fmt.Errorf("--enforce-node-allocatable: %q is not among %s", what, strings.Join([]string{enforcePods, enforceSystem, enforceKube, enforceNone}, ", "))
		}
	}
	return nil
}

// enforceAllocatable lets the kernel hold pods, and what is reserved, to what they
// may use.
func (a *agent) enforceAllocatable(memory int64) error {
	system, _ := parseAmounts(a.systemReserved) // checked before
	kube, _ := parseAmounts(a.kubeReserved)
	for _, what := range a.enforce {
		var err error
		switch what {
		case enforcePods:
			most := corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(memory, resource.BinarySI)}
			for _, list := range []corev1.ResourceList{system, kube} {
				left := most[corev1.ResourceMemory]
				left.Sub(list[corev1.ResourceMemory])
				most[corev1.ResourceMemory] = left
			}
			err = a.cgroups.LimitPods(most)
		case enforceSystem:
			err = a.cgroups.LimitGroup(a.systemGroup, system)
		case enforceKube:
			err = a.cgroups.LimitGroup(a.kubeGroup, kube)
		}
		if err != nil {
			return fmt.Errorf("enforcing %s: %w", what, err)
		}
	}
	return nil
}
