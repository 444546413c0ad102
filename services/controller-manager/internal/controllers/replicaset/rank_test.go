package replicaset

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

type podOption func(*corev1.Pod)

func newPod(name string, options ...podOption) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
		Spec:       corev1.PodSpec{NodeName: "node-" + name},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	ready(time.Hour)(pod)
	for _, option := range options {
		option(pod)
	}
	return pod
}

func ready(since time.Duration) podOption {
	return func(pod *corev1.Pod) {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-since))}}
	}
}

func notReady(pod *corev1.Pod)   { pod.Status.Conditions = nil }
func pending(pod *corev1.Pod)    { pod.Status.Phase = corev1.PodPending; pod.Status.Conditions = nil }
func unassigned(pod *corev1.Pod) { pending(pod); pod.Spec.NodeName = "" }

func on(node string) podOption { return func(pod *corev1.Pod) { pod.Spec.NodeName = node } }

func cost(n string) podOption {
	return func(pod *corev1.Pod) { pod.Annotations = map[string]string{corev1.PodDeletionCost: n} }
}

func restarted(n int32) podOption {
	return func(pod *corev1.Pod) { pod.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: n}} }
}

func created(ago time.Duration) podOption {
	return func(pod *corev1.Pod) { pod.CreationTimestamp = metav1.NewTime(now.Add(-ago)) }
}

// Each case lists pods in the order in which they must go.
func TestReplicaSetScaleDownOrder(t *testing.T) {
	for name, order := range map[string][]*corev1.Pod{
		"unassigned, pending, not ready, ready": {
			newPod("unassigned", unassigned), newPod("pending", pending), newPod("unready", notReady), newPod("ready"),
		},
		"lower deletion cost first, malformed counts as zero": {
			newPod("cheap", cost("-5")), newPod("plain", cost("much")), newPod("dear", cost("10")),
		},
		"not ready goes before a lower cost": {
			newPod("unready", notReady, cost("100")), newPod("cheap", cost("-100")),
		},
		"doubled-up nodes first": {
			newPod("crowded", on("x")), newPod("crowded", on("x")), newPod("alone", on("y")),
		},
		"ready for a shorter time first, by magnitude": {
			newPod("young", ready(time.Minute)), newPod("old", ready(24*time.Hour)),
		},
		"more restarts first": {
			newPod("crashing", restarted(7)), newPod("steady", restarted(0)),
		},
		"younger first": {
			newPod("young", notReady, created(time.Minute)), newPod("old", notReady, created(time.Hour)),
		},
	} {
		t.Run(name, func(t *testing.T) {
			shuffled := slices.Clone(order)
			slices.Reverse(shuffled)
			for count := range order {
				got := names(victims(shuffled, order, count, now))
				if want := names(order[:count]); !slices.Equal(got, want) {
					t.Errorf("of %d, gone are %v, want %v", count, got, want)
				}
			}
		})
	}
}

func names(pods []*corev1.Pod) []string {
	var all []string
	for _, pod := range pods {
		all = append(all, pod.Name)
	}
	return all
}

func TestReplicaSetScaleDownTakesCrowdOfSiblingsIntoAccount(t *testing.T) {
	mine := []*corev1.Pod{newPod("a", on("x")), newPod("b", on("y"))}
	sibling := newPod("other", on("y"))
	got := victims(mine, append(slices.Clone(mine), sibling), 1, now)
	if fmt.Sprint(names(got)) != "[b]" {
		t.Errorf("gone is %v, want the pod on the node that a pod of another ReplicaSet of the Deployment shares", names(got))
	}
}
