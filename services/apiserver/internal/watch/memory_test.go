package watch_test

import (
	"fmt"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
)

// usualPod is of the size that controllers make.
func usualPod(i int) *corev1.Pod {
	pod := newPod(fmt.Sprintf("ns-%d", i%50), fmt.Sprintf("web-7d9c5b8f6d-%05d", i), fmt.Sprintf("n%d", i%500), "web")
	pod.Labels["pod-template-hash"], pod.UID = "7d9c5b8f6d", "0b4f9a52-1c1e-4d7a-9d1f-3f8c7f3f2a10"
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-7d9c5b8f6d", UID: pod.UID}}
	pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "controller-manager", Operation: "Update", APIVersion: "v1", FieldsV1: metav1.NewFieldsV1(string(make([]byte, 1800)))}}
	limits := corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("64Mi")}
	pod.Spec.Containers = []corev1.Container{{Name: "web", Image: "registry.example/web:v1.2.3", Resources: corev1.ResourceRequirements{Limits: limits, Requests: limits}, Env: []corev1.EnvVar{{Name: "A", Value: "some value"}}}}
	pod.Spec.RestartPolicy, pod.Spec.SchedulerName, pod.Spec.ServiceAccountName = "Always", "default-scheduler", "default"
	pod.Status.Phase, pod.Status.PodIP = "Running", fmt.Sprintf("10.244.%d.%d", i/250, i%250)
	for _, kind := range []corev1.PodConditionType{"Ready", "Initialized", "PodScheduled", "ContainersReady"} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: "True", LastTransitionTime: metav1.Now()})
	}
	return pod
}

// A cached object costs little more than its bytes, at the start and after every
// object was written.
func TestCachedObjectsCostAboutTheirBytes(t *testing.T) {
	const count = 4000
	store := newStore(t)
	writer := newCache(t, store, watch.Options{RingBytes: 1 << 16})
	for i := range count {
		pod := usualPod(i)
		if _, err := store.Create(t.Context(), storage.Put{Key: "/registry/pods/" + pod.Namespace + "/" + pod.Name, Value: encode(t, pod)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name   string
		before func()
	}{
		{"read from the store", func() {}},
		{"written", func() {
			for i := range count {
				pod := usualPod(i)
				have, err := writer.Get(t.Context(), pod.Namespace, pod.Name, watch.Versions{})
				if err != nil {
					t.Fatal(err)
				}
				mustUpdate(t, writer, pod, have.Revision)
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := heap()
			c := newCache(t, store, watch.Options{RingBytes: 1 << 16})
			test.before()
			used := heap() - before
			stats := c.Stats()
			ratio := float64(used) / float64(stats.Bytes)
			t.Logf("%d objects of %d bytes each take %d bytes each: %.2f times", stats.Objects, stats.Bytes/int64(stats.Objects), used/int64(stats.Objects), ratio)
			if ratio > 2 {
				t.Errorf("a cached object takes %.2f times its bytes", ratio)
			}
			runtime.KeepAlive(c)
		})
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
