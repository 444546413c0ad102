package attachdetach

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/sampan-io/sampan/services/controller-manager/internal/fakeapi"
)

const unique = corev1.UniqueVolumeName("kubernetes.io/csi/disks.example.com^disk")

func node(name string, inUse ...corev1.UniqueVolumeName) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
		VolumesInUse: inUse, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	}}
}

func podOn(name, node string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name}, Spec: corev1.PodSpec{NodeName: node, Volumes: []corev1.Volume{{
		Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}},
	}}}}
}

// disk is a bound claim and its volume, which one node may have at a time.
func disk() []runtime.Object {
	return []runtime.Object{
		&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "c", UID: "c"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv"},
			Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
		},
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, ClaimRef: &corev1.ObjectReference{Namespace: "n", Name: "c", UID: "c"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "disks.example.com", VolumeHandle: "disk"}},
		}},
	}
}

func run(t *testing.T, objects ...runtime.Object) *fakeapi.API {
	t.Helper()
	api := fakeapi.New(objects...)
	env := api.Env(t)
	runner, err := New(env)
	if err != nil {
		t.Fatal(err)
	}
	fakeapi.Run(t, env, runner)
	return api
}

func await(t *testing.T, what string, condition func(ctx context.Context) bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, 20*time.Second, true, func(ctx context.Context) (bool, error) { return condition(ctx), nil })
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// attachedTo is the attachment to a node, nil for none.
func attachedTo(ctx context.Context, t *testing.T, api *fakeapi.API, node string) *storagev1.VolumeAttachment {
	t.Helper()
	list, err := api.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		if list.Items[i].Spec.NodeName == node {
			return &list.Items[i]
		}
	}
	return nil
}

func TestVolumeIsAttachedAndDetachedWhenTheNodeLetsGo(t *testing.T) {
	api := run(t, append(disk(), node("one"), podOn("p", "one"))...)
	await(t, "the volume is to be attached", func(ctx context.Context) bool {
		a := attachedTo(ctx, t, api, "one")
		return a != nil && a.Spec.Attacher == "disks.example.com" && *a.Spec.Source.PersistentVolumeName == "pv"
	})
	a := attachedTo(t.Context(), t, api, "one")
	a.Status.Attached = true
	api.Write(t, storagev1.SchemeGroupVersion.WithResource("volumeattachments"), a)
	await(t, "the node's status tells", func(ctx context.Context) bool {
		n, err := api.CoreV1().Nodes().Get(ctx, "one", metav1.GetOptions{})
		return err == nil && len(n.Status.VolumesAttached) == 1 && n.Status.VolumesAttached[0].Name == unique
	})
	using, err := api.CoreV1().Nodes().Get(t.Context(), "one", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	using.Status.VolumesInUse = []corev1.UniqueVolumeName{unique}
	api.Write(t, corev1.SchemeGroupVersion.WithResource("nodes"), using)
	if err := api.CoreV1().Pods("n").Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	// Another node wants it, and must wait.
	if _, err := api.CoreV1().Nodes().Create(t.Context(), node("two"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.CoreV1().Pods("n").Create(t.Context(), podOn("q", "two"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	free := using.DeepCopy()
	free.Status.VolumesInUse = nil
	if attachedTo(t.Context(), t, api, "one") == nil || attachedTo(t.Context(), t, api, "two") != nil {
		t.Fatal("the volume is taken from a node that uses it")
	}
	api.Write(t, corev1.SchemeGroupVersion.WithResource("nodes"), free)
	await(t, "the other node gets it", func(ctx context.Context) bool {
		return attachedTo(ctx, t, api, "one") == nil && attachedTo(ctx, t, api, "two") != nil
	})
}

func TestVolumeIsTakenFromNodeOutOfService(t *testing.T) {
	lost := node("one", unique)
	lost.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
	volume := "pv"
	api := run(t, append(disk(), lost, &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: storagev1.VolumeAttachmentSpec{
		Attacher: "disks.example.com", NodeName: "one", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume},
	}})...)
	await(t, "the volume is detached", func(ctx context.Context) bool { return attachedTo(ctx, t, api, "one") == nil })
}

func TestDriverThatAttachesNothingIsLeftAlone(t *testing.T) {
	shared := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "shared.example.com"}, Spec: storagev1.CSIDriverSpec{AttachRequired: new(false)}}
	objects := disk()
	volume, ok := objects[1].(*corev1.PersistentVolume)
	if !ok {
		t.Fatal("no volume")
	}
	volume.Spec.CSI.Driver = shared.Name
	c := &Controller{}
	api := fakeapi.New(append(objects, shared)...)
	env := api.Env(t)
	c.drivers = env.Informers.Storage().V1().CSIDrivers().Lister()
	if err := env.Informers.Storage().V1().CSIDrivers().Informer().GetStore().Add(shared); err != nil {
		t.Fatal(err)
	}
	if attachable, err := c.attachable(volume); err != nil || attachable {
		t.Errorf("its volumes are attached: %v, %v", attachable, err)
	}
	volume.Spec.CSI.Driver = "unknown.example.com"
	if attachable, err := c.attachable(volume); err != nil || !attachable {
		t.Errorf("volumes of a driver that nothing is known of are not attached: %v, %v", attachable, err)
	}
}
