package devices_test

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/node-agent/internal/devices"
	"github.com/sampan-io/sampan/services/node-agent/internal/devices/fakeplugin"
	"github.com/sampan-io/sampan/services/node-agent/internal/topology"
)

const fake = "example.com/fake"

// open starts a store; end ends it.
func open(t *testing.T, dir string) (store *devices.Store, end func()) {
	t.Helper()
	store, err := devices.Open(devices.Config{Dir: dir, Changed: func() {}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- store.Run(ctx) }()
	end = func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		done <- nil
	}
	t.Cleanup(end)
	eventually(t, "the socket", func() bool {
		conn, err := net.Dial("unix", filepath.Join(dir, "kubelet.sock"))
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	return store, end
}

// shortDir has a name that fits into the address of a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dev")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if condition() {
			return
		}
	}
	t.Fatalf("waited in vain for %s", what)
}

func awaitAllocatable(t *testing.T, store *devices.Store, capacity, allocatable int64) {
	t.Helper()
	eventually(t, "devices", func() bool {
		all, healthy := store.Resources()
		a, h := all[fake], healthy[fake]
		return a.Value() == capacity && h.Value() == allocatable
	})
}

func asks(uid string, counts ...int64) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}}
	for i, n := range counts {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: string(rune('a' + i)), Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{fake: *resource.NewQuantity(n, resource.DecimalSI)},
		}})
	}
	return pod
}

func start(t *testing.T, dir string, ids ...string) *fakeplugin.Plugin {
	t.Helper()
	plugin, err := fakeplugin.Start(t.Context(), dir, fake, ids...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plugin.Stop)
	return plugin
}

func idsOf(store *devices.Store, uid, container string) []string {
	var out []string
	for _, given := range store.Of(types.UID(uid), container) {
		out = append(out, given.Devices...)
	}
	return out
}

func TestDevicesAreGivenOnceAndTakenBack(t *testing.T) {
	dir := shortDir(t)
	store, _ := open(t, dir)
	plugin := start(t, dir, "d1", "d2", "d3")
	awaitAllocatable(t, store, 3, 3)
	if err := store.Allocate(t.Context(), asks("p1", 1, 1)); err != nil {
		t.Fatal(err)
	}
	if a, b := idsOf(store, "p1", "a"), idsOf(store, "p1", "b"); len(a) != 1 || len(b) != 1 || a[0] == b[0] {
		t.Errorf("the containers have %v and %v", a, b)
	}
	if got := store.Of("p1", "a")[0].Response.GetEnvs()["FAKE_DEVICES"]; got != "d1" {
		t.Errorf("the plugin's answer names %q", got)
	}
	err := store.Allocate(t.Context(), asks("p2", 2))
	if err == nil || !strings.Contains(err.Error(), "requested number of devices unavailable for example.com/fake. Requested: 2, Available: 1") {
		t.Errorf("error %v", err)
	}
	if err := store.Prepare(t.Context(), "p1", "b"); err != nil || len(plugin.Started()) != 1 || plugin.Started()[0][0] != "d2" {
		t.Errorf("prepared %v, %v", plugin.Started(), err)
	}
	store.Release("p1")
	if err := store.Allocate(t.Context(), asks("p2", 3)); err != nil {
		t.Error(err)
	}
	plugin.Set("d3", pluginapi.Unhealthy)
	awaitAllocatable(t, store, 3, 2)
	store.Release("p2")
	plugin.Refuse(true)
	if err := store.Allocate(t.Context(), asks("p3", 1)); err == nil || len(store.Of("p3", "a")) > 0 {
		t.Errorf("a refused pod has %v, error %v", store.Of("p3", "a"), err)
	}
}

func TestInitContainersLeaveTheirDevices(t *testing.T) {
	dir := shortDir(t)
	store, _ := open(t, dir)
	start(t, dir, "d1", "d2")
	awaitAllocatable(t, store, 2, 2)
	pod := asks("p", 1)
	limits := pod.Spec.Containers[0].Resources
	pod.Spec.InitContainers = []corev1.Container{
		{Name: "sidecar", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways), Resources: limits}, {Name: "init", Resources: limits},
	}
	if err := store.Allocate(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if s, i, a := idsOf(store, "p", "sidecar"), idsOf(store, "p", "init"), idsOf(store, "p", "a"); s[0] == i[0] || i[0] != a[0] {
		t.Errorf("sidecar %v, init %v, app %v", s, i, a)
	}
}

func TestDevicesComeFromTheNUMANodesTheyShould(t *testing.T) {
	dir := shortDir(t)
	store, _ := open(t, dir)
	plugin := start(t, dir, "d1", "d2", "d3")
	awaitAllocatable(t, store, 3, 3)
	two := asks("p", 2)
	limits := two.Spec.Containers[0].Resources.Limits
	if hints := store.Begin("p").Hints([]int{0, 1}, limits); len(hints) != 0 {
		t.Errorf("devices that are nowhere in particular have %v", hints)
	}
	for id, node := range map[string]int64{"d1": 0, "d2": 1, "d3": 1} {
		plugin.Place(id, node)
	}
	var hints []topology.Hint
	eventually(t, "the places to be known", func() bool {
		hints = store.Begin("p").Hints([]int{0, 1}, limits)[fake]
		return len(hints) == 2
	})
	if hints[0].Nodes != topology.Of(1) || !hints[0].Preferred || hints[1].Nodes != topology.Of(0, 1) || hints[1].Preferred {
		t.Errorf("hints %+v", hints)
	}
	one := asks("q", 1)
	if err := store.Begin("q").Give(t.Context(), &one.Spec.Containers[0], true, topology.Of(1)); err != nil {
		t.Fatal(err)
	}
	if got := idsOf(store, "q", "a"); !slices.Equal(got, []string{"d2"}) {
		t.Errorf("given %v", got)
	}
	if err := store.Begin("p").Give(t.Context(), &two.Spec.Containers[0], true, topology.Of(1)); err != nil {
		t.Fatal(err)
	}
	if got := idsOf(store, "p", "a"); !slices.Equal(got, []string{"d1", "d3"}) {
		t.Errorf("with too few where they should be: given %v", got)
	}
}

func TestPreferenceOfThePlugin(t *testing.T) {
	dir := shortDir(t)
	store, _ := open(t, dir)
	plugin := start(t, dir, "d1", "d2", "d3")
	plugin.Prefers = func(available []string, count int) []string { return available[len(available)-count:] }
	plugin.Stop()
	if err := plugin.Register(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	awaitAllocatable(t, store, 3, 3)
	if err := store.Allocate(t.Context(), asks("p", 2)); err != nil {
		t.Fatal(err)
	}
	if got := idsOf(store, "p", "a"); !slices.Equal(got, []string{"d2", "d3"}) {
		t.Errorf("given %v", got)
	}
}

func TestRestartsOfPluginAndStore(t *testing.T) {
	dir := shortDir(t)
	store, end := open(t, dir)
	plugin := start(t, dir, "d1", "d2")
	awaitAllocatable(t, store, 2, 2)
	if err := store.Allocate(t.Context(), asks("p", 1)); err != nil {
		t.Fatal(err)
	}
	plugin.Stop()
	awaitAllocatable(t, store, 2, 0)
	end()
	store, _ = open(t, dir)
	if got := idsOf(store, "p", "a"); !slices.Equal(got, []string{"d1"}) {
		t.Errorf("after a restart the pod has %v", got)
	}
	if err := store.Allocate(t.Context(), asks("q", 1)); err == nil {
		t.Error("devices of a plugin that has ended were given")
	}
	if err := plugin.Register(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	awaitAllocatable(t, store, 2, 2)
	if err := store.Allocate(t.Context(), asks("q", 1)); err != nil {
		t.Fatal(err)
	}
	if got := idsOf(store, "q", "a"); !slices.Equal(got, []string{"d2"}) {
		t.Errorf("the second pod has %v", got)
	}
}

func TestDamagedFileIsRefused(t *testing.T) {
	dir := shortDir(t)
	for _, content := range []string{"{", `{"data":{"podDeviceEntries":[]},"checksum":1}`} {
		if err := os.WriteFile(filepath.Join(dir, "kubelet_internal_checkpoint"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := devices.Open(devices.Config{Dir: dir}); err == nil {
			t.Errorf("%s was taken", content)
		}
	}
}

func TestBadRegistrationsAreRefused(t *testing.T) {
	dir := shortDir(t)
	open(t, dir)
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	for name, request := range map[string]*pluginapi.RegisterRequest{
		"version":        {Version: "v1alpha", Endpoint: "x.sock", ResourceName: fake},
		"resource":       {Version: "v1beta1", Endpoint: "x.sock", ResourceName: "cpu"},
		"system":         {Version: "v1beta1", Endpoint: "x.sock", ResourceName: "kubernetes.io/thing"},
		"other folder":   {Version: "v1beta1", Endpoint: "../x.sock", ResourceName: fake},
		"no endpoint":    {Version: "v1beta1", ResourceName: fake},
		"bad characters": {Version: "v1beta1", Endpoint: "x.sock", ResourceName: "example.com/a b"},
	} {
		if _, err := pluginapi.NewRegistrationClient(conn).Register(t.Context(), request); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}
