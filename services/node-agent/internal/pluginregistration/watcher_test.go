package pluginregistration

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// fakePlugin announces itself by one socket.
type fakePlugin struct {
	registerapi.UnimplementedRegistrationServer
	info *registerapi.PluginInfo
	told chan *registerapi.RegistrationStatus
}

func (f *fakePlugin) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return f.info, nil
}

func (f *fakePlugin) NotifyRegistrationStatus(_ context.Context, status *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	select {
	case f.told <- status:
	default: // a refused plugin is told again and again
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}

func announce(t *testing.T, dir, file string, info *registerapi.PluginInfo) (plugin *fakePlugin, stop func()) {
	t.Helper()
	plugin = &fakePlugin{info: info, told: make(chan *registerapi.RegistrationStatus, 1)}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(dir, file))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, plugin)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return plugin, server.Stop
}

type fakeHandler struct{ registered, deregistered chan string }

func (f fakeHandler) Register(_ context.Context, name, endpoint string, _ []string) error {
	f.registered <- name + " at " + endpoint
	return nil
}

func (f fakeHandler) Deregister(_ context.Context, name string) { f.deregistered <- name }

func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case got := <-from:
		return got
	case <-time.After(30 * time.Second):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

func TestPluginsComeAndGo(t *testing.T) {
	dir, err := os.MkdirTemp("", "reg") // a short path, as sockets need
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	handler := fakeHandler{make(chan string, 1), make(chan string, 1)}
	watcher := &Watcher{Dir: dir, Handlers: map[string]Handler{registerapi.CSIPlugin: handler}, Log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- watcher.Run(ctx) }()
	t.Cleanup(cancel)

	info := &registerapi.PluginInfo{Type: registerapi.CSIPlugin, Name: "disks.example.com", Endpoint: "/csi.sock", SupportedVersions: []string{"1.0.0"}}
	plugin, stop := announce(t, dir, "disks-reg.sock", info)
	if got := receive(t, handler.registered); got != "disks.example.com at /csi.sock" {
		t.Errorf("registered is %s", got)
	}
	if status := receive(t, plugin.told); !status.GetPluginRegistered() {
		t.Errorf("the plugin is told %v", status)
	}
	dra, _ := announce(t, dir, "gpu-reg.sock", &registerapi.PluginInfo{Type: registerapi.DRAPlugin, Name: "gpu.example.com"})
	if status := receive(t, dra.told); status.GetPluginRegistered() || !strings.Contains(status.GetError(), `"DRAPlugin" are not supported`) {
		t.Errorf("a plugin of another type is told %v", status)
	}
	stop() // removes the socket
	if got := receive(t, handler.deregistered); got != "disks.example.com" {
		t.Errorf("deregistered is %s", got)
	}
	announce(t, dir, "disks-reg.sock", info)
	receive(t, handler.registered)
	cancel()
	if err := receive(t, ended); err != nil {
		t.Error(err)
	}
	if len(handler.deregistered) > 0 {
		t.Error("the end of the agent deregisters a plugin")
	}
}
