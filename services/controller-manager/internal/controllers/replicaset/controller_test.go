package replicaset_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clienttesting "k8s.io/client-go/testing"

	"github.com/sampan-io/sampan/services/controller-manager/internal/controllers/replicaset"
	"github.com/sampan-io/sampan/services/controller-manager/internal/fakeapi"
)

func newSet(replicas int32) *appsv1.ReplicaSet {
	labels := map[string]string{"app": "web"}
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "set"},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
		},
	}
}

func mustRun(t *testing.T, api *fakeapi.API) (stop func()) {
	t.Helper()
	env := api.Env(t)
	runner, err := replicaset.New(env)
	if err != nil {
		t.Fatal(err)
	}
	return fakeapi.Run(t, env, runner)
}

func listPods(t *testing.T, api *fakeapi.API) []corev1.Pod {
	t.Helper()
	pods, err := api.CoreV1().Pods("default").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pods.Items
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(context.Background(), 2*time.Millisecond, 10*time.Second, true, func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		t.Fatalf("%s did not come about", what)
	}
}

func setReplicas(t *testing.T, api *fakeapi.API, n int32) {
	t.Helper()
	set, err := api.AppsV1().ReplicaSets("default").Get(context.Background(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	set = set.DeepCopy()
	set.Spec.Replicas = &n
	set.Generation++
	api.Write(t, appsv1.SchemeGroupVersion.WithResource("replicasets"), set)
}

func observed(t *testing.T, api *fakeapi.API, replicas int32) func() bool {
	return func() bool {
		t.Helper()
		set, err := api.AppsV1().ReplicaSets("default").Get(context.Background(), "web", metav1.GetOptions{})
		return err == nil && set.Status.Replicas == replicas && set.Status.ObservedGeneration == set.Generation
	}
}

func TestReplicaSetScalesUpAndDownExactly(t *testing.T) {
	api := fakeapi.New(newSet(20))
	mustRun(t, api)
	eventually(t, "20 replicas in the status", observed(t, api, 20))
	if made := api.Creates("pods"); made != 20 {
		t.Errorf("%d pods were made for 20 replicas", made)
	}
	pod := listPods(t, api)[0]
	if ref := metav1.GetControllerOf(&pod); ref == nil || ref.UID != "set" || pod.GenerateName != "web-" || pod.Labels["app"] != "web" {
		t.Errorf("pod is %+v", pod.ObjectMeta)
	}
	setReplicas(t, api, 3)
	eventually(t, "3 replicas in the status", observed(t, api, 3))
	if gone := api.Deletes("pods"); gone != 17 {
		t.Errorf("%d pods were deleted to come from 20 to 3", gone)
	}
}

func TestReplicaSetReplacesDeletedPod(t *testing.T) {
	api := fakeapi.New(newSet(2))
	mustRun(t, api)
	eventually(t, "2 replicas", observed(t, api, 2))
	victim := listPods(t, api)[0].Name
	if err := api.CoreV1().Pods("default").Delete(context.Background(), victim, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a third pod made", func() bool { return api.Creates("pods") == 3 })
	eventually(t, "2 pods", func() bool { return len(listPods(t, api)) == 2 })
}

// A controller that is killed between its writes must not make a pod too many when
// it, or another, starts over from a fresh list.
func TestReplicaSetNeverOvershootsAcrossKills(t *testing.T) {
	const wanted = 60
	api := fakeapi.New(newSet(wanted))
	var most atomic.Int64
	api.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		pods, err := api.Tracker().List(corev1.SchemeGroupVersion.WithResource("pods"), corev1.SchemeGroupVersion.WithKind("Pod"), "default")
		if err == nil {
			most.Store(max(most.Load(), int64(len(pods.(*corev1.PodList).Items))))
		}
		return false, nil, nil
	})
	for kill := 1; len(listPods(t, api)) < wanted && kill < 100; kill++ {
		stop := mustRun(t, api)
		before := api.Creates("pods")
		eventually(t, "some progress", func() bool { return api.Creates("pods") > before || len(listPods(t, api)) >= wanted })
		stop()
		if n := len(listPods(t, api)); n > wanted {
			t.Fatalf("%d pods for %d replicas after %d kills", n, wanted, kill)
		}
	}
	mustRun(t, api)
	eventually(t, "all replicas", observed(t, api, wanted))
	if n := len(listPods(t, api)); n != wanted {
		t.Errorf("%d pods for %d replicas", n, wanted)
	}
}

func TestReplicaSetAdoptsAndReleases(t *testing.T) {
	orphan := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "orphan", UID: "orphan", Labels: map[string]string{"app": "web"}}}
	foreign := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "foreign", UID: "foreign", Labels: map[string]string{"app": "web"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "another", UID: "another", Controller: new(true)}},
	}}
	api := fakeapi.New(newSet(1), orphan, foreign)
	mustRun(t, api)
	eventually(t, "the orphan to be adopted", func() bool {
		pod, err := api.CoreV1().Pods("default").Get(context.Background(), "orphan", metav1.GetOptions{})
		return err == nil && metav1.IsControlledBy(pod, &metav1.ObjectMeta{UID: "set"})
	})
	eventually(t, "1 replica in the status", observed(t, api, 1))
	if api.Creates("pods") != 0 || api.Deletes("pods") != 0 {
		t.Errorf("made %d and deleted %d pods though an orphan stood in", api.Creates("pods"), api.Deletes("pods"))
	}
	pod, err := api.CoreV1().Pods("default").Get(context.Background(), "orphan", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod = pod.DeepCopy()
	pod.Labels = map[string]string{"app": "quarantine"}
	api.Write(t, corev1.SchemeGroupVersion.WithResource("pods"), pod)
	eventually(t, "a pod in its place", func() bool { return api.Creates("pods") == 1 })
	eventually(t, "the pod to be released", func() bool {
		pod, err := api.CoreV1().Pods("default").Get(context.Background(), "orphan", metav1.GetOptions{})
		return err == nil && len(pod.OwnerReferences) == 0
	})
}

func TestReplicaSetReportsRefusedPods(t *testing.T) {
	api := fakeapi.New(newSet(5))
	var refuse atomic.Bool
	refuse.Store(true)
	var tries atomic.Int64
	api.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		if !refuse.Load() {
			return false, nil, nil
		}
		tries.Add(1)
		return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("exceeded quota"))
	})
	mustRun(t, api)
	failure := func() *appsv1.ReplicaSetCondition {
		set, err := api.AppsV1().ReplicaSets("default").Get(context.Background(), "web", metav1.GetOptions{})
		if err != nil {
			return nil
		}
		for i := range set.Status.Conditions {
			if set.Status.Conditions[i].Type == appsv1.ReplicaSetReplicaFailure {
				return &set.Status.Conditions[i]
			}
		}
		return nil
	}
	eventually(t, "condition ReplicaFailure", func() bool { return failure() != nil })
	if c := failure(); c.Reason != "FailedCreate" || c.Status != corev1.ConditionTrue {
		t.Errorf("condition is %+v", c)
	}
	if n := tries.Load(); n > 12 {
		t.Errorf("%d requests were sent into a wall of refusals", n)
	}
	refuse.Store(false)
	eventually(t, "5 replicas once they are allowed", observed(t, api, 5))
	eventually(t, "the condition to go", func() bool { return failure() == nil })
}
