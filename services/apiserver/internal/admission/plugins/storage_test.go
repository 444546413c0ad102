package plugins_test

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/statetest"
)

func storageClass(name, isDefault string, age time.Duration) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{
		Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-age)),
		Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": isDefault},
	}}
}

func claim(change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "c"}}
	for _, f := range change {
		f(c)
	}
	return c
}

func TestClaimsGetTheNewestDefaultClass(t *testing.T) {
	state := newState()
	chain := only(t, state, "DefaultStorageClass")
	assert := func(want string, change ...func(*corev1.PersistentVolumeClaim)) {
		t.Helper()
		c := claim(change...)
		if err := run(t.Context(), chain, write(admission.Create, "persistentvolumeclaims", c, nil)); err != nil {
			t.Fatal(err)
		}
		got := "<none>"
		if c.Spec.StorageClassName != nil {
			got = *c.Spec.StorageClassName
		}
		if got != want {
			t.Errorf("class %s, want %s", got, want)
		}
	}
	assert("<none>")
	for _, class := range []*storagev1.StorageClass{storageClass("old", "true", time.Hour), storageClass("b", "true", 0), storageClass("a", "true", 0), storageClass("new", "false", -time.Hour)} {
		state.Put(storagev1.Resource("storageclasses"), class)
	}
	assert("a")
	assert("", func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = new("") })
	assert("<none>", func(c *corev1.PersistentVolumeClaim) {
		c.Annotations = map[string]string{"volume.beta.kubernetes.io/storage-class": "x"}
	})
}

func TestIngressesGetTheDefaultClass(t *testing.T) {
	state := newState()
	state.Put(networkingv1.Resource("ingressclasses"), &networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{
		Name: "web", Annotations: map[string]string{"ingressclass.kubernetes.io/is-default-class": "true"},
	}})
	chain := only(t, state, "DefaultIngressClass")
	ingress := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "i"}}
	if err := run(t.Context(), chain, write(admission.Create, "ingresses.networking.k8s.io", ingress, nil)); err != nil || *ingress.Spec.IngressClassName != "web" {
		t.Errorf("%+v, %v", ingress.Spec, err)
	}
}

func TestStorageIsProtectedWhileInUse(t *testing.T) {
	chain := only(t, newState(), "StorageObjectInUseProtection")
	c := claim()
	for range 2 {
		if err := run(t.Context(), chain, write(admission.Create, "persistentvolumeclaims", c, nil)); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(c.Finalizers, []string{"kubernetes.io/pvc-protection"}) {
		t.Errorf("finalizers %v", c.Finalizers)
	}
}

func TestClaimsGrowWhereTheClassLetsThem(t *testing.T) {
	state := newState()
	fixed, growing := storageClass("fixed", "", 0), storageClass("growing", "", 0)
	growing.AllowVolumeExpansion = new(true)
	state.Put(storagev1.Resource("storageclasses"), fixed)
	state.Put(storagev1.Resource("storageclasses"), growing)
	chain := only(t, state, "PersistentVolumeClaimResize")
	sized := func(class, size string, phase corev1.PersistentVolumeClaimPhase) *corev1.PersistentVolumeClaim {
		return claim(func(c *corev1.PersistentVolumeClaim) {
			c.Spec.StorageClassName, c.Status.Phase = new(class), phase
			c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
		})
	}
	try := func(class, size string, phase corev1.PersistentVolumeClaimPhase) error {
		return run(t.Context(), chain, write(admission.Update, "persistentvolumeclaims", sized(class, size, phase), sized(class, "1Gi", phase)))
	}
	for _, c := range []struct{ class, size string }{{"growing", "2Gi"}, {"fixed", "1Gi"}} {
		if err := try(c.class, c.size, corev1.ClaimBound); err != nil {
			t.Error(err)
		}
	}
	assertRefused(t, try("fixed", "2Gi", corev1.ClaimBound), "must support resize")
	assertRefused(t, try("absent", "2Gi", corev1.ClaimBound), "must support resize")
	assertRefused(t, try("growing", "2Gi", corev1.ClaimPending), "Only bound")
}

func TestPluginsDoWithoutKindsThatAreNotServed(t *testing.T) {
	chain := only(t, statetest.New(), "DefaultStorageClass")
	if err := run(t.Context(), chain, write(admission.Create, "persistentvolumeclaims", claim(), nil)); err != nil {
		t.Error(err)
	}
}
