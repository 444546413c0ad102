package app

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/sampan-io/sampan/services/node-agent/internal/cpus"
	"github.com/sampan-io/sampan/services/node-agent/internal/devices"
	"github.com/sampan-io/sampan/services/node-agent/internal/numa"
	"github.com/sampan-io/sampan/services/node-agent/internal/topology"
)

// claim is what one pod is being given.
type claim struct {
	*assigner
	pod     *corev1.Pod
	cpus    *cpus.Claim // nil without the static policy
	memory  *numa.Claim // nil without the Static policy
	devices *devices.Claim
}

// allocate gives a pod all that it is to have alone. Without a topology policy devices
// are given apart from the rest: then no pod waits for another's plugin.
func (s *assigner) allocate(ctx context.Context, pod *corev1.Pod) error {
	if s.policy == topology.None {
		if err := s.claim(ctx, pod, false); err != nil {
			return err
		}
		return s.devices.Allocate(ctx, pod)
	}
	return s.claim(ctx, pod, true)
}

func (s *assigner) claim(ctx context.Context, pod *corev1.Pod, withDevices bool) error {
	s.giving.Lock()
	defer s.giving.Unlock()
	c := &claim{assigner: s, pod: pod}
	if s.cpus != nil {
		c.cpus = s.cpus.Begin(pod)
	}
	if s.memory != nil {
		c.memory = s.memory.Begin(pod)
	}
	if withDevices {
		c.devices = s.devices.Begin(pod.UID)
	}
	if err := c.containers(ctx); err != nil {
		return err
	}
	return c.commit()
}

// containers gives each what it is to have, init containers first.
func (c *claim) containers(ctx context.Context) error {
	var on topology.Nodes
	var err error
	if c.scope == topology.Pod {
		if on, err = c.place(c.whole()); err != nil {
			return err
		}
	}
	one := func(container *corev1.Container, stays bool) error {
		if c.scope != topology.Pod {
			if on, err = c.place(c.share(container)); err != nil {
				return err
			}
		}
		return c.give(ctx, container, stays, on)
	}
	for i := range c.pod.Spec.InitContainers {
		container := &c.pod.Spec.InitContainers[i]
		if err := one(container, restartsAlways(container)); err != nil {
			return err
		}
	}
	for i := range c.pod.Spec.Containers {
		if err := one(&c.pod.Spec.Containers[i], true); err != nil {
			return err
		}
	}
	return nil
}

func restartsAlways(container *corev1.Container) bool {
	return container.RestartPolicy != nil && *container.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// need is what gets one place.
type need struct {
	cpus   int
	memory int64 // bytes
	limits corev1.ResourceList
}

func (c *claim) share(container *corev1.Container) need {
	n := need{limits: container.Resources.Limits}
	if c.cpus != nil {
		n.cpus = c.cpus.Exclusive(container)
	}
	if c.memory != nil {
		n.memory = c.memory.Wanted(container)
	}
	return n
}

// whole is what the pod needs at a time: of what its containers need, counted as the
// scheduler counts.
func (c *claim) whole() need {
	counted := c.pod.DeepCopy()
	counted.Spec.Resources, counted.Spec.Overhead = nil, nil
	for _, list := range [][]corev1.Container{counted.Spec.InitContainers, counted.Spec.Containers} {
		for i := range list {
			share := c.share(&list[i])
			limits := maps.Clone(list[i].Resources.Limits)
			if limits == nil {
				limits = corev1.ResourceList{}
			}
			limits[corev1.ResourceCPU] = *resource.NewQuantity(int64(share.cpus), resource.DecimalSI)
			limits[corev1.ResourceMemory] = *resource.NewQuantity(share.memory, resource.BinarySI)
			list[i].Resources = corev1.ResourceRequirements{Limits: limits, Requests: limits}
		}
	}
	sum := resourcehelper.PodRequests(counted, resourcehelper.PodResourcesOptions{})
	return need{cpus: int(sum.Cpu().Value()), memory: sum.Memory().Value(), limits: sum}
}

// place asks the policy where a need is to be met.
func (c *claim) place(n need) (topology.Nodes, error) {
	if c.policy == topology.None {
		return 0, nil
	}
	var lists [][]topology.Hint
	if c.cpus != nil {
		lists = append(lists, c.cpus.Hints(n.cpus))
	}
	if c.memory != nil {
		lists = append(lists, c.memory.Hints(n.memory))
	}
	if c.devices != nil {
		hints := c.devices.Hints(c.nodes, n.limits)
		for _, name := range slices.Sorted(maps.Keys(hints)) {
			lists = append(lists, hints[name])
		}
	}
	return c.policy.Decide(c.nodes, lists...)
}

func (c *claim) give(ctx context.Context, container *corev1.Container, stays bool, on topology.Nodes) error {
	if c.cpus != nil {
		if err := c.cpus.Give(container, stays, on); err != nil {
			return err
		}
	}
	if c.memory != nil {
		if err := c.memory.Give(container, stays, on); err != nil {
			return err
		}
	}
	if c.devices == nil {
		return nil
	}
	return c.devices.Give(ctx, container, stays, on)
}

func (c *claim) commit() error {
	if c.cpus != nil {
		changed, err := c.cpus.Commit()
		if err != nil {
			return err
		}
		c.cpusMoved(changed)
	}
	if c.memory == nil {
		return nil
	}
	return c.memory.Commit()
}
