package quota_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
	"github.com/sampan-io/sampan/services/internal/quota"
)

// cluster is a server with a namespace.
type cluster struct {
	kubernetes.Interface
	t  testing.TB
	ns string
}

func start(t testing.TB, flags ...string) *cluster {
	t.Helper()
	c := &cluster{testserver.Start(t, flags...).Client, t, "blue"}
	if _, err := c.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: c.ns}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CoreV1().ServiceAccounts(c.ns).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return c
}

func list(pairs ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for _, pair := range pairs {
		name, value, _ := strings.Cut(pair, "=")
		out[corev1.ResourceName(name)] = resource.MustParse(value)
	}
	return out
}

// quota makes a quota whose status is as the controller makes it where nothing is
// used yet.
func (c *cluster) quota(name string, spec corev1.ResourceQuotaSpec) {
	c.t.Helper()
	created, err := c.CoreV1().ResourceQuotas(c.ns).Create(c.t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	created.Status = corev1.ResourceQuotaStatus{Hard: maps.Clone(spec.Hard), Used: corev1.ResourceList{}}
	for name := range spec.Hard {
		created.Status.Used[name] = resource.MustParse("0")
	}
	if _, err := c.CoreV1().ResourceQuotas(c.ns).UpdateStatus(c.t.Context(), created, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) assertUsed(name string, want corev1.ResourceList) {
	c.t.Helper()
	got, err := c.CoreV1().ResourceQuotas(c.ns).Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	if !quota.Equal(got.Status.Used, want) {
		c.t.Errorf("quota %s: used %s, want %s", name, quota.Format(got.Status.Used), quota.Format(want))
	}
}

func (c *cluster) configMap(ctx context.Context, name string) error {
	_, err := c.CoreV1().ConfigMaps(c.ns).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	return err
}

func newPod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	for _, f := range change {
		f(pod)
	}
	return pod
}

func requests(pairs ...string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.Containers[0].Resources.Requests = list(pairs...) }
}

func (c *cluster) pod(pod *corev1.Pod) error {
	_, err := c.CoreV1().Pods(c.ns).Create(c.t.Context(), pod, metav1.CreateOptions{})
	return err
}

func assertRefused(t testing.TB, err error, message string) {
	t.Helper()
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), message) {
		t.Errorf("got %v, want 403 with %q", err, message)
	}
}

// A hundred creates at a time, while others write to the quota: exactly as many
// succeed as the limit has room for.
func TestConcurrentCreatesNeverPassTheLimit(t *testing.T) {
	const limit, creates = 30, 100
	c := start(t)
	c.quota("q", corev1.ResourceQuotaSpec{Hard: list(fmt.Sprintf("count/configmaps=%d", limit))})
	c.quota("other", corev1.ResourceQuotaSpec{Hard: list("count/configmaps=1000")})
	ctx, stop := context.WithCancel(t.Context())
	var writers, creators sync.WaitGroup
	for writer := range 3 {
		writers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				patch := fmt.Sprintf(`{"metadata":{"annotations":{"writer-%d":"%d"}}}`, writer, n)
				_, _ = c.CoreV1().ResourceQuotas(c.ns).Patch(ctx, "q", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			}
		})
	}
	var stored, refused atomic.Int32
	for n := range creates {
		creators.Go(func() {
			switch err := c.configMap(t.Context(), fmt.Sprintf("m-%d", n)); {
			case err == nil:
				stored.Add(1)
			case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota: q, requested: count/configmaps=1, used: count/configmaps=30, limited: count/configmaps=30"):
				refused.Add(1)
			default:
				t.Errorf("create: %v", err)
			}
		})
	}
	creators.Wait()
	stop()
	writers.Wait()
	maps, err := c.CoreV1().ConfigMaps(c.ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if stored.Load() != limit || refused.Load() != creates-limit || len(maps.Items) != limit {
		t.Errorf("%d stored, %d refused, %d there; want %d and %d", stored.Load(), refused.Load(), len(maps.Items), limit, creates-limit)
	}
	c.assertUsed("q", list("count/configmaps=30"))
}

func TestQuotaCountsAnyKind(t *testing.T) {
	c := start(t)
	c.quota("q", corev1.ResourceQuotaSpec{Hard: list("count/deployments.apps=1", "secrets=1", "count/secrets=5")})
	deployment := func(name string) error {
		labels := map[string]string{"a": name}
		_, err := c.AppsV1().Deployments(c.ns).Create(t.Context(), &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: newPod("x").Spec,
			}},
		}, metav1.CreateOptions{})
		return err
	}
	secret := func(name string, options metav1.CreateOptions) error {
		_, err := c.CoreV1().Secrets(c.ns).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, options)
		return err
	}
	if err := deployment("one"); err != nil {
		t.Errorf("first deployment: %v", err)
	}
	assertRefused(t, deployment("two"), "exceeded quota: q, requested: count/deployments.apps=1, used: count/deployments.apps=1, limited: count/deployments.apps=1")
	if err := secret("dry", metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Errorf("a dry run: %v", err)
	}
	if err := secret("one", metav1.CreateOptions{}); err != nil {
		t.Errorf("first secret: %v", err)
	}
	assertRefused(t, secret("two", metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}), "exceeded quota")
	c.assertUsed("q", list("count/deployments.apps=1", "secrets=1", "count/secrets=1"))
}

func TestQuotaOfPods(t *testing.T) {
	c := start(t)
	c.quota("q", corev1.ResourceQuotaSpec{Hard: list("pods=3", "requests.cpu=1", "limits.memory=1Gi", "requests.example.com/gpu=2")})
	assertRefused(t, c.pod(newPod("silent")), "failed quota: q: must specify limits.memory for: c; requests.cpu for: c")
	fits := func(cpu, gpu string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{
				Requests: list("cpu="+cpu, "example.com/gpu="+gpu), Limits: list("memory=100Mi", "example.com/gpu="+gpu),
			}
		}
	}
	if err := c.pod(newPod("a", fits("600m", "1"))); err != nil {
		t.Fatal(err)
	}
	assertRefused(t, c.pod(newPod("b", fits("600m", "1"))), "exceeded quota: q, requested: requests.cpu=600m, used: requests.cpu=600m, limited: requests.cpu=1")
	assertRefused(t, c.pod(newPod("b", fits("100m", "2"))), "requests.example.com/gpu=2")
	c.assertUsed("q", list("pods=1", "requests.cpu=600m", "limits.memory=100Mi", "requests.example.com/gpu=1"))
}

func TestQuotaScopes(t *testing.T) {
	c := start(t)
	if _, err := c.SchedulingV1().PriorityClasses().Create(t.Context(), &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 9}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pods := list("pods=1")
	scope := func(names ...corev1.ResourceQuotaScope) corev1.ResourceQuotaSpec {
		return corev1.ResourceQuotaSpec{Hard: pods, Scopes: names}
	}
	selector := func(operator corev1.ScopeSelectorOperator, values ...string) corev1.ResourceQuotaSpec {
		return corev1.ResourceQuotaSpec{Hard: pods, ScopeSelector: &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{
			{ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: operator, Values: values},
		}}}
	}
	c.quota("terminating", scope(corev1.ResourceQuotaScopeTerminating))
	c.quota("best-effort", scope(corev1.ResourceQuotaScopeBestEffort))
	c.quota("high", selector(corev1.ScopeSelectorOpIn, "high"))
	c.quota("unclassed", selector(corev1.ScopeSelectorOpDoesNotExist))
	c.quota("across", scope(corev1.ResourceQuotaScopeCrossNamespacePodAffinity))
	if err := c.pod(newPod("plain")); err != nil {
		t.Fatal(err)
	}
	assertRefused(t, c.pod(newPod("second")), "exceeded quota: ")
	high := func(pod *corev1.Pod) { pod.Spec.PriorityClassName = "high" }
	if err := c.pod(newPod("high", high, requests("cpu=1m"))); err != nil {
		t.Error(err)
	}
	assertRefused(t, c.pod(newPod("high-2", high, requests("cpu=1m"))), "exceeded quota: high")
	for name, used := range map[string]string{"terminating": "pods=0", "best-effort": "pods=1", "high": "pods=1", "unclassed": "pods=1", "across": "pods=0"} {
		c.assertUsed(name, list(used))
	}
	// A deadline moves a pod into another scope.
	if _, err := c.CoreV1().Pods(c.ns).Patch(t.Context(), "high", types.MergePatchType, []byte(`{"spec":{"activeDeadlineSeconds":100}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	c.assertUsed("terminating", list("pods=1"))
	c.assertUsed("high", list("pods=1"))
}

func TestQuotaChargesUpdates(t *testing.T) {
	c := start(t)
	c.quota("q", corev1.ResourceQuotaSpec{Hard: list("services=5", "services.nodeports=1", "services.loadbalancers=0")})
	service, err := c.CoreV1().Services(c.ns).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	service.Spec.Type = corev1.ServiceTypeNodePort
	if service, err = c.CoreV1().Services(c.ns).Update(t.Context(), service, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.assertUsed("q", list("services=1", "services.nodeports=1", "services.loadbalancers=0"))
	service.Spec.Type = corev1.ServiceTypeLoadBalancer
	_, err = c.CoreV1().Services(c.ns).Update(t.Context(), service, metav1.UpdateOptions{})
	assertRefused(t, err, "exceeded quota: q, requested: services.loadbalancers=1, used: services.loadbalancers=0, limited: services.loadbalancers=0")
}

func TestUnknownUsageRefuses(t *testing.T) {
	c := start(t)
	c.quota("q", corev1.ResourceQuotaSpec{Hard: list("configmaps=5")})
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		q, err := c.CoreV1().ResourceQuotas(c.ns).Get(t.Context(), "q", metav1.GetOptions{})
		if err != nil {
			return err
		}
		q.Status.Used = nil
		_, err = c.CoreV1().ResourceQuotas(c.ns).UpdateStatus(t.Context(), q, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	assertRefused(t, c.configMap(t.Context(), "m"), "status unknown for quota: q, resources: configmaps")
}

// What the configuration limits needs a quota that covers it.
func TestLimitedResourcesNeedAQuota(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admission.yaml")
	config := `
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: ResourceQuota
  configuration:
    apiVersion: apiserver.config.k8s.io/v1
    kind: ResourceQuotaConfiguration
    limitedResources:
    - resource: pods
      matchContains: [requests.cpu]
    - resource: pods
      matchScopes:
      - {scopeName: CrossNamespacePodAffinity, operator: Exists}
`
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	c := start(t, "--admission-control-config-file="+path)
	if err := c.pod(newPod("free")); err != nil {
		t.Errorf("what is not limited: %v", err)
	}
	assertRefused(t, c.pod(newPod("a", requests("cpu=1"))), "insufficient quota to consume: requests.cpu")
	assertRefused(t, c.pod(newPod("far", func(pod *corev1.Pod) {
		pod.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{TopologyKey: "zone", Namespaces: []string{"other"}, LabelSelector: &metav1.LabelSelector{}},
		}}}
	})), "insufficient quota to match these scopes")
	c.quota("q", corev1.ResourceQuotaSpec{Hard: list("requests.cpu=1")})
	if err := c.pod(newPod("a", requests("cpu=1"))); err != nil {
		t.Errorf("with a quota: %v", err)
	}
}
