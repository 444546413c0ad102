package e2e

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// csiDriver keeps volumes as directories of the machine, which both nodes share. It
// serves CSI's node service on each node, and does what the external provisioner,
// attacher and resizer do.
type csiDriver struct {
	name string
	dir  string // of the volumes

	mu       sync.Mutex
	expanded map[string]int64 // bytes, by volume
	hung     chan struct{}    // publishing hangs until it is closed; nil never hangs
}

// hang lets the driver answer no publishing until the answer is called.
func (d *csiDriver) hang() (release func()) {
	hung := make(chan struct{})
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hung = hung
	return sync.OnceFunc(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.hung = nil
		close(hung)
	})
}

// answers waits while the driver hangs.
func (d *csiDriver) answers(ctx context.Context) error {
	d.mu.Lock()
	hung := d.hung
	d.mu.Unlock()
	if hung == nil {
		return nil
	}
	select {
	case <-hung:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// csiNode is the driver on one node.
type csiNode struct {
	csipb.UnimplementedNodeServer
	registerapi.UnimplementedRegistrationServer
	*csiDriver
	node, socket string
}

// startDriver runs a driver on both nodes until the test's end.
func startDriver(t *testing.T, name string) *csiDriver {
	t.Helper()
	d := &csiDriver{name: name, dir: t.TempDir(), expanded: map[string]int64{}}
	object := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSIDriverSpec{
		PodInfoOnMount: new(true), VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral},
	}}
	if _, err := cluster.Client.StorageV1().CSIDrivers().Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	late, grows := storagev1.VolumeBindingWaitForFirstConsumer, true
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: name, VolumeBindingMode: &late, AllowVolumeExpansion: &grows}
	if _, err := cluster.Client.StorageV1().StorageClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{"node-1", "node-2"} {
		d.serve(t, node)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.control(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		_ = cluster.Client.StorageV1().StorageClasses().Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{})
		_ = cluster.Client.StorageV1().CSIDrivers().Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{})
	})
	return d
}

func (d *csiDriver) serve(t *testing.T, node string) {
	t.Helper()
	root := filepath.Join(cluster.Dir, "nodes", node)
	n := &csiNode{csiDriver: d, node: node, socket: filepath.Join(root, "plugins", d.name, "csi.sock")}
	server := grpc.NewServer()
	csipb.RegisterNodeServer(server, n)
	registerapi.RegisterRegistrationServer(server, n)
	var serving sync.WaitGroup
	for _, socket := range []string{n.socket, filepath.Join(root, "plugins_registry", d.name+"-reg.sock")} {
		if err := os.MkdirAll(filepath.Dir(socket), 0o750); err != nil {
			t.Fatal(err)
		}
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		serving.Go(func() { _ = server.Serve(listener) })
	}
	t.Cleanup(func() {
		server.Stop()
		serving.Wait()
	})
}

func (n *csiNode) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: registerapi.CSIPlugin, Name: n.name, Endpoint: n.socket, SupportedVersions: []string{"1.0.0"}}, nil
}

func (*csiNode) NotifyRegistrationStatus(context.Context, *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	return &registerapi.RegistrationStatusResponse{}, nil
}

func (*csiNode) NodeGetCapabilities(context.Context, *csipb.NodeGetCapabilitiesRequest) (*csipb.NodeGetCapabilitiesResponse, error) {
	answer := &csipb.NodeGetCapabilitiesResponse{}
	for _, what := range []csipb.NodeServiceCapability_RPC_Type{csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csipb.NodeServiceCapability_RPC_EXPAND_VOLUME} {
		answer.Capabilities = append(answer.Capabilities, &csipb.NodeServiceCapability{Type: &csipb.NodeServiceCapability_Rpc{Rpc: &csipb.NodeServiceCapability_RPC{Type: what}}})
	}
	return answer, nil
}

func (n *csiNode) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	return &csipb.NodeGetInfoResponse{NodeId: n.name + "-" + n.node, MaxVolumesPerNode: 10}, nil
}

// bind mounts a volume's directory, once.
func bind(from, to string) error {
	if err := errors.Join(os.MkdirAll(from, 0o777), os.MkdirAll(to, 0o750)); err != nil {
		return err
	}
	if len(mountsAt(to)) > 0 {
		return nil
	}
	return unix.Mount(from, to, "", unix.MS_BIND, "")
}

func (n *csiNode) NodeStageVolume(_ context.Context, r *csipb.NodeStageVolumeRequest) (*csipb.NodeStageVolumeResponse, error) {
	if r.GetPublishContext()["attached-to"] != n.node {
		return nil, errors.New("the volume is not attached to this node")
	}
	return &csipb.NodeStageVolumeResponse{}, bind(filepath.Join(n.dir, r.GetVolumeId()), r.GetStagingTargetPath())
}

func (n *csiNode) NodeUnstageVolume(_ context.Context, r *csipb.NodeUnstageVolumeRequest) (*csipb.NodeUnstageVolumeResponse, error) {
	return &csipb.NodeUnstageVolumeResponse{}, unbind(r.GetStagingTargetPath())
}

func (n *csiNode) NodePublishVolume(ctx context.Context, r *csipb.NodePublishVolumeRequest) (*csipb.NodePublishVolumeResponse, error) {
	if err := n.answers(ctx); err != nil {
		return nil, err
	}
	from := r.GetStagingTargetPath()
	if r.GetVolumeContext()["csi.storage.k8s.io/ephemeral"] == "true" {
		from = filepath.Join(n.dir, r.GetVolumeId())
	}
	return &csipb.NodePublishVolumeResponse{}, bind(from, r.GetTargetPath())
}

func (n *csiNode) NodeUnpublishVolume(_ context.Context, r *csipb.NodeUnpublishVolumeRequest) (*csipb.NodeUnpublishVolumeResponse, error) {
	return &csipb.NodeUnpublishVolumeResponse{}, unbind(r.GetTargetPath())
}

func unbind(path string) error {
	for range mountsAt(path) {
		if err := unix.Unmount(path, 0); err != nil {
			return err
		}
	}
	return os.RemoveAll(path)
}

func (n *csiNode) NodeExpandVolume(_ context.Context, r *csipb.NodeExpandVolumeRequest) (*csipb.NodeExpandVolumeResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.expanded[r.GetVolumeId()] = r.GetCapacityRange().GetRequiredBytes()
	return &csipb.NodeExpandVolumeResponse{CapacityBytes: r.GetCapacityRange().GetRequiredBytes()}, nil
}

func (d *csiDriver) expandedTo(volume string) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.expanded[volume]
}

// control does the work of the sidecars until ctx ends. What fails is done at the
// next look.
func (d *csiDriver) control(ctx context.Context) {
	const every = 100 * time.Millisecond
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		d.provision(ctx)
		d.attach(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// provision makes volumes for claims, deletes those that are released, and expands
// those whose claims ask for more.
func (d *csiDriver) provision(ctx context.Context) {
	claims, err := cluster.Client.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	volumes, err := cluster.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	api := cluster.Client.CoreV1().PersistentVolumes()
	for i := range claims.Items {
		claim := &claims.Items[i]
		if claim.Annotations["volume.kubernetes.io/storage-provisioner"] != d.name {
			continue
		}
		if claim.Spec.VolumeName == "" && claim.Annotations["volume.kubernetes.io/selected-node"] != "" {
			_, _ = api.Create(ctx, d.volumeFor(claim), metav1.CreateOptions{})
		}
	}
	for i := range volumes.Items {
		volume := &volumes.Items[i]
		if volume.Spec.CSI == nil || volume.Spec.CSI.Driver != d.name {
			continue
		}
		if volume.Status.Phase == corev1.VolumeReleased {
			_ = api.Delete(ctx, volume.Name, metav1.DeleteOptions{})
			continue
		}
		at := slices.IndexFunc(claims.Items, func(c corev1.PersistentVolumeClaim) bool { return c.UID == volume.Spec.ClaimRef.UID })
		if at >= 0 && claims.Items[at].Status.Phase == corev1.ClaimBound && claims.Items[at].Spec.Resources.Requests.Storage().Cmp(*volume.Spec.Capacity.Storage()) > 0 {
			volume.Spec.Capacity = claims.Items[at].Spec.Resources.Requests
			_, _ = api.Update(ctx, volume, metav1.UpdateOptions{})
		}
	}
}

func (d *csiDriver) volumeFor(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	name := "pvc-" + string(claim.UID)
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": d.name}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: claim.Spec.Resources.Requests, AccessModes: claim.Spec.AccessModes, StorageClassName: *claim.Spec.StorageClassName,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			ClaimRef:                      &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
			PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: d.name, VolumeHandle: name}},
		},
	}
}

// attach has every volume that is to be attached attached.
func (d *csiDriver) attach(ctx context.Context) {
	list, err := cluster.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	for i := range list.Items {
		if a := &list.Items[i]; a.Spec.Attacher == d.name && !a.Status.Attached {
			a.Status = storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"attached-to": a.Spec.NodeName}}
			_, _ = cluster.Client.StorageV1().VolumeAttachments().UpdateStatus(ctx, a, metav1.UpdateOptions{})
		}
	}
}
