// Package devices offers what device plugins have to pods, by the kubelet's
// device plugin API, v1beta1.
//
//	plugin ──Register──► device-plugins/kubelet.sock
//	       ◄──ListAndWatch, Allocate, PreStartContainer── this package
//
// What pods have been given is kept in a file, and survives restarts of this
// program and of plugins.
package devices

import (
	"context"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Config is what a Store needs.
type Config struct {
	Dir     string // of the plugins' sockets and of the file
	Changed func() // called when there are other devices; must not block
	Log     *slog.Logger
}

// Store knows the plugins, their devices, and who has them.
type Store struct {
	cfg Config

	mu      sync.Mutex
	plugins map[string]*plugin // by resource
	given   []Given
}

// plugin is one resource.
type plugin struct {
	resource string
	options  *pluginapi.DevicePluginOptions
	client   pluginapi.DevicePluginClient // nil once it has ended
	devices  map[string]*pluginapi.Device
	ended    time.Time
	cancel   context.CancelFunc
}

// Given is what one container has of one resource.
type Given struct {
	Pod       types.UID                            `json:"podUID"`
	Container string                               `json:"containerName"`
	Resource  string                               `json:"resourceName"`
	Devices   []string                             `json:"deviceIDs"`
	Response  *pluginapi.ContainerAllocateResponse `json:"allocResp"`
}

// Open reads who has what.
func Open(cfg Config) (*Store, error) {
	s := &Store{cfg: cfg, plugins: map[string]*plugin{}}
	saved, err := load(s.file())
	if err != nil {
		return nil, err
	}
	s.given = saved.Given
	for _, name := range saved.Resources {
		s.plugins[name] = &plugin{resource: name, devices: map[string]*pluginapi.Device{}, ended: time.Now()}
	}
	return s, nil
}

func (s *Store) file() string { return filepath.Join(s.cfg.Dir, "kubelet_internal_checkpoint") }

// keptFor is how long a resource is told of after its plugin has ended.
const keptFor = 5 * time.Minute

// Resources are what the node has for pods. One whose plugin has ended has none to
// give; when it has been gone for long it has no capacity either.
func (s *Store) Resources() (capacity, allocatable corev1.ResourceList) {
	s.mu.Lock()
	defer s.mu.Unlock()
	capacity, allocatable = corev1.ResourceList{}, corev1.ResourceList{}
	for name, p := range s.plugins {
		all, healthy := len(p.devices), 0
		for _, d := range p.devices {
			if d.GetHealth() == pluginapi.Healthy && p.client != nil {
				healthy++
			}
		}
		if p.client == nil && time.Since(p.ended) > keptFor {
			all = 0
		}
		capacity[corev1.ResourceName(name)] = *resource.NewQuantity(int64(all), resource.DecimalSI)
		allocatable[corev1.ResourceName(name)] = *resource.NewQuantity(int64(healthy), resource.DecimalSI)
	}
	return capacity, allocatable
}

// Of is what a container has been given.
func (s *Store) Of(pod types.UID, container string) []Given {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Given
	for _, g := range s.given {
		if g.Pod == pod && g.Container == container {
			out = append(out, g)
		}
	}
	return out
}

// Known is a device with the resource it belongs to.
type Known struct {
	Resource string
	Device   *pluginapi.Device
	Taken    bool
}

// All are the devices of all plugins, by resource and id.
func (s *Store) All() []Known {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Known
	for _, name := range slices.Sorted(maps.Keys(s.plugins)) {
		taken := s.taken(name)
		for _, id := range slices.Sorted(maps.Keys(s.plugins[name].devices)) {
			out = append(out, Known{Resource: name, Device: s.plugins[name].devices[id], Taken: taken[id] != ""})
		}
	}
	return out
}

// taken are the ids of a resource that pods have. Caller must hold mu.
func (s *Store) taken(name string) map[string]types.UID {
	out := map[string]types.UID{}
	for _, g := range s.given {
		if g.Resource == name {
			for _, id := range g.Devices {
				out[id] = g.Pod
			}
		}
	}
	return out
}

// Release takes back what a pod has.
func (s *Store) Release(pod types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.given)
	s.given = slices.DeleteFunc(s.given, func(g Given) bool { return g.Pod == pod })
	if len(s.given) != before {
		s.save()
	}
}

// save keeps who has what. Caller must hold mu.
func (s *Store) save() {
	if err := store(s.file(), saved{Given: s.given, Resources: slices.Sorted(maps.Keys(s.plugins))}); err != nil {
		s.cfg.Log.Error("Keeping who has which devices", "err", err)
	}
}

// update replaces a plugin's devices.
func (s *Store) update(p *plugin, list []*pluginapi.Device) {
	s.mu.Lock()
	p.devices = map[string]*pluginapi.Device{}
	for _, d := range list {
		p.devices[d.GetID()] = d
	}
	s.mu.Unlock()
	s.cfg.Changed()
}

// end takes note of a plugin that is gone, unless another has come for its
// resource.
func (s *Store) end(p *plugin) {
	s.mu.Lock()
	p.client, p.ended = nil, time.Now()
	current := s.plugins[p.resource] == p
	s.mu.Unlock()
	if current {
		s.cfg.Log.Info("A device plugin has ended", "resource", p.resource)
		s.cfg.Changed()
	}
}

// begin puts a plugin in the place of the one before it.
func (s *Store) begin(p *plugin) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.plugins[p.resource]; old != nil {
		if old.cancel != nil {
			old.cancel()
		}
		if len(p.devices) == 0 {
			p.devices = old.devices
		}
	}
	s.plugins[p.resource] = p
	s.save()
}
