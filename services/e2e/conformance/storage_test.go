package conformance

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var inlineVolumes = map[string]func(*testing.T){
	"should run through the lifecycle of a CSIDriver": csiDriverLifecycle,
	"should support CSIVolumeSource in Pod API":       inlineVolumeInPod,
}

var csiNodes = map[string]func(*testing.T){
	"CSI Conformance should run through the lifecycle of a csinode": csiNodeLifecycle,
}

var storedConfigMaps = map[string]func(*testing.T){
	"should be immutable if `immutable` field is set": immutableConfigMap,
}

var storedSecrets = map[string]func(*testing.T){
	"should be immutable if `immutable` field is set": immutableSecret,
}

var storageClasses = map[string]func(*testing.T){
	"CSI Conformance should run through the lifecycle of a StorageClass": storageClassLifecycle,
}

var volumeAttachments = map[string]func(*testing.T){
	"should run through the lifecycle of a VolumeAttachment": attachmentLifecycle,
	"should apply changes to a volumeattachment status":      attachmentStatus,
}

func csiDriverLifecycle(t *testing.T) {
	test := unique("inline")
	api := client.StorageV1().CSIDrivers()
	made := got(api.Create(t.Context(), &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: test + ".k8s.io", Labels: testLabels(test)},
		Spec:       storagev1.CSIDriverSpec{VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral}},
	}, metav1.CreateOptions{}))(t)
	patched := got(api.Patch(t.Context(), made.Name, types.StrategicMergePatchType, labelPatch("patched", "yes"), metav1.PatchOptions{}))(t)
	if patched.Labels["patched"] != "yes" {
		t.Errorf("labels are %v", patched.Labels)
	}
	patched.Labels["updated"] = "yes"
	got(api.Update(t.Context(), patched, metav1.UpdateOptions{}))(t)
	read := got(api.Get(t.Context(), made.Name, metav1.GetOptions{}))(t)
	if read.Labels["updated"] != "yes" {
		t.Errorf("labels are %v", read.Labels)
	}
	if list := got(api.List(t.Context(), labelled(test)))(t); len(list.Items) != 1 {
		t.Errorf("listing gives %d", len(list.Items))
	}
	must(t, api.DeleteCollection(t.Context(), metav1.DeleteOptions{}, labelled(test)))
	if _, err := api.Get(t.Context(), made.Name, metav1.GetOptions{}); !gone(err) {
		t.Errorf("reading what was deleted gives %v", err)
	}
}

func inlineVolumeInPod(t *testing.T) {
	namespace, test := newNamespace(t), unique("inline")
	api := client.CoreV1().Pods(namespace)
	made := idle("inline", nil, nil)
	made.Labels = testLabels(test)
	made.Spec.Volumes = []corev1.Volume{{Name: "volume", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "e2e.example.com"}}}}
	made.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "volume", MountPath: "/mnt/test"}}
	got(api.Create(t.Context(), made, metav1.CreateOptions{}))(t)
	read := got(api.Get(t.Context(), "inline", metav1.GetOptions{}))(t)
	if read.Spec.Volumes[0].CSI == nil || read.Spec.Volumes[0].CSI.Driver != "e2e.example.com" {
		t.Errorf("the volume reads %+v", read.Spec.Volumes[0])
	}
	if list := got(api.List(t.Context(), labelled(test)))(t); len(list.Items) != 1 {
		t.Errorf("listing gives %d", len(list.Items))
	}
	got(api.Patch(t.Context(), "inline", types.StrategicMergePatchType, labelPatch("patched", "yes"), metav1.PatchOptions{}))(t)
	must(t, api.Delete(t.Context(), "inline", metav1.DeleteOptions{}))
}

func csiNodeLifecycle(t *testing.T) {
	test, name := unique("csi"), unique("fake")
	api := client.StorageV1().CSINodes()
	made := got(api.Create(t.Context(), &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: testLabels(test)},
		Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "e2e.example.com", NodeID: "e2e-node"}}},
	}, metav1.CreateOptions{}))(t)
	patched := got(api.Patch(t.Context(), made.Name, types.StrategicMergePatchType, labelPatch("patched", "yes"), metav1.PatchOptions{}))(t)
	patched.Labels["updated"] = "yes"
	got(api.Update(t.Context(), patched, metav1.UpdateOptions{}))(t)
	if list := got(api.List(t.Context(), metav1.ListOptions{LabelSelector: "updated=yes,test=" + test}))(t); len(list.Items) != 1 {
		t.Errorf("listing gives %d", len(list.Items))
	}
	must(t, api.DeleteCollection(t.Context(), metav1.DeleteOptions{}, labelled(test)))
	if _, err := api.Get(t.Context(), name, metav1.GetOptions{}); !gone(err) {
		t.Errorf("reading what was deleted gives %v", err)
	}
}

func immutableConfigMap(t *testing.T) {
	api := client.CoreV1().ConfigMaps(newNamespace(t))
	object := configMap("immutable", "x")
	object.Data = map[string]string{"data-1": "value-1"}
	object = got(api.Create(t.Context(), object, metav1.CreateOptions{}))(t)
	object.Data["data-1"] = "value-2"
	object = got(api.Update(t.Context(), object, metav1.UpdateOptions{}))(t)
	object.Immutable = new(true)
	object = got(api.Update(t.Context(), object, metav1.UpdateOptions{}))(t)
	changed := object.DeepCopy()
	changed.Data["data-1"] = "value-3"
	_, err := api.Update(t.Context(), changed, metav1.UpdateOptions{})
	assertInvalid(t, err)
	unlocked := object.DeepCopy()
	unlocked.Immutable = nil
	_, err = api.Update(t.Context(), unlocked, metav1.UpdateOptions{})
	assertInvalid(t, err)
	object.Labels["label1"] = "label1"
	got(api.Update(t.Context(), object, metav1.UpdateOptions{}))(t)
	must(t, api.Delete(t.Context(), "immutable", metav1.DeleteOptions{}))
}

func immutableSecret(t *testing.T) {
	api := client.CoreV1().Secrets(newNamespace(t))
	object := got(api.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "immutable"}, Data: map[string][]byte{"data-1": []byte("value-1")}}, metav1.CreateOptions{}))(t)
	object.Data["data-1"] = []byte("value-2")
	object = got(api.Update(t.Context(), object, metav1.UpdateOptions{}))(t)
	object.Immutable = new(true)
	object = got(api.Update(t.Context(), object, metav1.UpdateOptions{}))(t)
	changed := object.DeepCopy()
	changed.Data["data-1"] = []byte("value-3")
	_, err := api.Update(t.Context(), changed, metav1.UpdateOptions{})
	assertInvalid(t, err)
	unlocked := object.DeepCopy()
	unlocked.Immutable = nil
	_, err = api.Update(t.Context(), unlocked, metav1.UpdateOptions{})
	assertInvalid(t, err)
	object.Labels = map[string]string{"label1": "label1"}
	got(api.Update(t.Context(), object, metav1.UpdateOptions{}))(t)
	must(t, api.Delete(t.Context(), "immutable", metav1.DeleteOptions{}))
}

func storageClassLifecycle(t *testing.T) {
	test := unique("class")
	api := client.StorageV1().StorageClasses()
	reclaim := corev1.PersistentVolumeReclaimDelete
	made := got(api.Create(t.Context(), &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-", Labels: testLabels(test)}, Provisioner: "e2e-fake-provisioner", ReclaimPolicy: &reclaim}, metav1.CreateOptions{}))(t)
	got(api.Get(t.Context(), made.Name, metav1.GetOptions{}))(t)
	patched := got(api.Patch(t.Context(), made.Name, types.StrategicMergePatchType, labelPatch("patched", "yes"), metav1.PatchOptions{}))(t)
	patched.Labels["updated"] = "yes"
	got(api.Update(t.Context(), patched, metav1.UpdateOptions{}))(t)
	if list := got(api.List(t.Context(), metav1.ListOptions{LabelSelector: "updated=yes,test=" + test}))(t); len(list.Items) != 1 {
		t.Errorf("listing gives %d", len(list.Items))
	}
	must(t, api.Delete(t.Context(), made.Name, metav1.DeleteOptions{}))
	got(api.Create(t.Context(), &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-", Labels: testLabels(test)}, Provisioner: "e2e-fake-provisioner"}, metav1.CreateOptions{}))(t)
	must(t, api.DeleteCollection(t.Context(), metav1.DeleteOptions{}, labelled(test)))
	if list := got(api.List(t.Context(), labelled(test)))(t); len(list.Items) != 0 {
		t.Errorf("%d classes are left", len(list.Items))
	}
}

func newAttachment(t *testing.T, test string) *storagev1.VolumeAttachment {
	t.Helper()
	api := client.StorageV1().VolumeAttachments()
	made := got(api.Create(t.Context(), &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "va-e2e-", Labels: testLabels(test)},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: "e2e-test.example.com", NodeName: "no-such-node", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new("no-such-volume")}},
	}, metav1.CreateOptions{}))(t)
	deleteAfter(t, made.Name, func(ctx context.Context) error { return api.Delete(ctx, made.Name, metav1.DeleteOptions{}) })
	return made
}

func attachmentLifecycle(t *testing.T) {
	test := unique("attachment")
	api := client.StorageV1().VolumeAttachments()
	made := newAttachment(t, test)
	got(api.Get(t.Context(), made.Name, metav1.GetOptions{}))(t)
	patched := got(api.Patch(t.Context(), made.Name, types.StrategicMergePatchType, labelPatch("patched", "yes"), metav1.PatchOptions{}))(t)
	patched.Labels["updated"] = "yes"
	got(api.Update(t.Context(), patched, metav1.UpdateOptions{}))(t)
	if list := got(api.List(t.Context(), metav1.ListOptions{LabelSelector: "updated=yes,test=" + test}))(t); len(list.Items) != 1 {
		t.Errorf("listing gives %d", len(list.Items))
	}
	must(t, api.Delete(t.Context(), made.Name, metav1.DeleteOptions{}))
	newAttachment(t, test)
	must(t, api.DeleteCollection(t.Context(), metav1.DeleteOptions{}, labelled(test)))
	if list := got(api.List(t.Context(), labelled(test)))(t); len(list.Items) != 0 {
		t.Errorf("%d attachments are left", len(list.Items))
	}
}

func attachmentStatus(t *testing.T) {
	api := client.StorageV1().VolumeAttachments()
	made := newAttachment(t, unique("attachment"))
	patched := got(api.Patch(t.Context(), made.Name, types.MergePatchType, []byte(`{"metadata":{"annotations":{"patched":"yes"}},"status":{"attached":false}}`), metav1.PatchOptions{}, "status"))(t)
	if patched.Status.Attached {
		t.Errorf("status after the patch is %+v", patched.Status)
	}
	patched.Status.Attached = true
	updated := got(api.UpdateStatus(t.Context(), patched, metav1.UpdateOptions{}))(t)
	if !updated.Status.Attached {
		t.Errorf("status after the update is %+v", updated.Status)
	}
}
