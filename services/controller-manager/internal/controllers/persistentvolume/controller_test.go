package persistentvolume

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/sampan-io/sampan/services/controller-manager/internal/fakeapi"
)

func storage(size string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
}

func newVolume(name, size, class string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: storage(size), StorageClassName: class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
	}
}

func newClaim(name, size, class string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: types.UID(name)},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: storage(size)},
		},
	}
}

func TestClaimGetsTheSmallestVolumeThatFits(t *testing.T) {
	block := newVolume("block", "1Gi", "")
	block.Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
	taken := newVolume("taken", "1Gi", "")
	taken.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "n", Name: "other"}
	going := newVolume("going", "1Gi", "")
	going.DeletionTimestamp = new(metav1.Now())
	meant := newVolume("meant", "100Gi", "")
	meant.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "n", Name: "meant"}
	volumes := []*corev1.PersistentVolume{
		newVolume("large", "10Gi", ""), newVolume("right", "2Gi", ""), newVolume("small", "500Mi", ""), newVolume("fast", "1Gi", "fast"), block, taken, going, meant,
	}
	selecting := newClaim("selecting", "1Gi", "")
	selecting.Spec.Selector = metav1.SetAsLabelSelector(map[string]string{"name": "large"})
	shared := newClaim("shared", "1Gi", "")
	shared.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	for want, claim := range map[string]*corev1.PersistentVolumeClaim{
		"right": newClaim("any", "1Gi", ""), "large": selecting, "fast": newClaim("f", "1Gi", "fast"), "meant": newClaim("meant", "1Gi", ""), "": shared,
	} {
		got := ""
		if volume := choose(claim, volumes); volume != nil {
			got = volume.Name
		}
		if got != want {
			t.Errorf("claim %s gets %q, not %q", claim.Name, got, want)
		}
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

func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, 10*time.Second, true, func(context.Context) (bool, error) { return condition(), nil }); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func claimOf(t *testing.T, api *fakeapi.API, name string) *corev1.PersistentVolumeClaim {
	t.Helper()
	claim, err := api.CoreV1().PersistentVolumeClaims("n").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return claim
}

func volumeOf(t *testing.T, api *fakeapi.API, name string) *corev1.PersistentVolume {
	t.Helper()
	volume, err := api.CoreV1().PersistentVolumes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return volume
}

func TestVolumeAndClaimAreBoundAndReleased(t *testing.T) {
	volume := newVolume("v", "2Gi", "")
	volume.Status.Phase = corev1.VolumePending
	api := run(t, volume, newClaim("c", "1Gi", ""), newClaim("late", "1Gi", ""))
	bound := func(name string) bool {
		claim := claimOf(t, api, name)
		return claim.Status.Phase == corev1.ClaimBound && claim.Spec.VolumeName == "v" && claim.Annotations[bindCompleted] == "yes"
	}
	await(t, "one claim is bound", func() bool { return bound("c") || bound("late") })
	if bound("c") && bound("late") {
		t.Fatal("two claims have one volume")
	}
	winner, loser := "c", "late"
	if bound("late") {
		winner, loser = loser, winner
	}
	await(t, "the other claim waits", func() bool { return claimOf(t, api, loser).Status.Phase == corev1.ClaimPending })
	if have := volumeOf(t, api, "v"); have.Status.Phase != corev1.VolumeBound || have.Spec.ClaimRef.UID != types.UID(winner) {
		t.Errorf("the volume is %s for %+v", have.Status.Phase, have.Spec.ClaimRef)
	}
	if err := api.CoreV1().PersistentVolumeClaims("n").Delete(t.Context(), winner, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "the volume is released", func() bool { return volumeOf(t, api, "v").Status.Phase == corev1.VolumeReleased })
	if phase := claimOf(t, api, loser).Status.Phase; phase != corev1.ClaimPending {
		t.Errorf("a released volume went to the other claim, which is %s", phase)
	}
}

func TestClaimOfALateClassWaitsForItsPod(t *testing.T) {
	late := storagev1.VolumeBindingWaitForFirstConsumer
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Provisioner: "csi.example.com", VolumeBindingMode: &late}
	api := run(t, class, newVolume("v", "1Gi", "late"), newClaim("c", "1Gi", "late"))
	await(t, "the claim is pending", func() bool { return claimOf(t, api, "c").Status.Phase == corev1.ClaimPending })
	chosen := volumeOf(t, api, "v").DeepCopy()
	chosen.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "n", Name: "c", UID: "c"} // as the scheduler does
	if _, err := api.CoreV1().PersistentVolumes().Update(t.Context(), chosen, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "the claim is bound", func() bool { return claimOf(t, api, "c").Status.Phase == corev1.ClaimBound })
}

func TestProvisionerIsNamed(t *testing.T) {
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "made"}, Provisioner: "csi.example.com"}
	api := run(t, class, newClaim("c", "1Gi", "made"))
	await(t, "the claim names the provisioner", func() bool { return claimOf(t, api, "c").Annotations[storageProvisioner] == "csi.example.com" })
}

func TestClaimWithoutItsVolumeIsLost(t *testing.T) {
	claim := newClaim("c", "1Gi", "")
	claim.Spec.VolumeName, claim.Annotations = "gone", map[string]string{bindCompleted: "yes"}
	api := run(t, claim)
	await(t, "the claim is lost", func() bool { return claimOf(t, api, "c").Status.Phase == corev1.ClaimLost })
}
