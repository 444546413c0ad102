package conformance

import (
	"context"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

var configMaps = map[string]func(*testing.T){
	"should fail to create ConfigMap with empty key": func(t *testing.T) {
		made := configMap("empty-key", "x")
		made.Data = map[string]string{"": "value-1"}
		_, err := client.CoreV1().ConfigMaps(newNamespace(t)).Create(t.Context(), made, metav1.CreateOptions{})
		assertInvalid(t, err)
	},
	"should run through a ConfigMap lifecycle": configMapLifecycle,
}

var leases = map[string]func(*testing.T){
	"lease API should be available": leaseLifecycle,
}

var nodes = map[string]func(*testing.T){
	"should run through the lifecycle of a node": nodeLifecycle,
}

var podTemplates = map[string]func(*testing.T){
	"should run the lifecycle of PodTemplates":    templateLifecycle,
	"should replace a pod template":               templateReplaced,
	"should delete a collection of pod templates": templateCollection,
}

var qosClasses = map[string]func(*testing.T){
	"should be set on Pods with matching resource requests and limits for memory and cpu": func(t *testing.T) {
		same := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("100Mi")}
		made := got(client.CoreV1().Pods(newNamespace(t)).Create(t.Context(), idle("guaranteed", same, same), metav1.CreateOptions{}))(t)
		if made.Status.QOSClass != corev1.PodQOSGuaranteed {
			t.Errorf("the class is %s", made.Status.QOSClass)
		}
	},
}

var secrets = map[string]func(*testing.T){
	"should fail to create secret due to empty secret key": func(t *testing.T) {
		_, err := client.CoreV1().Secrets(newNamespace(t)).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "empty"}, Data: map[string][]byte{"": []byte("x")}}, metav1.CreateOptions{})
		assertInvalid(t, err)
	},
	"should patch a secret": secretPatched,
}

var sysctls = map[string]func(*testing.T){
	"should reject invalid sysctls [MinimumKubeletVersion:1.21]": func(t *testing.T) {
		made := pod("sysctls", "true")
		made.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{
			{Name: "foo-", Value: "bar"}, {Name: "kernel.shmmax", Value: "100000000"}, {Name: "safe-and-unsafe", Value: "100000000"}, {Name: "bar..", Value: "42"},
		}}
		_, err := client.CoreV1().Pods(newNamespace(t)).Create(t.Context(), made, metav1.CreateOptions{})
		assertInvalid(t, err)
		if err != nil {
			contains(t, err.Error(), `Invalid value: "foo-"`, `Invalid value: "bar.."`)
		}
	},
}

func assertInvalid(t *testing.T, err error) {
	t.Helper()
	if !apierrors.IsInvalid(err) {
		t.Errorf("wanted it invalid: %v", err)
	}
}

func configMapLifecycle(t *testing.T) {
	namespace, test := newNamespace(t), unique("config")
	api := client.CoreV1().ConfigMaps(namespace)
	w := watchConfigMaps(t, namespace, labelled(test))
	got(api.Create(t.Context(), configMap("test-configmap", test), metav1.CreateOptions{}))(t)
	awaitEvent(t, w, watch.Added, nil)
	got(api.Patch(t.Context(), "test-configmap", types.StrategicMergePatchType, []byte(`{"metadata":{"labels":{"test-configmap":"patched"}},"data":{"valueName":"value1"}}`), metav1.PatchOptions{}))(t)
	awaitEvent(t, w, watch.Modified, nil)
	read := got(api.Get(t.Context(), "test-configmap", metav1.GetOptions{}))(t)
	if read.Data["valueName"] != "value1" || read.Labels["test-configmap"] != "patched" {
		t.Errorf("after the patch: %v %v", read.Labels, read.Data)
	}
	if list := got(client.CoreV1().ConfigMaps("").List(t.Context(), labelled(test)))(t); len(list.Items) != 1 || list.Items[0].Data["valueName"] != "value1" {
		t.Errorf("listing all namespaces gives %d", len(list.Items))
	}
	must(t, api.DeleteCollection(t.Context(), metav1.DeleteOptions{}, labelled(test)))
	awaitEvent(t, w, watch.Deleted, nil)
	if list := got(api.List(t.Context(), labelled(test)))(t); len(list.Items) != 0 {
		t.Errorf("%d are left", len(list.Items))
	}
}

func leaseLifecycle(t *testing.T) {
	test := unique("lease")
	api := client.CoordinationV1().Leases(newNamespace(t))
	now := metav1.NewMicroTime(time.Now().Truncate(time.Microsecond))
	made := got(api.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "lease", Labels: testLabels(test)}, Spec: coordinationv1.LeaseSpec{
		HolderIdentity: new("holder"), LeaseDurationSeconds: new(int32(30)), AcquireTime: &now, RenewTime: &now, LeaseTransitions: new(int32(0)),
	}}, metav1.CreateOptions{}))(t)
	read := got(api.Get(t.Context(), "lease", metav1.GetOptions{}))(t)
	if !read.Spec.AcquireTime.Equal(&now) || *read.Spec.HolderIdentity != "holder" || read.UID != made.UID {
		t.Errorf("the lease reads %+v", read.Spec)
	}
	read.Spec.HolderIdentity, read.Spec.LeaseTransitions = new("holder2"), new(int32(1))
	updated := got(api.Update(t.Context(), read, metav1.UpdateOptions{}))(t)
	if *updated.Spec.HolderIdentity != "holder2" {
		t.Errorf("after the update: %+v", updated.Spec)
	}
	patched := got(api.Patch(t.Context(), "lease", types.StrategicMergePatchType, []byte(`{"spec":{"holderIdentity":"holder3","leaseDurationSeconds":60}}`), metav1.PatchOptions{}))(t)
	if *patched.Spec.HolderIdentity != "holder3" || *patched.Spec.LeaseDurationSeconds != 60 || *patched.Spec.LeaseTransitions != 1 {
		t.Errorf("after the patch: %+v", patched.Spec)
	}
	must(t, api.DeleteCollection(t.Context(), metav1.DeleteOptions{}, labelled(test)))
	if _, err := api.Get(t.Context(), "lease", metav1.GetOptions{}); !gone(err) {
		t.Errorf("reading what was deleted gives %v", err)
	}
}

func nodeLifecycle(t *testing.T) {
	test := unique("node")
	api := client.CoreV1().Nodes()
	name := unique("fake")
	made := got(api.Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: testLabels(test)}, Spec: corev1.NodeSpec{Unschedulable: true},
		Status: corev1.NodeStatus{Phase: corev1.NodeRunning, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}}},
	}, metav1.CreateOptions{}))(t)
	deleteAfter(t, name, func(ctx context.Context) error { return api.Delete(ctx, name, metav1.DeleteOptions{}) })
	got(api.Get(t.Context(), made.Name, metav1.GetOptions{}))(t)
	patched := got(api.Patch(t.Context(), name, types.StrategicMergePatchType, labelPatch("e2e", "patched"), metav1.PatchOptions{}))(t)
	if patched.Labels["e2e"] != "patched" {
		t.Errorf("labels are %v", patched.Labels)
	}
	if list := got(api.List(t.Context(), metav1.ListOptions{LabelSelector: "e2e=patched,test=" + test}))(t); len(list.Items) != 1 {
		t.Errorf("listing gives %d", len(list.Items))
	}
	eventually(t, "the update of the node", func(ctx context.Context) (bool, error) {
		read, err := api.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		read.Labels["e2e"] = "updated"
		read, err = api.Update(ctx, read, metav1.UpdateOptions{})
		return err == nil && read.Labels["e2e"] == "updated", nil
	})
	condition := []byte(`{"status":{"conditions":[{"type":"NetworkUnavailable","status":"True","reason":"E2E","message":"Set by a test"}]}}`)
	status := got(api.PatchStatus(t.Context(), name, condition))(t)
	found := false
	for _, condition := range status.Status.Conditions {
		found = found || condition.Reason == "E2E"
	}
	if !found {
		t.Errorf("conditions are %+v", status.Status.Conditions)
	}
	must(t, api.DeleteCollection(t.Context(), metav1.DeleteOptions{}, labelled(test)))
	if _, err := api.Get(t.Context(), name, metav1.GetOptions{}); !gone(err) {
		t.Errorf("reading what was deleted gives %v", err)
	}
}

func newTemplate(t *testing.T, namespace, name, test string) *corev1.PodTemplate {
	t.Helper()
	return got(client.CoreV1().PodTemplates(namespace).Create(t.Context(), &corev1.PodTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: testLabels(test)}, Template: podTemplate(test),
	}, metav1.CreateOptions{}))(t)
}

func templateLifecycle(t *testing.T) {
	namespace, test := newNamespace(t), unique("template")
	api := client.CoreV1().PodTemplates(namespace)
	newTemplate(t, namespace, "nginx", test)
	got(api.Patch(t.Context(), "nginx", types.StrategicMergePatchType, labelPatch("podtemplate", "patched"), metav1.PatchOptions{}))(t)
	if read := got(api.Get(t.Context(), "nginx", metav1.GetOptions{}))(t); read.Labels["podtemplate"] != "patched" {
		t.Errorf("labels are %v", read.Labels)
	}
	must(t, api.Delete(t.Context(), "nginx", metav1.DeleteOptions{}))
	if list := got(client.CoreV1().PodTemplates("").List(t.Context(), labelled(test)))(t); len(list.Items) != 0 {
		t.Errorf("%d templates are left", len(list.Items))
	}
}

func templateReplaced(t *testing.T) {
	namespace := newNamespace(t)
	made := newTemplate(t, namespace, "replaced", "replaced")
	made.Annotations = map[string]string{"updated": "true"}
	updated := got(client.CoreV1().PodTemplates(namespace).Update(t.Context(), made, metav1.UpdateOptions{}))(t)
	if updated.Annotations["updated"] != "true" {
		t.Errorf("annotations are %v", updated.Annotations)
	}
}

func templateCollection(t *testing.T) {
	namespace, test := newNamespace(t), unique("template")
	for _, name := range []string{"one", "two", "three"} {
		newTemplate(t, namespace, name, test)
	}
	api := client.CoreV1().PodTemplates(namespace)
	must(t, api.DeleteCollection(t.Context(), metav1.DeleteOptions{}, labelled(test)))
	if list := got(api.List(t.Context(), labelled(test)))(t); len(list.Items) != 0 {
		t.Errorf("%d templates are left", len(list.Items))
	}
}

func secretPatched(t *testing.T) {
	namespace, test := newNamespace(t), unique("secret")
	api := client.CoreV1().Secrets(namespace)
	got(api.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "patched", Labels: testLabels(test)}, Data: map[string][]byte{"key": []byte("value")}, Type: corev1.SecretTypeOpaque}, metav1.CreateOptions{}))(t)
	if list := got(client.CoreV1().Secrets("").List(t.Context(), labelled(test)))(t); len(list.Items) != 1 {
		t.Errorf("listing all namespaces gives %d", len(list.Items))
	}
	patched := got(api.Patch(t.Context(), "patched", types.StrategicMergePatchType, []byte(`{"metadata":{"labels":{"testsecret":"true"}},"data":{"key":"dmFsdWUx"}}`), metav1.PatchOptions{}))(t)
	if string(patched.Data["key"]) != "value1" {
		t.Errorf("data is %v", patched.Data)
	}
	must(t, api.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "testsecret=true"}))
	if list := got(api.List(t.Context(), labelled(test)))(t); len(list.Items) != 0 {
		t.Errorf("%d secrets are left", len(list.Items))
	}
}

func rejectedWithDeletedRuntimeClass(t *testing.T) {
	namespace, name := newNamespace(t), unique("class")
	api := client.NodeV1().RuntimeClasses()
	got(api.Create(t.Context(), &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Handler: "deleted"}, metav1.CreateOptions{}))(t)
	must(t, api.Delete(t.Context(), name, metav1.DeleteOptions{}))
	assertNoRuntimeClass(t, namespace, name)
}
