package resourcequota

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	metadatafake "k8s.io/client-go/metadata/fake"

	"github.com/sampan-io/sampan/services/controller-manager/internal/fakeapi"
	"github.com/sampan-io/sampan/services/internal/quota"
)

// kinds maps resources as discovery does.
type kinds struct{ *meta.DefaultRESTMapper }

func (kinds) Reset() {}

func newKinds() kinds {
	m := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"Pod", "ConfigMap", "Service", "PersistentVolumeClaim"} {
		m.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	return kinds{m}
}

func amounts(pairs map[string]string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for name, value := range pairs {
		list[corev1.ResourceName(name)] = resource.MustParse(value)
	}
	return list
}

func newPod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{
		{Name: "c", Resources: corev1.ResourceRequirements{Requests: amounts(map[string]string{"cpu": "100m"})}},
	}}}
	for _, f := range change {
		f(pod)
	}
	return pod
}

// run is a controller over objects; what is only counted is in counted.
func run(t *testing.T, counted []runtime.Object, objects ...runtime.Object) *fakeapi.API {
	t.Helper()
	api := fakeapi.New(objects...)
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	env := api.Env(t)
	env.Metadata, env.Mapper = metadatafake.NewSimpleMetadataClient(scheme, counted...), newKinds()
	runner, err := New(env)
	if err != nil {
		t.Fatal(err)
	}
	fakeapi.Run(t, env, runner)
	return api
}

func awaitUsed(t *testing.T, api *fakeapi.API, want map[string]string) {
	t.Helper()
	var got corev1.ResourceList
	err := wait.PollUntilContextTimeout(t.Context(), 2*time.Millisecond, 10*time.Second, true, func(ctx context.Context) (bool, error) {
		q, err := api.CoreV1().ResourceQuotas("n").Get(ctx, "q", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		got = q.Status.Used
		return quota.Equal(got, amounts(want)), nil
	})
	if err != nil {
		t.Fatalf("used %s, want %v: %v", quota.Format(got), want, err)
	}
}

func newQuota(hard map[string]string) *corev1.ResourceQuota {
	return &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: amounts(hard)}}
}

func configMaps(n int) []runtime.Object {
	var out []runtime.Object
	for i := range n {
		out = append(out, &metav1.PartialObjectMetadata{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: fmt.Sprint("m-", i)},
		})
	}
	return out
}

func TestNewQuotaIsCountedAtOnce(t *testing.T) {
	begin := time.Now()
	api := run(t, configMaps(3), newQuota(map[string]string{"pods": "5", "count/pods": "5", "requests.cpu": "1", "configmaps": "5", "count/widgets.example.com": "1", "requests.example.com/gpu": "1"}),
		newPod("a"), newPod("ended", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }),
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "elsewhere", Name: "b"}})
	awaitUsed(t, api, map[string]string{"pods": "1", "count/pods": "2", "requests.cpu": "100m", "configmaps": "3", "count/widgets.example.com": "0", "requests.example.com/gpu": "0"})
	if took := time.Since(begin); took > quiet {
		t.Errorf("it took %v", took)
	}
}

func TestUsageIsReplenished(t *testing.T) {
	api := run(t, nil, newQuota(map[string]string{"pods": "5"}), newPod("a"), newPod("b"))
	awaitUsed(t, api, map[string]string{"pods": "2"})
	if err := api.CoreV1().Pods("n").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitUsed(t, api, map[string]string{"pods": "1"})
	ended := newPod("b", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
	api.Write(t, corev1.SchemeGroupVersion.WithResource("pods"), ended)
	awaitUsed(t, api, map[string]string{"pods": "0"})
}

// A charge whose object never came is taken back, but not while the object may
// still be on its way.
func TestChargesThatCameToNothingAreTakenBack(t *testing.T) {
	charged := newQuota(map[string]string{"pods": "5"})
	charged.Status = corev1.ResourceQuotaStatus{Hard: maps.Clone(charged.Spec.Hard), Used: amounts(map[string]string{"pods": "4"})}
	begin := time.Now()
	api := run(t, nil, charged, newPod("a"))
	awaitUsed(t, api, map[string]string{"pods": "1"})
	if took := time.Since(begin); took < quiet {
		t.Errorf("it was taken back after %v", took)
	}
}
