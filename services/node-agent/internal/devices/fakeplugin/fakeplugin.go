// Package fakeplugin is a device plugin for tests, which offers what it is told to.
package fakeplugin

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Plugin is one. Its Allocate answers with an environment variable that names the
// devices, and /dev/null under another name.
type Plugin struct {
	pluginapi.UnimplementedDevicePluginServer
	Resource string
	// Prefers, if it is set, is what it prefers of what is free.
	Prefers func(available []string, count int) []string

	server *grpc.Server

	mu       sync.Mutex
	devices  map[string]string // health by id
	nodes    map[string]int64  // NUMA nodes of those that have one
	changed  chan struct{}
	started  [][]string // devices of containers that were about to start
	refusing bool
}

// Start serves on a socket in dir and registers there.
func Start(ctx context.Context, dir, resource string, healthy ...string) (*Plugin, error) {
	p := &Plugin{Resource: resource, devices: map[string]string{}, nodes: map[string]int64{}, changed: make(chan struct{})}
	for _, id := range healthy {
		p.devices[id] = pluginapi.Healthy
	}
	return p, p.Register(ctx, dir)
}

// Register serves and registers, also again after Stop.
func (p *Plugin) Register(ctx context.Context, dir string) error {
	endpoint := strings.ReplaceAll(p.Resource, "/", "-") + ".sock"
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", filepath.Join(dir, endpoint))
	if err != nil {
		return err
	}
	p.server = grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(p.server, p)
	go func() { _ = p.server.Serve(listener) }()
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{
		Version: pluginapi.Version, Endpoint: endpoint, ResourceName: p.Resource, Options: p.options(),
	}, grpc.WaitForReady(true))
	return err
}

// Stop ends it.
func (p *Plugin) Stop() { p.server.Stop() }

// Set changes the health of a device; "" removes it.
func (p *Plugin) Set(id, health string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if health == "" {
		delete(p.devices, id)
	} else {
		p.devices[id] = health
	}
	p.tell()
}

// Place puts a device at a NUMA node.
func (p *Plugin) Place(id string, node int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nodes[id] = node
	p.tell()
}

// tell lets the watchers look again. Caller must hold mu.
func (p *Plugin) tell() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// Refuse lets allocations fail.
func (p *Plugin) Refuse(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refusing = refuse
}

// Started are the devices of each container that was about to start.
func (p *Plugin) Started() [][]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.started)
}

func (p *Plugin) options() *pluginapi.DevicePluginOptions {
	return &pluginapi.DevicePluginOptions{PreStartRequired: true, GetPreferredAllocationAvailable: p.Prefers != nil}
}

// GetDevicePluginOptions implements the API.
func (p *Plugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return p.options(), nil
}

// ListAndWatch implements the API.
func (p *Plugin) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	for {
		p.mu.Lock()
		response := &pluginapi.ListAndWatchResponse{}
		for id, health := range p.devices {
			device := &pluginapi.Device{ID: id, Health: health}
			if node, placed := p.nodes[id]; placed {
				device.Topology = &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: node}}}
			}
			response.Devices = append(response.Devices, device)
		}
		changed := p.changed
		p.mu.Unlock()
		if err := stream.Send(response); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

// GetPreferredAllocation implements the API.
func (p *Plugin) GetPreferredAllocation(_ context.Context, request *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	out := &pluginapi.PreferredAllocationResponse{}
	for _, r := range request.GetContainerRequests() {
		out.ContainerResponses = append(out.ContainerResponses, &pluginapi.ContainerPreferredAllocationResponse{
			DeviceIDs: p.Prefers(r.GetAvailableDeviceIDs(), int(r.GetAllocationSize())),
		})
	}
	return out, nil
}

// Allocate implements the API.
func (p *Plugin) Allocate(_ context.Context, request *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refusing {
		return nil, fmt.Errorf("it does not want to")
	}
	out := &pluginapi.AllocateResponse{}
	for _, r := range request.GetContainerRequests() {
		out.ContainerResponses = append(out.ContainerResponses, &pluginapi.ContainerAllocateResponse{
			Envs:    map[string]string{"FAKE_DEVICES": strings.Join(r.GetDevicesIds(), ",")},
			Devices: []*pluginapi.DeviceSpec{{ContainerPath: "/dev/fake", HostPath: "/dev/null", Permissions: "rw"}},
		})
	}
	return out, nil
}

// PreStartContainer implements the API.
func (p *Plugin) PreStartContainer(_ context.Context, request *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started = append(p.started, request.GetDevicesIds())
	return &pluginapi.PreStartContainerResponse{}, nil
}
