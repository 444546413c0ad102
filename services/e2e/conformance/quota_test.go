package conformance

import (
	"context"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
)

var quotas = map[string]func(*testing.T){
	"should create a ResourceQuota and ensure its status is promptly calculated.": func(t *testing.T) {
		newQuota(t, newNamespace(t), hard("services", "10", "pods", "5"))
	},
	"should create a ResourceQuota and capture the life of a configMap.":              quotaOfConfigMap,
	"should create a ResourceQuota and capture the life of a secret.":                 quotaOfSecret,
	"should create a ResourceQuota and capture the life of a service.":                quotaOfService,
	"should create a ResourceQuota and capture the life of a pod.":                    quotaOfPod,
	"should create a ResourceQuota and capture the life of a replica set.":            quotaOfReplicaSet,
	"should create a ResourceQuota and capture the life of a replication controller.": quotaOfReplicationController,
	"should be able to update and delete ResourceQuota.":                              quotaIsUpdated,
	"should manage the lifecycle of a ResourceQuota":                                  quotaLifecycle,
	"should apply changes to a resourcequota status":                                  quotaStatus,
	"should verify ResourceQuota with best effort scope.":                             quotaOfBestEffort,
	"should verify ResourceQuota with terminating scopes.":                            quotaOfTerminating,
}

// hard is a list of limits: name, quantity, name, quantity …
func hard(pairs ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

// newQuota makes a quota and waits until its status repeats the limits.
func newQuota(t *testing.T, namespace string, limits corev1.ResourceList, scopes ...corev1.ResourceQuotaScope) string {
	t.Helper()
	name := unique("quota")
	got(client.CoreV1().ResourceQuotas(namespace).Create(t.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ResourceQuotaSpec{Hard: limits, Scopes: scopes},
	}, metav1.CreateOptions{}))(t)
	eventually(t, "the quota's status", func(ctx context.Context) (bool, error) {
		quota, err := client.CoreV1().ResourceQuotas(namespace).Get(ctx, name, metav1.GetOptions{})
		return err == nil && holds(quota.Status.Hard, limits) && len(quota.Status.Used) >= len(limits), err
	})
	return name
}

func holds(list, want corev1.ResourceList) bool {
	for name, quantity := range want {
		if have, found := list[name]; !found || have.Cmp(quantity) != 0 {
			return false
		}
	}
	return true
}

func awaitUsed(t *testing.T, namespace, name string, pairs ...string) {
	t.Helper()
	want := hard(pairs...)
	var last corev1.ResourceList
	defer func() {
		if t.Failed() {
			t.Logf("used is %v", last)
		}
	}()
	eventually(t, fmt.Sprintf("the use to be %v", pairs), func(ctx context.Context) (bool, error) {
		quota, err := client.CoreV1().ResourceQuotas(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		last = quota.Status.Used
		return holds(last, want), nil
	})
}

func assertForbidden(t *testing.T, err error) {
	t.Helper()
	if !apierrors.IsForbidden(err) {
		t.Errorf("wanted it forbidden: %v", err)
	}
}

func quotaOfConfigMap(t *testing.T) {
	namespace := newNamespace(t)
	api := client.CoreV1().ConfigMaps(namespace)
	eventually(t, "the root certificate's config map", func(ctx context.Context) (bool, error) {
		_, err := api.Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		return err == nil, nil
	})
	quota := newQuota(t, namespace, hard("configmaps", "2"))
	awaitUsed(t, namespace, quota, "configmaps", "1")
	got(api.Create(t.Context(), configMap("test", "x"), metav1.CreateOptions{}))(t)
	awaitUsed(t, namespace, quota, "configmaps", "2")
	_, err := api.Create(t.Context(), configMap("too-many", "x"), metav1.CreateOptions{})
	assertForbidden(t, err)
	must(t, api.Delete(t.Context(), "test", metav1.DeleteOptions{}))
	awaitUsed(t, namespace, quota, "configmaps", "1")
}

func quotaOfSecret(t *testing.T) {
	namespace := newNamespace(t)
	api := client.CoreV1().Secrets(namespace)
	quota := newQuota(t, namespace, hard("secrets", "1"))
	awaitUsed(t, namespace, quota, "secrets", "0")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "test"}, Data: map[string][]byte{"data": []byte("value")}}
	got(api.Create(t.Context(), secret, metav1.CreateOptions{}))(t)
	awaitUsed(t, namespace, quota, "secrets", "1")
	must(t, api.Delete(t.Context(), "test", metav1.DeleteOptions{}))
	awaitUsed(t, namespace, quota, "secrets", "0")
}

func quotaOfService(t *testing.T) {
	namespace := newNamespace(t)
	api := client.CoreV1().Services(namespace)
	quota := newQuota(t, namespace, hard("services", "2", "services.nodeports", "1", "services.loadbalancers", "1"))
	service := func(name string, kind corev1.ServiceType) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Type: kind, Ports: []corev1.ServicePort{{Port: 80}}}}
	}
	got(api.Create(t.Context(), service("cluster", corev1.ServiceTypeClusterIP), metav1.CreateOptions{}))(t)
	got(api.Create(t.Context(), service("node", corev1.ServiceTypeNodePort), metav1.CreateOptions{}))(t)
	_, err := api.Create(t.Context(), service("balancer", corev1.ServiceTypeLoadBalancer), metav1.CreateOptions{})
	assertForbidden(t, err)
	awaitUsed(t, namespace, quota, "services", "2", "services.nodeports", "1", "services.loadbalancers", "0")
	for _, name := range []string{"cluster", "node"} {
		must(t, api.Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	awaitUsed(t, namespace, quota, "services", "0", "services.nodeports", "0")
}

// idle is a pod that is never scheduled, with requests and limits.
func idle(name string, requests, limits corev1.ResourceList) *corev1.Pod {
	made := pod(name, "sleep 3600")
	made.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/never"}}
	made.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: requests, Limits: limits}
	return made
}

func quotaOfPod(t *testing.T) {
	namespace := newNamespace(t)
	api := client.CoreV1().Pods(namespace)
	limits := hard("pods", "5", "cpu", "1", "memory", "500Mi", "ephemeral-storage", "50Gi", "requests.example.com/dongle", "3")
	quota := newQuota(t, namespace, limits)
	dongles := hard("example.com/dongle", "2")
	requests := hard("cpu", "500m", "memory", "252Mi", "ephemeral-storage", "30Gi", "example.com/dongle", "2")
	got(api.Create(t.Context(), idle("test-pod", requests, dongles), metav1.CreateOptions{}))(t)
	used := []string{"pods", "1", "cpu", "500m", "memory", "252Mi", "ephemeral-storage", "30Gi", "requests.example.com/dongle", "2"}
	awaitUsed(t, namespace, quota, used...)
	for name, more := range map[string]corev1.ResourceList{
		"much-cpu": hard("cpu", "600m", "memory", "100Mi", "ephemeral-storage", "30Gi"),
		"dongles":  hard("cpu", "100m", "memory", "100Mi", "ephemeral-storage", "1Gi", "example.com/dongle", "2"),
		"nothing":  hard(),
	} {
		limit := corev1.ResourceList{}
		if _, asks := more["example.com/dongle"]; asks {
			limit = dongles
		}
		_, err := api.Create(t.Context(), idle(name, more, limit), metav1.CreateOptions{})
		assertForbidden(t, err)
	}
	got(api.Patch(t.Context(), "test-pod", types.MergePatchType, labelPatch("changed", "yes"), metav1.PatchOptions{}))(t)
	awaitUsed(t, namespace, quota, used...)
	must(t, api.Delete(t.Context(), "test-pod", metav1.DeleteOptions{}))
	awaitUsed(t, namespace, quota, "pods", "0", "cpu", "0", "memory", "0", "requests.example.com/dongle", "0")
}

func quotaOfReplicaSet(t *testing.T) {
	namespace := newNamespace(t)
	quota := newQuota(t, namespace, hard("count/replicasets.apps", "1"))
	api := client.AppsV1().ReplicaSets(namespace)
	got(api.Create(t.Context(), &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "test-rs"},
		Spec:       appsv1.ReplicaSetSpec{Replicas: new(int32), Selector: metav1.SetAsLabelSelector(testLabels("rs")), Template: podTemplate("rs")},
	}, metav1.CreateOptions{}))(t)
	awaitUsed(t, namespace, quota, "count/replicasets.apps", "1")
	must(t, api.Delete(t.Context(), "test-rs", metav1.DeleteOptions{}))
	awaitUsed(t, namespace, quota, "count/replicasets.apps", "0")
}

func quotaOfReplicationController(t *testing.T) {
	namespace := newNamespace(t)
	quota := newQuota(t, namespace, hard("replicationcontrollers", "1"))
	controller(t, namespace, "test-rc", 0)
	awaitUsed(t, namespace, quota, "replicationcontrollers", "1")
	must(t, client.CoreV1().ReplicationControllers(namespace).Delete(t.Context(), "test-rc", metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}))
	awaitUsed(t, namespace, quota, "replicationcontrollers", "0")
}

func quotaIsUpdated(t *testing.T) {
	namespace := newNamespace(t)
	api := client.CoreV1().ResourceQuotas(namespace)
	made := got(api.Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "test"}, Spec: corev1.ResourceQuotaSpec{Hard: hard("cpu", "1", "memory", "500Mi")}}, metav1.CreateOptions{}))(t)
	if !holds(made.Spec.Hard, hard("cpu", "1", "memory", "500Mi")) {
		t.Errorf("limits are %v", made.Spec.Hard)
	}
	must(t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		read, err := api.Get(t.Context(), "test", metav1.GetOptions{})
		if err != nil {
			return err
		}
		read.Spec.Hard = hard("cpu", "2", "memory", "1Gi")
		_, err = api.Update(t.Context(), read, metav1.UpdateOptions{})
		return err
	}))
	if read := got(api.Get(t.Context(), "test", metav1.GetOptions{}))(t); !holds(read.Spec.Hard, hard("cpu", "2", "memory", "1Gi")) {
		t.Errorf("limits after the update are %v", read.Spec.Hard)
	}
	must(t, api.Delete(t.Context(), "test", metav1.DeleteOptions{}))
	if _, err := api.Get(t.Context(), "test", metav1.GetOptions{}); !gone(err) {
		t.Errorf("reading what was deleted gives %v", err)
	}
}

func quotaLifecycle(t *testing.T) {
	namespace, test := newNamespace(t), unique("quota")
	api := client.CoreV1().ResourceQuotas(namespace)
	got(api.Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "test", Labels: testLabels(test)}, Spec: corev1.ResourceQuotaSpec{Hard: hard("cpu", "1")}}, metav1.CreateOptions{}))(t)
	got(api.Get(t.Context(), "test", metav1.GetOptions{}))(t)
	patch := []byte(`{"metadata":{"labels":{"patched":"yes"}},"spec":{"hard":{"memory":"750Mi"}}}`)
	patched := got(api.Patch(t.Context(), "test", types.StrategicMergePatchType, patch, metav1.PatchOptions{}))(t)
	if patched.Labels["patched"] != "yes" || !holds(patched.Spec.Hard, hard("cpu", "1", "memory", "750Mi")) {
		t.Errorf("after the patch: %v %v", patched.Labels, patched.Spec.Hard)
	}
	if list := got(client.CoreV1().ResourceQuotas("").List(t.Context(), labelled(test)))(t); len(list.Items) != 1 {
		t.Errorf("listing all namespaces gives %d", len(list.Items))
	}
	must(t, api.DeleteCollection(t.Context(), metav1.DeleteOptions{}, labelled(test)))
	if list := got(api.List(t.Context(), labelled(test)))(t); len(list.Items) != 0 {
		t.Errorf("%d are left", len(list.Items))
	}
}

func quotaStatus(t *testing.T) {
	namespace := newNamespace(t)
	name := newQuota(t, namespace, hard("cpu", "500m", "memory", "500Mi"))
	api := client.CoreV1().ResourceQuotas(namespace)
	patch := []byte(`{"metadata":{"annotations":{"patched":"yes"}},"status":{"hard":{"cpu":"1"}}}`)
	patched := got(api.Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}, "status"))(t)
	if !holds(patched.Status.Hard, hard("cpu", "1")) {
		t.Errorf("status after the patch is %v", patched.Status.Hard)
	}
	if patched.Spec.Hard.Cpu().String() != "500m" {
		t.Errorf("the patch of status changed spec to %v", patched.Spec.Hard)
	}
	// The controller puts the status right again.
	eventually(t, "the status to follow spec", func(ctx context.Context) (bool, error) {
		read, err := api.Get(ctx, name, metav1.GetOptions{})
		return err == nil && holds(read.Status.Hard, hard("cpu", "500m", "memory", "500Mi")), err
	})
}

func quotaOfBestEffort(t *testing.T) {
	namespace := newNamespace(t)
	best := newQuota(t, namespace, hard("pods", "5"), corev1.ResourceQuotaScopeBestEffort)
	other := newQuota(t, namespace, hard("pods", "5"), corev1.ResourceQuotaScopeNotBestEffort)
	api := client.CoreV1().Pods(namespace)
	for _, round := range []struct {
		pod              *corev1.Pod
		counted, ignored string
	}{
		{idle("besteffort", nil, nil), best, other},
		{idle("burstable", hard("cpu", "500m"), nil), other, best},
	} {
		got(api.Create(t.Context(), round.pod, metav1.CreateOptions{}))(t)
		awaitUsed(t, namespace, round.counted, "pods", "1")
		awaitUsed(t, namespace, round.ignored, "pods", "0")
		must(t, api.Delete(t.Context(), round.pod.Name, metav1.DeleteOptions{}))
		awaitUsed(t, namespace, round.counted, "pods", "0")
	}
}

func quotaOfTerminating(t *testing.T) {
	namespace := newNamespace(t)
	limits := hard("pods", "5", "requests.cpu", "1", "requests.memory", "500Mi", "limits.cpu", "2", "limits.memory", "1Gi")
	terminating := newQuota(t, namespace, limits, corev1.ResourceQuotaScopeTerminating)
	running := newQuota(t, namespace, limits, corev1.ResourceQuotaScopeNotTerminating)
	api := client.CoreV1().Pods(namespace)
	requests, maximum := hard("cpu", "500m", "memory", "200Mi"), hard("cpu", "1", "memory", "400Mi")
	bounded := idle("bounded", requests, maximum)
	bounded.Spec.ActiveDeadlineSeconds = new(int64(3600))
	for _, round := range []struct {
		pod              *corev1.Pod
		counted, ignored string
	}{{idle("unbounded", requests, maximum), running, terminating}, {bounded, terminating, running}} {
		got(api.Create(t.Context(), round.pod, metav1.CreateOptions{}))(t)
		awaitUsed(t, namespace, round.counted, "pods", "1", "requests.cpu", "500m", "requests.memory", "200Mi", "limits.cpu", "1", "limits.memory", "400Mi")
		awaitUsed(t, namespace, round.ignored, "pods", "0", "requests.cpu", "0", "limits.memory", "0")
		must(t, api.Delete(t.Context(), round.pod.Name, metav1.DeleteOptions{}))
		awaitUsed(t, namespace, round.counted, "pods", "0", "limits.cpu", "0")
	}
}
