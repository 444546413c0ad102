package devices

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/sampan-io/sampan/services/node-agent/internal/topology"
)

// allocatePatience is how long a plugin may take for an allocation.
const allocatePatience = 30 * time.Second

// Allocate gives a pod the devices that its containers ask for, wherever they are. On
// an error the pod has none.
func (s *Store) Allocate(ctx context.Context, pod *corev1.Pod) error {
	claim := s.Begin(pod.UID)
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		stays := c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		if err := claim.Give(ctx, c, stays, 0); err != nil {
			s.Release(pod.UID)
			return err
		}
	}
	for i := range pod.Spec.Containers {
		if err := claim.Give(ctx, &pod.Spec.Containers[i], true, 0); err != nil {
			s.Release(pod.UID)
			return err
		}
	}
	return nil
}

func (s *Store) plugin(name string) *plugin {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.plugins[name]
}

// choose picks devices, first those that are left, then by the plugin's
// preference. They are reserved for the pod when this returns.
func (s *Store) choose(ctx context.Context, p *plugin, pod types.UID, count int, left []string, on topology.Nodes) ([]string, error) {
	free, must, client, err := s.free(p, count, left, on)
	if err != nil {
		return nil, err
	}
	chosen := slices.Clone(must)
	if p.options.GetGetPreferredAllocationAvailable() && len(chosen) < count {
		if preferred, err := prefer(ctx, client, free, must, count); err == nil {
			chosen = append(chosen, preferred...)
		} else {
			s.cfg.Log.InfoContext(ctx, "A device plugin does not tell what it prefers", "resource", p.resource, "err", err)
		}
	}
	chosen = append(chosen, free...)
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.taken(p.resource)
	var out []string
	for _, id := range chosen {
		owner := taken[id]
		device := p.devices[id]
		if len(out) < count && !slices.Contains(out, id) && device.GetHealth() == pluginapi.Healthy && (owner == "" || (owner == pod && slices.Contains(left, id))) {
			out = append(out, id)
		}
	}
	if len(out) < count {
		return nil, fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d", p.resource, count, len(out))
	}
	slices.Sort(out)
	s.given = append(s.given, Given{Pod: pod, Resource: p.resource, Devices: out}) // for no container yet
	return out, nil
}

// free are the healthy devices that nobody has, and those that must be taken
// first. If there are enough on these NUMA nodes, no others are; if not, they come first.
func (s *Store) free(p *plugin, count int, left []string, on topology.Nodes) (free, must []string, client pluginapi.DevicePluginClient, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.client == nil {
		return nil, nil, nil, fmt.Errorf("the plugin of %s has ended", p.resource)
	}
	taken := s.taken(p.resource)
	for _, id := range slices.Sorted(maps.Keys(p.devices)) {
		if p.devices[id].GetHealth() == pluginapi.Healthy && taken[id] == "" {
			free = append(free, id)
		}
	}
	if on == 0 {
		return free, left[:min(len(left), count)], p.client, nil
	}
	far := func(id string) bool { return !near(p.devices[id], on) }
	must = slices.DeleteFunc(slices.Clone(left), far)
	must = must[:min(len(must), count)]
	aligned := slices.DeleteFunc(slices.Clone(free), far)
	if len(must)+len(aligned) >= count {
		return aligned, must, p.client, nil
	}
	return append(aligned, slices.DeleteFunc(append(slices.Clone(left), free...), func(id string) bool { return !far(id) })...), must, p.client, nil
}

func prefer(ctx context.Context, client pluginapi.DevicePluginClient, free, must []string, count int) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, allocatePatience)
	defer cancel()
	response, err := client.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{
		{AvailableDeviceIDs: append(slices.Clone(must), free...), MustIncludeDeviceIDs: must, AllocationSize: int32(count)},
	}})
	if err != nil || len(response.GetContainerResponses()) != 1 {
		return nil, err
	}
	return response.GetContainerResponses()[0].GetDeviceIDs(), nil
}

// give asks the plugin to make the devices ready, and takes note of them.
func (s *Store) give(ctx context.Context, p *plugin, given Given) error {
	s.mu.Lock()
	client := p.client
	s.mu.Unlock()
	if client == nil {
		return fmt.Errorf("the plugin of %s has ended", p.resource)
	}
	ctx, cancel := context.WithTimeout(ctx, allocatePatience)
	defer cancel()
	response, err := client.Allocate(ctx, &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: given.Devices}}})
	if err != nil {
		return fmt.Errorf("the plugin of %s: %w", p.resource, err)
	}
	if len(response.GetContainerResponses()) != 1 {
		return fmt.Errorf("the plugin of %s answered for %d containers, not for one", p.resource, len(response.GetContainerResponses()))
	}
	given.Response = response.GetContainerResponses()[0]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.given = slices.DeleteFunc(s.given, func(g Given) bool { return g.Pod == given.Pod && g.Container == "" })
	s.given = append(s.given, given)
	s.save()
	return nil
}

// Prepare lets the plugins know that a container is about to start, if they want
// to.
func (s *Store) Prepare(ctx context.Context, pod types.UID, container string) error {
	for _, given := range s.Of(pod, container) {
		s.mu.Lock()
		p := s.plugins[given.Resource]
		var client pluginapi.DevicePluginClient
		if p != nil && p.options.GetPreStartRequired() {
			client = p.client
		}
		s.mu.Unlock()
		if client == nil {
			continue
		}
		callCtx, cancel := context.WithTimeout(ctx, pluginapi.KubeletPreStartContainerRPCTimeoutInSecs*time.Second)
		_, err := client.PreStartContainer(callCtx, &pluginapi.PreStartContainerRequest{DevicesIds: given.Devices})
		cancel()
		if err != nil {
			return fmt.Errorf("the plugin of %s: %w", given.Resource, err)
		}
	}
	return nil
}
