package conformance

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
)

var persistentVolumes = map[string]func(*testing.T){
	"CSI Conformance should run through the lifecycle of a PV and a PVC": volumeLifecycle,
	"CSI Conformance should apply changes to a pv/pvc status":            volumeStatus,
}

// newVolumePair makes a volume and a claim that fit, and waits until they are bound.
func newVolumePair(t *testing.T, namespace, test string) (volume *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) {
	t.Helper()
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	volumes, claims := client.CoreV1().PersistentVolumes(), client.CoreV1().PersistentVolumeClaims(namespace)
	volume = got(volumes.Create(t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "pv-", Labels: testLabels(test)},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: hard("storage", "2Gi"), AccessModes: modes, StorageClassName: test, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/tmp/" + test}},
		},
	}, metav1.CreateOptions{}))(t)
	deleteAfter(t, volume.Name, func(ctx context.Context) error { return volumes.Delete(ctx, volume.Name, metav1.DeleteOptions{}) })
	claim = got(claims.Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "pvc-", Labels: testLabels(test)},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &test, AccessModes: modes, Resources: corev1.VolumeResourceRequirements{Requests: hard("storage", "1Gi")},
		},
	}, metav1.CreateOptions{}))(t)
	eventually(t, "the claim to be bound", func(ctx context.Context) (bool, error) {
		var err error
		claim, err = claims.Get(ctx, claim.Name, metav1.GetOptions{})
		return err == nil && claim.Status.Phase == corev1.ClaimBound && claim.Spec.VolumeName == volume.Name, err
	})
	return volume, claim
}

func volumeLifecycle(t *testing.T) {
	namespace, test := newNamespace(t), unique("volume")
	volumes, claims := client.CoreV1().PersistentVolumes(), client.CoreV1().PersistentVolumeClaims(namespace)
	volume, claim := newVolumePair(t, namespace, test)
	if list := got(volumes.List(t.Context(), labelled(test)))(t); len(list.Items) != 1 {
		t.Errorf("listing gives %d volumes", len(list.Items))
	}
	if list := got(client.CoreV1().PersistentVolumeClaims("").List(t.Context(), labelled(test)))(t); len(list.Items) != 1 {
		t.Errorf("listing gives %d claims", len(list.Items))
	}
	if patched := got(volumes.Patch(t.Context(), volume.Name, types.StrategicMergePatchType, labelPatch("patched", "yes"), metav1.PatchOptions{}))(t); patched.Labels["patched"] != "yes" {
		t.Errorf("the volume's labels are %v", patched.Labels)
	}
	if patched := got(claims.Patch(t.Context(), claim.Name, types.StrategicMergePatchType, labelPatch("patched", "yes"), metav1.PatchOptions{}))(t); patched.Labels["patched"] != "yes" {
		t.Errorf("the claim's labels are %v", patched.Labels)
	}
	must(t, claims.Delete(t.Context(), claim.Name, metav1.DeleteOptions{}))
	eventually(t, "the claim to be gone", func(ctx context.Context) (bool, error) {
		_, err := claims.Get(ctx, claim.Name, metav1.GetOptions{})
		return gone(err), nil
	})
	must(t, volumes.Delete(t.Context(), volume.Name, metav1.DeleteOptions{}))
	eventually(t, "the volume to be gone", func(ctx context.Context) (bool, error) {
		_, err := volumes.Get(ctx, volume.Name, metav1.GetOptions{})
		return gone(err), nil
	})
	newVolumePair(t, namespace, test)
	must(t, claims.DeleteCollection(t.Context(), metav1.DeleteOptions{}, labelled(test)))
	must(t, volumes.DeleteCollection(t.Context(), metav1.DeleteOptions{}, labelled(test)))
	eventually(t, "both to be gone", func(ctx context.Context) (bool, error) {
		left, err := volumes.List(ctx, labelled(test))
		return err == nil && len(left.Items) == 0, err
	})
}

func volumeStatus(t *testing.T) {
	namespace, test := newNamespace(t), unique("volume")
	volumes, claims := client.CoreV1().PersistentVolumes(), client.CoreV1().PersistentVolumeClaims(namespace)
	volume, claim := newVolumePair(t, namespace, test)
	patch := []byte(`{"metadata":{"annotations":{"patched":"yes"}},"status":{"conditions":[{"type":"StatusPatched","status":"True","reason":"E2E","message":"Set by a test"}]}}`)
	patched := got(claims.Patch(t.Context(), claim.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"))(t)
	if len(patched.Status.Conditions) != 1 || patched.Status.Conditions[0].Type != "StatusPatched" {
		t.Errorf("the claim's conditions are %+v", patched.Status.Conditions)
	}
	must(t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		read, err := claims.Get(t.Context(), claim.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		read.Status.Conditions = append(read.Status.Conditions, corev1.PersistentVolumeClaimCondition{Type: "StatusUpdated", Status: corev1.ConditionTrue})
		read, err = claims.UpdateStatus(t.Context(), read, metav1.UpdateOptions{})
		if err == nil && len(read.Status.Conditions) != 2 {
			t.Errorf("the claim's conditions after the update are %+v", read.Status.Conditions)
		}
		return err
	}))
	changed := got(volumes.Patch(t.Context(), volume.Name, types.MergePatchType, []byte(`{"status":{"message":"StatusPatched","reason":"E2E"}}`), metav1.PatchOptions{}, "status"))(t)
	if changed.Status.Message != "StatusPatched" {
		t.Errorf("the volume's status is %+v", changed.Status)
	}
}
