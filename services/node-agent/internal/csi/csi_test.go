package csi

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
)

const driverName = "disks.example.com"

// fakeDriver keeps volumes as directories and publishes them by bind mounts.
type fakeDriver struct {
	csipb.UnimplementedNodeServer
	backing string

	mu       sync.Mutex
	calls    []string
	refuse   string // the call that fails
	contexts map[string]string
}

func (f *fakeDriver) called(call string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, call)
	if f.refuse == call {
		return fmt.Errorf("%s is refused", call)
	}
	return nil
}

func (f *fakeDriver) said() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	said := f.calls
	f.calls = nil
	return said
}

func (f *fakeDriver) NodeGetCapabilities(context.Context, *csipb.NodeGetCapabilitiesRequest) (*csipb.NodeGetCapabilitiesResponse, error) {
	answer := &csipb.NodeGetCapabilitiesResponse{}
	for _, what := range []csipb.NodeServiceCapability_RPC_Type{csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csipb.NodeServiceCapability_RPC_EXPAND_VOLUME} {
		answer.Capabilities = append(answer.Capabilities, &csipb.NodeServiceCapability{Type: &csipb.NodeServiceCapability_Rpc{Rpc: &csipb.NodeServiceCapability_RPC{Type: what}}})
	}
	return answer, nil
}

func (f *fakeDriver) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	return &csipb.NodeGetInfoResponse{NodeId: "id-of-n", MaxVolumesPerNode: 7, AccessibleTopology: &csipb.Topology{Segments: map[string]string{"topology.example.com/rack": "r1"}}}, nil
}

func (f *fakeDriver) NodeStageVolume(context.Context, *csipb.NodeStageVolumeRequest) (*csipb.NodeStageVolumeResponse, error) {
	return &csipb.NodeStageVolumeResponse{}, f.called("stage")
}

func (f *fakeDriver) NodeUnstageVolume(context.Context, *csipb.NodeUnstageVolumeRequest) (*csipb.NodeUnstageVolumeResponse, error) {
	return &csipb.NodeUnstageVolumeResponse{}, f.called("unstage")
}

func (f *fakeDriver) NodePublishVolume(_ context.Context, r *csipb.NodePublishVolumeRequest) (*csipb.NodePublishVolumeResponse, error) {
	if err := f.called("publish"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.contexts = r.GetVolumeContext()
	f.mu.Unlock()
	if err := os.MkdirAll(r.GetTargetPath(), 0o755); err != nil {
		return nil, err
	}
	return &csipb.NodePublishVolumeResponse{}, unix.Mount(f.backing, r.GetTargetPath(), "", unix.MS_BIND, "")
}

func (f *fakeDriver) NodeUnpublishVolume(_ context.Context, r *csipb.NodeUnpublishVolumeRequest) (*csipb.NodeUnpublishVolumeResponse, error) {
	if err := f.called("unpublish"); err != nil {
		return nil, err
	}
	_ = unix.Unmount(r.GetTargetPath(), 0)
	return &csipb.NodeUnpublishVolumeResponse{}, nil
}

func (f *fakeDriver) NodeExpandVolume(context.Context, *csipb.NodeExpandVolumeRequest) (*csipb.NodeExpandVolumeResponse, error) {
	return &csipb.NodeExpandVolumeResponse{}, f.called("expand")
}

func serve(t *testing.T, driver *fakeDriver) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi") // a short path, as sockets need
	if err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(dir, "csi.sock")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	csipb.RegisterNodeServer(server, driver)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		_ = os.RemoveAll(dir)
	})
	return socket
}

type fakeNode struct{ object *corev1.Node }

func (f fakeNode) Object() *corev1.Node { return f.object }
func (fakeNode) Registered() <-chan struct{} {
	registered := make(chan struct{})
	close(registered)
	return registered
}
func (fakeNode) Changed() {}

func newStore(t *testing.T, root, socket string, api kubernetes.Interface, node *corev1.Node) *Store {
	t.Helper()
	s := New(Config{Root: root, NodeName: node.Name, Client: api, Node: fakeNode{node}, Log: slog.New(slog.DiscardHandler)})
	if socket != "" {
		if err := s.Register(t.Context(), driverName, socket, []string{"1.0.0"}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

type fixture struct {
	driver *fakeDriver
	socket string
	root   string
	node   *corev1.Node
	api    *fake.Clientset
	pod    *corev1.Pod
}

func newFixture(t *testing.T, objects ...runtime.Object) *fixture {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount")
	}
	f := &fixture{driver: &fakeDriver{backing: t.TempDir()}, root: t.TempDir(), node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}}
	f.socket = serve(t, f.driver)
	f.api = fake.NewClientset(append(objects, f.node)...)
	f.pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "pod-uid"}}
	return f
}

// disk is a volume of the driver that need not be attached.
func disk(size string) Volume {
	storage := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	return Volume{
		Name: "pv",
		Persistent: &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
			Capacity: storage, PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "disk-1"}},
		}},
		Claim: &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}, Status: corev1.PersistentVolumeClaimStatus{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
		}},
	}
}

func unattached(modes ...storagev1.VolumeLifecycleMode) *storagev1.CSIDriver {
	return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: storagev1.CSIDriverSpec{
		AttachRequired: new(false), PodInfoOnMount: new(true), VolumeLifecycleModes: modes,
	}}
}

func assertSaid(t *testing.T, driver *fakeDriver, want ...string) {
	t.Helper()
	if said := driver.said(); !slices.Equal(said, want) {
		t.Errorf("the driver was asked to %v, not %v", said, want)
	}
}

func assertNothingLeft(t *testing.T, f *fixture) {
	t.Helper()
	for _, pattern := range []string{"pods/*/volumes/kubernetes.io~csi/*", "plugins/kubernetes.io/csi/*/*"} {
		if left, err := filepath.Glob(filepath.Join(f.root, pattern)); err != nil || len(left) > 0 {
			t.Errorf("left are %v, %v", left, err)
		}
	}
}

func TestDriverIsMadeKnown(t *testing.T) {
	f := newFixture(t)
	s := newStore(t, f.root, f.socket, f.api, f.node)
	known, err := f.api.StorageV1().CSINodes().Get(t.Context(), "n", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(known.Spec.Drivers) != 1 || known.Spec.Drivers[0].NodeID != "id-of-n" || *known.Spec.Drivers[0].Allocatable.Count != 7 || !slices.Equal(known.Spec.Drivers[0].TopologyKeys, []string{"topology.example.com/rack"}) {
		t.Errorf("the CSINode has %+v", known.Spec.Drivers)
	}
	node, err := f.api.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if node.Annotations[nodeIDs] != `{"disks.example.com":"id-of-n"}` || node.Labels["topology.example.com/rack"] != "r1" {
		t.Errorf("the node has %v and %v", node.Annotations, node.Labels)
	}
	s.Deregister(t.Context(), driverName)
	if known, err = f.api.StorageV1().CSINodes().Get(t.Context(), "n", metav1.GetOptions{}); err != nil || len(known.Spec.Drivers) != 0 {
		t.Errorf("after it has gone the CSINode has %+v, %v", known.Spec.Drivers, err)
	}
	if node, err = f.api.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{}); err != nil || node.Labels["topology.example.com/rack"] != "r1" || len(node.Annotations) != 0 {
		t.Errorf("after it has gone the node has %v and %v, %v", node.Annotations, node.Labels, err)
	}
	if err := s.Register(t.Context(), driverName, f.socket, []string{"0.3.0"}); err == nil {
		t.Error("a driver of version 0.3 is taken")
	}
}

func TestVolumeOutlivesAgentAndIsUndone(t *testing.T) {
	f := newFixture(t, unattached())
	v := disk("1Gi")
	v.Pod = f.pod
	mounted, err := newStore(t, f.root, f.socket, f.api, f.node).Mount(t.Context(), v)
	if err != nil {
		t.Fatal(err)
	}
	assertSaid(t, f.driver, "stage", "publish")
	if f.driver.contexts["csi.storage.k8s.io/pod.name"] != "p" {
		t.Errorf("the driver was told %v", f.driver.contexts)
	}
	if want := filepath.Join(f.root, "pods", "pod-uid", "volumes", "kubernetes.io~csi", "pv", "mount"); mounted.Path != want || !isMounted(want) {
		t.Errorf("the volume is at %s", mounted.Path)
	}
	// The next agent finds it, mounts nothing twice, and undoes it.
	next := newStore(t, f.root, f.socket, f.api, f.node)
	if _, err := next.Mount(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	assertSaid(t, f.driver)
	if err := next.Unmount(t.Context(), f.pod.UID); err != nil {
		t.Fatal(err)
	}
	assertSaid(t, f.driver, "unpublish", "unstage")
	assertNothingLeft(t, f)
}

func TestWhatWasStagedIsUnstagedThoughPublishingFailed(t *testing.T) {
	f := newFixture(t, unattached())
	v := disk("1Gi")
	v.Pod = f.pod
	f.driver.refuse = "publish"
	s := newStore(t, f.root, f.socket, f.api, f.node)
	if _, err := s.Mount(t.Context(), v); err == nil {
		t.Fatal("a volume that could not be published is mounted")
	}
	if err := newStore(t, f.root, f.socket, f.api, f.node).Unmount(t.Context(), f.pod.UID); err != nil {
		t.Fatal(err)
	}
	assertSaid(t, f.driver, "stage", "publish", "unpublish", "unstage")
	assertNothingLeft(t, f)
}

func TestVolumeStaysStagedForTheOtherPod(t *testing.T) {
	f := newFixture(t, unattached())
	s := newStore(t, f.root, f.socket, f.api, f.node)
	other := f.pod.DeepCopy()
	other.UID = "other"
	for _, pod := range []*corev1.Pod{f.pod, other} {
		v := disk("1Gi")
		v.Pod = pod
		if _, err := s.Mount(t.Context(), v); err != nil {
			t.Fatal(err)
		}
	}
	f.driver.said()
	for _, step := range []struct {
		pod  *corev1.Pod
		want []string
	}{{f.pod, []string{"unpublish"}}, {other, []string{"unpublish", "unstage"}}} {
		if err := s.Unmount(t.Context(), step.pod.UID); err != nil {
			t.Fatal(err)
		}
		assertSaid(t, f.driver, step.want...)
	}
	assertNothingLeft(t, f)
}

func TestVolumeWaitsForItsDriver(t *testing.T) {
	f := newFixture(t, unattached())
	v := disk("1Gi")
	v.Pod = f.pod
	if _, err := newStore(t, f.root, f.socket, f.api, f.node).Mount(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	without := newStore(t, f.root, "", f.api, f.node)
	if err := without.Unmount(t.Context(), f.pod.UID); err == nil {
		t.Fatal("a volume is taken back without its driver")
	}
	if err := without.Register(t.Context(), driverName, f.socket, []string{"1.9.0"}); err != nil {
		t.Fatal(err)
	}
	if err := without.Unmount(t.Context(), f.pod.UID); err != nil {
		t.Fatal(err)
	}
	assertNothingLeft(t, f)
}

func TestAttachedVolumeIsInUse(t *testing.T) {
	name := attachmentName("disk-1", driverName, "n")
	f := newFixture(t, &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: storagev1.VolumeAttachmentStatus{Attached: true}})
	const unique = "kubernetes.io/csi/disks.example.com^disk-1"
	f.node.Status.VolumesInUse = []corev1.UniqueVolumeName{unique}
	s := newStore(t, f.root, f.socket, f.api, f.node)
	v := disk("1Gi")
	v.Pod = f.pod
	if _, err := s.Mount(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	if got := newStore(t, f.root, "", f.api, f.node).InUse(); !slices.Equal(got, []corev1.UniqueVolumeName{unique}) {
		t.Errorf("the next agent has %v in use", got)
	}
	if err := s.Unmount(t.Context(), f.pod.UID); err != nil {
		t.Fatal(err)
	}
	if got := s.InUse(); len(got) != 0 {
		t.Errorf("%v are in use after all", got)
	}
}

func TestGrownVolumeIsExpandedAndTold(t *testing.T) {
	f := newFixture(t, unattached())
	v := disk("2Gi")
	v.Pod = f.pod
	if _, err := f.api.CoreV1().PersistentVolumeClaims("ns").Create(t.Context(), v.Claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s := newStore(t, f.root, f.socket, f.api, f.node)
	if _, err := s.Mount(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	assertSaid(t, f.driver, "stage", "publish", "expand")
	claim, err := f.api.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "c", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if size := claim.Status.Capacity[corev1.ResourceStorage]; size.String() != "2Gi" {
		t.Errorf("the claim has %s", size.String())
	}
	if err := s.Unmount(t.Context(), f.pod.UID); err != nil {
		t.Fatal(err)
	}
}

func TestInlineVolumeNeedsADriverThatHasThem(t *testing.T) {
	inline := Volume{Name: "scratch", Inline: &corev1.CSIVolumeSource{Driver: driverName}}
	f := newFixture(t, unattached())
	inline.Pod = f.pod
	if _, err := newStore(t, f.root, f.socket, f.api, f.node).Mount(t.Context(), inline); err == nil {
		t.Error("a driver of persistent volumes makes an inline one")
	}
	f = newFixture(t, unattached(storagev1.VolumeLifecycleEphemeral))
	s := newStore(t, f.root, f.socket, f.api, f.node)
	if _, err := s.Mount(t.Context(), inline); err != nil {
		t.Fatal(err)
	}
	if f.driver.contexts["csi.storage.k8s.io/ephemeral"] != "true" {
		t.Errorf("the driver was told %v", f.driver.contexts)
	}
	if err := s.Unmount(t.Context(), f.pod.UID); err != nil {
		t.Fatal(err)
	}
	assertSaid(t, f.driver, "publish", "unpublish")
	assertNothingLeft(t, f)
}
