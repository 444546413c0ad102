package pvcprotection

import (
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/sampan-io/sampan/services/controller-manager/internal/fakeapi"
)

func TestUses(t *testing.T) {
	owner := types.UID("pod-uid")
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}}
	ephemeral := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "p-v", OwnerReferences: []metav1.OwnerReference{{UID: owner, Controller: new(true)}}}}
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: owner}, Spec: corev1.PodSpec{NodeName: "n", Volumes: []corev1.Volume{
			{Name: "claim", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}},
			{Name: "v", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
		}}}
		change(p)
		return p
	}
	for what, test := range map[string]struct {
		claim *corev1.PersistentVolumeClaim
		want  bool
		pod   func(*corev1.Pod)
	}{
		"a running pod":        {claim, true, func(*corev1.Pod) {}},
		"its ephemeral volume": {ephemeral, true, func(*corev1.Pod) {}},
		"another's claim":      {ephemeral, false, func(p *corev1.Pod) { p.UID = "other" }},
		"a pod without a node": {claim, false, func(p *corev1.Pod) { p.Spec.NodeName = "" }},
		"a pod that has ended": {claim, true, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }},
		"a pod that is being ended": {claim, true, func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(metav1.Now()), new(int64(30))
		}},
		"a pod that is as good as gone": {claim, false, func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(metav1.Now()), new(int64(0))
		}},
	} {
		if got := uses(pod(test.pod), test.claim); got != test.want {
			t.Errorf("%s: %v", what, got)
		}
	}
}

func TestClaimGoesWithItsLastPod(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "n", Name: "c", DeletionTimestamp: new(metav1.Now()), Finalizers: []string{protection, "other"},
	}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p"}, Spec: corev1.PodSpec{NodeName: "n", Volumes: []corev1.Volume{
		{Name: "claim", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}},
	}}}
	fresh := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "fresh"}}
	api := fakeapi.New(claim, pod, fresh)
	env := api.Env(t)
	runner, err := New(env)
	if err != nil {
		t.Fatal(err)
	}
	fakeapi.Run(t, env, runner)
	finalizers := func(name string) []string {
		got, err := api.CoreV1().PersistentVolumeClaims("n").Get(t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) { // without finalizers it is gone
			return nil
		}
		if err != nil {
			t.Fatal(err)
		}
		return got.Finalizers
	}
	await(t, "a claim is protected", func() bool { return slices.Contains(finalizers("fresh"), protection) })
	if !slices.Contains(finalizers("c"), protection) {
		t.Fatal("a claim went before its pod")
	}
	if err := api.CoreV1().Pods("n").Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "the claim is let go", func() bool { return slices.Equal(finalizers("c"), []string{"other"}) })
}

func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 2*time.Millisecond, 10*time.Second, true, func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}
