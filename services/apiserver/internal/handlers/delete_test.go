package handlers_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

func TestDeleteAnswersWithAStatus(t *testing.T) {
	s := testserver.Start(t)
	r := newRaw(t, s)
	r.want(201, "POST", configMaps, configMap("a"))
	status := r.want(200, "DELETE", configMaps+"/a", nil).status(t)
	if status.Status != metav1.StatusSuccess || status.Details == nil || status.Details.Name != "a" || status.Details.Kind != "configmaps" || status.Details.UID == "" {
		t.Errorf("status: %+v", status)
	}
	r.want(404, "DELETE", configMaps+"/a", nil)
}

func TestFinalizersHoldADeletedObject(t *testing.T) {
	s := testserver.Start(t)
	maps := s.Client.CoreV1().ConfigMaps("default")
	in := configMap("a")
	in.Finalizers = []string{"example.com/hold"}
	if _, err := maps.Create(t.Context(), in, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := maps.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	held, err := maps.Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil || held.DeletionTimestamp == nil || held.DeletionGracePeriodSeconds == nil || *held.DeletionGracePeriodSeconds != 0 {
		t.Fatalf("held object: %+v, %v", held, err)
	}
	if err := maps.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Errorf("second delete: %v", err)
	}
	if now, _ := maps.Get(t.Context(), "a", metav1.GetOptions{}); now.ResourceVersion != held.ResourceVersion {
		t.Error("a second delete changed the object")
	}
	if _, err := maps.Create(t.Context(), configMap("a"), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) || !strings.HasPrefix(err.Error(), "object is being deleted: ") {
		t.Errorf("create beside a deleted object: %v", err)
	}
	_, err = maps.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.com/hold","example.com/more"]}}`), metav1.PatchOptions{})
	if !apierrors.IsInvalid(err) {
		t.Errorf("a new finalizer on a deleted object: %v", err)
	}
	if _, err := maps.Patch(t.Context(), "a", types.JSONPatchType, []byte(`[{"op":"remove","path":"/metadata/finalizers"}]`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after its last finalizer: %v", err)
	}
}

func TestPropagationPoliciesBecomeFinalizers(t *testing.T) {
	s := testserver.Start(t)
	maps := s.Client.CoreV1().ConfigMaps("default")
	for policy, finalizer := range map[metav1.DeletionPropagation]string{
		metav1.DeletePropagationOrphan:     metav1.FinalizerOrphanDependents,
		metav1.DeletePropagationForeground: metav1.FinalizerDeleteDependents,
	} {
		name := strings.ToLower(string(policy))
		if _, err := maps.Create(t.Context(), configMap(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := maps.Delete(t.Context(), name, metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
			t.Fatal(err)
		}
		got, err := maps.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || !slices.Equal(got.Finalizers, []string{finalizer}) || got.DeletionTimestamp == nil {
			t.Errorf("%s: %+v, %v", policy, got, err)
		}
		background := metav1.DeletePropagationBackground
		if err := maps.Delete(t.Context(), name, metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
			t.Errorf("background after %s: %v", policy, err)
		}
		if _, err := maps.Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("background after %s left the object: %v", policy, err)
		}
	}
}

func TestDeletePreconditions(t *testing.T) {
	s := testserver.Start(t)
	maps := s.Client.CoreV1().ConfigMaps("default")
	got, err := maps.Create(t.Context(), configMap("a"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	uid, version := types.UID("other"), "1"
	for _, p := range []metav1.Preconditions{{UID: &uid}, {ResourceVersion: &version}} {
		if err := maps.Delete(t.Context(), "a", metav1.DeleteOptions{Preconditions: &p}); !apierrors.IsConflict(err) {
			t.Errorf("precondition %v: %v", p, err)
		}
	}
	if err := maps.Delete(t.Context(), "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &got.UID, ResourceVersion: &got.ResourceVersion}}); err != nil {
		t.Error(err)
	}
}

func TestPodsAreDeletedGracefully(t *testing.T) {
	s := testserver.Start(t)
	pods := s.Client.CoreV1().Pods("default")
	if _, err := s.Client.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := pods.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err := pods.Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil || got.DeletionTimestamp == nil || *got.DeletionGracePeriodSeconds != 30 || got.Generation != 2 {
		t.Fatalf("deleted pod: %+v, %v", got.ObjectMeta, err)
	}
	five, sixty := int64(5), int64(60)
	for _, seconds := range []*int64{&five, &sixty} {
		if err := pods.Delete(t.Context(), "a", metav1.DeleteOptions{GracePeriodSeconds: seconds}); err != nil {
			t.Fatal(err)
		}
		got, err = pods.Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil || *got.DeletionGracePeriodSeconds != 5 {
			t.Errorf("grace period is %d, want 5: it can only become shorter: %v", *got.DeletionGracePeriodSeconds, err)
		}
	}
	zero := int64(0)
	if err := pods.Delete(t.Context(), "a", metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
		t.Fatal(err)
	}
	if _, err := pods.Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after a deletion without grace: %v", err)
	}
}

func TestDeleteCollectionSelects(t *testing.T) {
	s := testserver.Start(t)
	maps := s.Client.CoreV1().ConfigMaps("default")
	for i := range 40 {
		in := configMap(fmt.Sprintf("m%d", i))
		in.Labels = map[string]string{"half": fmt.Sprint(i % 2)}
		if _, err := maps.Create(t.Context(), in, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := maps.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "half=1"}); err != nil {
		t.Fatal(err)
	}
	left, err := maps.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(left.Items) != 20 {
		t.Errorf("%d objects are left, want 20: %v", len(left.Items), err)
	}
}

func TestNamespaceGoesWhenItIsFinalized(t *testing.T) {
	s := testserver.Start(t)
	namespaces := s.Client.CoreV1().Namespaces()
	if _, err := namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "gone"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := namespaces.Delete(t.Context(), "gone", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	ns, err := namespaces.Get(t.Context(), "gone", metav1.GetOptions{})
	if err != nil || ns.Status.Phase != corev1.NamespaceTerminating || ns.DeletionTimestamp == nil {
		t.Fatalf("deleted namespace: %+v, %v", ns, err)
	}
	if _, err := s.Client.CoreV1().ConfigMaps("gone").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("create in a namespace that goes: %v", err)
	}
	ns.Spec.Finalizers = nil
	if _, err := namespaces.Finalize(t.Context(), ns, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := namespaces.Get(t.Context(), "gone", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("finalized namespace: %v", err)
	}
}
