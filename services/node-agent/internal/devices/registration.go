package devices

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/validation"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// registration answers plugins that register.
type registration struct {
	pluginapi.UnimplementedRegistrationServer
	store *Store
	begin func(p *plugin, conn *grpc.ClientConn)
}

// Run takes plugins until ctx ends. It removes the sockets in its directory first,
// so that plugins that watch it register again.
func (s *Store) Run(ctx context.Context) error {
	if err := clear(s.cfg.Dir); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", filepath.Join(s.cfg.Dir, "kubelet.sock"))
	if err != nil {
		return fmt.Errorf("listening for device plugins: %w", err)
	}
	var group sync.WaitGroup
	defer group.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server := grpc.NewServer()
	pluginapi.RegisterRegistrationServer(server, &registration{store: s, begin: func(p *plugin, conn *grpc.ClientConn) {
		pluginCtx, stop := context.WithCancel(ctx)
		p.cancel = stop
		s.begin(p)
		group.Go(func() {
			defer stop()
			defer func() { _ = conn.Close() }()
			s.follow(pluginCtx, p)
		})
	}})
	group.Go(func() {
		<-ctx.Done()
		server.Stop()
	})
	if err := server.Serve(listener); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serving device plugins: %w", err)
	}
	return nil
}

func clear(dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("making the directory of device plugins: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("reading the directory of device plugins: %w", err)
	}
	for _, entry := range entries {
		if entry.Type()&fs.ModeSocket != 0 {
			if err := os.Remove(filepath.Join(dir, entry.Name())); err != nil {
				return fmt.Errorf("removing the socket of a device plugin: %w", err)
			}
		}
	}
	return nil
}

// Register implements the API.
func (r *registration) Register(ctx context.Context, request *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	if !slices.Contains(pluginapi.SupportedVersions[:], request.GetVersion()) {
		return nil, status.Errorf(codes.InvalidArgument, "version %q is not supported; %v are", request.GetVersion(), pluginapi.SupportedVersions)
	}
	if name := request.GetResourceName(); !extended(name) {
		return nil, status.Errorf(codes.InvalidArgument, "%q is not the name of an extended resource", name)
	}
	if name := request.GetEndpoint(); name != filepath.Base(name) || name == "." || name == "" {
		return nil, status.Errorf(codes.InvalidArgument, "the endpoint %q is not the name of a file", name)
	}
	const limit = 16 << 20
	conn, err := grpc.NewClient("unix://"+filepath.Join(r.store.cfg.Dir, request.GetEndpoint()),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(limit)))
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "endpoint %s: %v", request.GetEndpoint(), err)
	}
	p := &plugin{resource: request.GetResourceName(), options: request.GetOptions(), client: pluginapi.NewDevicePluginClient(conn), devices: map[string]*pluginapi.Device{}}
	if p.options == nil {
		p.options = &pluginapi.DevicePluginOptions{}
	}
	r.store.cfg.Log.InfoContext(ctx, "A device plugin has registered", "resource", p.resource, "endpoint", request.GetEndpoint())
	r.begin(p, conn)
	return &pluginapi.Empty{}, nil
}

// extended tells whether a name is one that pods can ask for with limits.
func extended(name string) bool {
	domain, _, found := strings.Cut(name, "/")
	return found && len(validation.IsQualifiedName(name)) == 0 && len(validation.IsQualifiedName("requests."+name)) == 0 &&
		domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io")
}

// follow lists a plugin's devices until it ends.
func (s *Store) follow(ctx context.Context, p *plugin) {
	defer s.end(p)
	const patience = 10 * time.Second
	callCtx, cancel := context.WithTimeout(ctx, patience)
	if options, err := p.client.GetDevicePluginOptions(callCtx, &pluginapi.Empty{}, grpc.WaitForReady(true)); err == nil && options != nil {
		s.mu.Lock()
		p.options = options
		s.mu.Unlock()
	}
	cancel()
	stream, err := p.client.ListAndWatch(ctx, &pluginapi.Empty{})
	if err != nil {
		s.cfg.Log.WarnContext(ctx, "Listing the devices of a plugin", "resource", p.resource, "err", err)
		return
	}
	for {
		response, err := stream.Recv()
		if err != nil {
			if ctx.Err() == nil {
				s.cfg.Log.InfoContext(ctx, "A device plugin lists no more", "resource", p.resource, "err", err)
			}
			return
		}
		s.update(p, response.GetDevices())
	}
}
