package conformance

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

var disruption = map[string]func(*testing.T){
	"Listing PodDisruptionBudgets for all namespaces should list and delete a collection of PodDisruptionBudgets": budgetCollection,
}

var limitRanges = map[string]func(*testing.T){
	"should create a LimitRange with defaults and ensure pod has those defaults applied.": limitRangeDefaults,
	"should list, patch and delete a LimitRange by collection":                            limitRangeCollection,
}

func budgetCollection(t *testing.T) {
	test := unique("budget")
	namespaces := []string{newNamespace(t), newNamespace(t)}
	for _, namespace := range []string{namespaces[0], namespaces[0], namespaces[1]} {
		one := intstr.FromInt32(1)
		got(client.PolicyV1().PodDisruptionBudgets(namespace).Create(t.Context(), &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "budget-", Labels: testLabels(test)},
			Spec:       policyv1.PodDisruptionBudgetSpec{Selector: metav1.SetAsLabelSelector(testLabels(test)), MinAvailable: &one},
		}, metav1.CreateOptions{}))(t)
	}
	count := func(namespace string, want int) {
		t.Helper()
		if list := got(client.PolicyV1().PodDisruptionBudgets(namespace).List(t.Context(), labelled(test)))(t); len(list.Items) != want {
			t.Errorf("listing %q gives %d, not %d", namespace, len(list.Items), want)
		}
	}
	count("", 3)
	count(namespaces[0], 2)
	must(t, client.PolicyV1().PodDisruptionBudgets(namespaces[0]).DeleteCollection(t.Context(), metav1.DeleteOptions{}, labelled(test)))
	count(namespaces[0], 0)
	count("", 1)
}

func limitRange(name, test string, item corev1.LimitRangeItem) *corev1.LimitRange {
	item.Type = corev1.LimitTypeContainer
	return &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: testLabels(test)}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{item}}}
}

func limitRangeDefaults(t *testing.T) {
	namespace, test := newNamespace(t), unique("limits")
	api, pods := client.CoreV1().LimitRanges(namespace), client.CoreV1().Pods(namespace)
	w := got(api.Watch(t.Context(), labelled(test)))(t)
	defer w.Stop()
	got(api.Create(t.Context(), limitRange("limits", test, corev1.LimitRangeItem{
		Min: hard("cpu", "50m", "memory", "100Mi", "ephemeral-storage", "100Gi"), Max: hard("cpu", "500m", "memory", "500Mi", "ephemeral-storage", "500Gi"),
		Default: hard("cpu", "500m", "memory", "500Mi", "ephemeral-storage", "500Gi"), DefaultRequest: hard("cpu", "100m", "memory", "200Mi", "ephemeral-storage", "200Gi"),
	}), metav1.CreateOptions{}))(t)
	awaitEvent(t, w, "ADDED", nil)
	assertResources := func(made *corev1.Pod, requests, limits corev1.ResourceList) {
		t.Helper()
		have := made.Spec.Containers[0].Resources
		if !holds(have.Requests, requests) || !holds(have.Limits, limits) {
			t.Errorf("%s has %+v", made.Name, have)
		}
	}
	assertResources(got(pods.Create(t.Context(), idle("no-resources", nil, nil), metav1.CreateOptions{}))(t),
		hard("cpu", "100m", "memory", "200Mi", "ephemeral-storage", "200Gi"), hard("cpu", "500m", "memory", "500Mi", "ephemeral-storage", "500Gi"))
	assertResources(got(pods.Create(t.Context(), idle("partial", hard("cpu", "100m"), hard("memory", "300Mi")), metav1.CreateOptions{}))(t),
		hard("cpu", "100m", "memory", "300Mi", "ephemeral-storage", "200Gi"), hard("cpu", "500m", "memory", "300Mi", "ephemeral-storage", "500Gi"))
	for name, bad := range map[string]*corev1.Pod{
		"under the minimum": idle("small", hard("cpu", "10m", "memory", "50Mi", "ephemeral-storage", "50Gi"), nil),
		"over the maximum":  idle("large", hard("cpu", "600m", "memory", "600Mi", "ephemeral-storage", "600Gi"), hard("cpu", "600m", "memory", "600Mi", "ephemeral-storage", "600Gi")),
	} {
		if _, err := pods.Create(t.Context(), bad, metav1.CreateOptions{}); err == nil {
			t.Errorf("a pod %s was taken", name)
		}
	}
	read := got(api.Get(t.Context(), "limits", metav1.GetOptions{}))(t)
	read.Spec.Limits[0].Min = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("9m"), corev1.ResourceMemory: resource.MustParse("49Mi"), corev1.ResourceEphemeralStorage: resource.MustParse("49Gi")}
	got(api.Update(t.Context(), read, metav1.UpdateOptions{}))(t)
	eventuallyCreates(t, namespace, idle("small", hard("cpu", "10m", "memory", "50Mi", "ephemeral-storage", "50Gi"), nil))
	must(t, api.Delete(t.Context(), "limits", metav1.DeleteOptions{}))
	awaitEvent(t, w, "DELETED", nil)
	eventuallyCreates(t, namespace, idle("large", hard("cpu", "600m"), hard("cpu", "600m")))
}

func limitRangeCollection(t *testing.T) {
	namespace, test := newNamespace(t), unique("limits")
	api := client.CoreV1().LimitRanges(namespace)
	got(api.Create(t.Context(), limitRange("one", test, corev1.LimitRangeItem{Min: hard("cpu", "50m"), Max: hard("cpu", "500m")}), metav1.CreateOptions{}))(t)
	other := newNamespace(t)
	got(client.CoreV1().LimitRanges(other).Create(t.Context(), limitRange("two", test, corev1.LimitRangeItem{Min: hard("cpu", "50m")}), metav1.CreateOptions{}))(t)
	if list := got(client.CoreV1().LimitRanges("").List(t.Context(), labelled(test)))(t); len(list.Items) != 2 {
		t.Errorf("listing all namespaces gives %d", len(list.Items))
	}
	patch := []byte(`{"metadata":{"labels":{"patched":"yes"}},"spec":{"limits":[{"type":"Container","min":{"cpu":"40m"},"max":{"cpu":"500m"}}]}}`)
	patched := got(api.Patch(t.Context(), "one", types.StrategicMergePatchType, patch, metav1.PatchOptions{}))(t)
	if !holds(patched.Spec.Limits[0].Min, hard("cpu", "40m")) {
		t.Errorf("after the patch: %+v", patched.Spec)
	}
	must(t, api.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "patched=yes"}))
	if _, err := api.Get(t.Context(), "one", metav1.GetOptions{}); !gone(err) {
		t.Errorf("reading what was deleted gives %v", err)
	}
	if list := got(client.CoreV1().LimitRanges("").List(t.Context(), labelled(test)))(t); len(list.Items) != 1 {
		t.Errorf("%d are left", len(list.Items))
	}
}
