package devices

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/sampan-io/sampan/services/node-agent/internal/topology"
)

// Claim gives one pod its devices, container after container in the pod's order, init
// containers first. They are the pod's at once; Release takes them back.
type Claim struct {
	store *Store
	pod   types.UID
	left  map[string][]string // by resource: of init containers that have ended by then
}

// Begin opens a claim.
func (s *Store) Begin(pod types.UID) *Claim {
	return &Claim{store: s, pod: pod, left: map[string][]string{}}
}

// Hints are the NUMA nodes that the devices of each resource in the list could come
// from. Nodes are the machine's. Resources without a plugin, or whose devices are nowhere
// in particular, have none.
func (c *Claim) Hints(nodes []int, limits corev1.ResourceList) map[string][]topology.Hint {
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	out := map[string][]topology.Hint{}
	for name, quantity := range limits {
		p, count := c.store.plugins[string(name)], int(quantity.Value())
		if p == nil || count == 0 || !placed(p) {
			continue
		}
		taken := c.store.taken(p.resource)
		free := func(id string) bool {
			return p.devices[id].GetHealth() == pluginapi.Healthy && (taken[id] == "" || slices.Contains(c.left[p.resource], id))
		}
		enough := func(wanted func(id string) bool) func(topology.Nodes) bool {
			return func(on topology.Nodes) bool {
				found := 0
				for id, device := range p.devices {
					if near(device, on) && wanted(id) {
						found++
					}
				}
				return found >= count
			}
		}
		out[p.resource] = topology.Possible(nodes, enough(func(string) bool { return true }), enough(free))
	}
	return out
}

// placed tells whether any of the devices is at a NUMA node.
func placed(p *plugin) bool {
	for _, device := range p.devices {
		if len(device.GetTopology().GetNodes()) > 0 {
			return true
		}
	}
	return false
}

// near tells whether the device is at one of the nodes.
func near(device *pluginapi.Device, on topology.Nodes) bool {
	return slices.ContainsFunc(device.GetTopology().GetNodes(), func(n *pluginapi.NUMANode) bool { return on.Has(int(n.GetID())) })
}

// Give chooses the devices of one container, at these NUMA nodes as long as there are
// any, and lets the plugins make them ready. One that does not stay leaves its devices to
// those after it.
func (c *Claim) Give(ctx context.Context, container *corev1.Container, stays bool, on topology.Nodes) error {
	for _, name := range slices.Sorted(maps.Keys(container.Resources.Limits)) {
		quantity := container.Resources.Limits[name]
		count, p := int(quantity.Value()), c.store.plugin(string(name))
		if p == nil || count == 0 {
			continue
		}
		ids, err := c.store.choose(ctx, p, c.pod, count, c.left[p.resource], on)
		if err != nil {
			return err
		}
		if err := c.store.give(ctx, p, Given{Pod: c.pod, Container: container.Name, Resource: p.resource, Devices: ids}); err != nil {
			return err
		}
		rest := sets.New(c.left[p.resource]...)
		if stays {
			rest.Delete(ids...)
		} else {
			rest.Insert(ids...)
		}
		c.left[p.resource] = sets.List(rest)
	}
	return nil
}
