package conformance

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
)

var namespaces = map[string]func(*testing.T){
	"should patch a Namespace": func(t *testing.T) {
		namespace := newNamespace(t)
		patched := got(client.CoreV1().Namespaces().Patch(t.Context(), namespace, types.StrategicMergePatchType, labelPatch("testLabel", "testValue"), metav1.PatchOptions{}))(t)
		if patched.Labels["testLabel"] != "testValue" {
			t.Errorf("labels are %v", patched.Labels)
		}
	},
	"should apply an update to a Namespace": func(t *testing.T) {
		updated := updateNamespace(t, newNamespace(t), func(namespace *corev1.Namespace) { namespace.Labels["updated"] = "yes" })
		if updated.Labels["updated"] != "yes" {
			t.Errorf("labels are %v", updated.Labels)
		}
	},
	"should apply changes to a namespace status":                              namespaceStatus,
	"should apply a finalizer to a Namespace":                                 namespaceFinalizer,
	"should ensure that all services are removed when a namespace is deleted": namespaceTakesServices,
	"should ensure that all pods are removed when a namespace is deleted":     namespaceTakesPods,
}

func updateNamespace(t *testing.T, name string, change func(*corev1.Namespace)) *corev1.Namespace {
	t.Helper()
	var updated *corev1.Namespace
	must(t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		read, err := client.CoreV1().Namespaces().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(read)
		updated, err = client.CoreV1().Namespaces().Update(t.Context(), read, metav1.UpdateOptions{})
		return err
	}))
	return updated
}

func namespaceStatus(t *testing.T) {
	name := newNamespace(t)
	api := client.CoreV1().Namespaces()
	patch := []byte(`{"metadata":{"annotations":{"e2e-patched-ns-status":"yes"}},"status":{"conditions":[{"type":"StatusPatch","status":"True","reason":"E2E","message":"Patched by a test"}]}}`)
	patched := got(api.Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}, "status"))(t)
	if patched.Annotations["e2e-patched-ns-status"] != "yes" || !hasNamespaceCondition(patched, "StatusPatch") {
		t.Errorf("after the patch: %+v %+v", patched.Annotations, patched.Status)
	}
	var updated *corev1.Namespace
	must(t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		read, err := api.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		read.Status.Conditions = append(read.Status.Conditions, corev1.NamespaceCondition{Type: "StatusUpdate", Status: corev1.ConditionTrue, Reason: "E2E", Message: "Updated by a test"})
		updated, err = api.UpdateStatus(t.Context(), read, metav1.UpdateOptions{})
		return err
	}))
	if !hasNamespaceCondition(updated, "StatusUpdate") || len(updated.Status.Conditions) != 2 {
		t.Errorf("after the update: %+v", updated.Status)
	}
}

func hasNamespaceCondition(namespace *corev1.Namespace, kind corev1.NamespaceConditionType) bool {
	for _, condition := range namespace.Status.Conditions {
		if condition.Type == kind {
			return true
		}
	}
	return false
}

func namespaceFinalizer(t *testing.T) {
	name := unique("finalized")
	api := client.CoreV1().Namespaces()
	got(api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))(t)
	const finalizer = corev1.FinalizerName("example.com/conformance")
	finalize := func(change func([]corev1.FinalizerName) []corev1.FinalizerName) *corev1.Namespace {
		t.Helper()
		var done *corev1.Namespace
		must(t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
			read, err := api.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			read.Spec.Finalizers = change(read.Spec.Finalizers)
			done, err = api.Finalize(t.Context(), read, metav1.UpdateOptions{})
			return err
		}))
		return done
	}
	if added := finalize(func(list []corev1.FinalizerName) []corev1.FinalizerName { return append(list, finalizer) }); len(added.Spec.Finalizers) != 2 {
		t.Errorf("finalizers are %v", added.Spec.Finalizers)
	}
	must(t, api.Delete(t.Context(), name, metav1.DeleteOptions{}))
	eventually(t, "only the test's finalizer to be left", func(ctx context.Context) (bool, error) {
		read, err := api.Get(ctx, name, metav1.GetOptions{})
		return err == nil && len(read.Spec.Finalizers) == 1 && read.Spec.Finalizers[0] == finalizer, err
	})
	finalize(func([]corev1.FinalizerName) []corev1.FinalizerName { return nil })
	awaitNoNamespace(t, name)
}

func awaitNoNamespace(t *testing.T, name string) {
	t.Helper()
	eventually(t, "namespace "+name+" to be gone", func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		return gone(err), nil
	})
}

// deleteAndRemake deletes the namespace, waits, and makes it again.
func deleteAndRemake(t *testing.T, name string) {
	t.Helper()
	api := client.CoreV1().Namespaces()
	must(t, api.Delete(t.Context(), name, metav1.DeleteOptions{}))
	awaitNoNamespace(t, name)
	got(api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))(t)
}

func namespaceTakesServices(t *testing.T) {
	name := newNamespace(t)
	api := client.CoreV1().Services(name)
	got(api.Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "test-service"},
		Spec:       corev1.ServiceSpec{Selector: testLabels("any"), Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{}))(t)
	deleteAndRemake(t, name)
	if list := got(api.List(t.Context(), metav1.ListOptions{}))(t); len(list.Items) != 0 {
		t.Errorf("%d services outlived their namespace", len(list.Items))
	}
}

func namespaceTakesPods(t *testing.T) {
	name := newNamespace(t)
	got(client.CoreV1().Pods(name).Create(t.Context(), pod("test-pod", "sleep 3600"), metav1.CreateOptions{}))(t)
	awaitRunning(t, name, "test-pod")
	deleteAndRemake(t, name)
	if list := got(client.CoreV1().Pods(name).List(t.Context(), metav1.ListOptions{}))(t); len(list.Items) != 0 {
		t.Errorf("%d pods outlived their namespace", len(list.Items))
	}
}
