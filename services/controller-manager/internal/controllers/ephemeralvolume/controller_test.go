package ephemeralvolume

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/sampan-io/sampan/services/controller-manager/internal/fakeapi"
)

func TestPodGetsItsClaimAndForeignOnesAreLeftAlone(t *testing.T) {
	template := &corev1.PersistentVolumeClaimTemplate{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}}
	ephemeral := func(name string) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: template}}}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p", UID: "u"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{ephemeral("scratch")}}}
	other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "q", UID: "w"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{ephemeral("scratch")}}}
	foreign := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "q-scratch"}}
	api := fakeapi.New(pod, other, foreign)
	env := api.Env(t)
	runner, err := New(env)
	if err != nil {
		t.Fatal(err)
	}
	fakeapi.Run(t, env, runner)
	err = wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, 20*time.Second, true, func(ctx context.Context) (bool, error) {
		claim, err := api.CoreV1().PersistentVolumeClaims("n").Get(ctx, "p-scratch", metav1.GetOptions{})
		return err == nil && metav1.IsControlledBy(claim, pod) && claim.Labels["a"] == "b", nil
	})
	if err != nil {
		t.Fatal(err)
	}
	claim, err := api.CoreV1().PersistentVolumeClaims("n").Get(t.Context(), "q-scratch", metav1.GetOptions{})
	if err != nil || len(claim.OwnerReferences) != 0 {
		t.Errorf("the claim of somebody else became %+v, %v", claim, err)
	}
}
