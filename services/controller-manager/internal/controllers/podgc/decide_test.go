package podgc

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func newPod(name, node string, change func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: node}}
	if change != nil {
		change(pod)
	}
	return pod
}

func deleted(pod *corev1.Pod) {
	at := metav1.NewTime(now)
	pod.DeletionTimestamp = &at
}

func reasons(removals []removal) []string {
	var all []string
	for _, r := range removals {
		all = append(all, fmt.Sprintf("%s: %s, fail %t", r.pod.Name, r.reason, r.fail))
	}
	slices.Sort(all)
	return all
}

func TestPodsOfNodesThatStayGoneAreRemoved(t *testing.T) {
	pods := []*corev1.Pod{newPod("orphan", "gone", nil), newPod("fine", "here", nil), newPod("waiting", "", nil), newPod("never-ran", "", deleted)}
	nodes := []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "here"}}}
	missing := map[string]time.Time{}
	first := reasons(decide(pods, nodes, missing, 0, now))
	if want := []string{"never-ran: deleted before it had a node, fail true"}; !slices.Equal(first, want) {
		t.Errorf("at first %v are removed, want %v", first, want)
	}
	later := reasons(decide(pods, nodes, missing, 0, now.Add(quarantine)))
	if want := []string{"never-ran: deleted before it had a node, fail true", "orphan: node is gone, fail true"}; !slices.Equal(later, want) {
		t.Errorf("later %v are removed, want %v", later, want)
	}
	back := append(nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gone"}})
	decide(pods, back, missing, 0, now.Add(quarantine))
	if len(missing) != 0 {
		t.Errorf("a node that is back is still counted as missing: %v", missing)
	}
}

func TestOldestEndedPodsBeyondTheThresholdAreRemoved(t *testing.T) {
	nodes := []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n"}}}
	var pods []*corev1.Pod
	for i := range 5 {
		pods = append(pods, newPod(fmt.Sprint("ended-", i), "n", func(pod *corev1.Pod) {
			pod.CreationTimestamp = metav1.NewTime(now.Add(time.Duration(i) * time.Minute))
			pod.Status.Phase = corev1.PodSucceeded
			if i == 4 {
				pod.Status.Phase, pod.Status.Reason = corev1.PodFailed, "Evicted"
			}
		}))
	}
	got := reasons(decide(pods, nodes, map[string]time.Time{}, 3, now))
	if want := []string{"ended-0: too many ended pods, fail false", "ended-4: too many ended pods, fail false"}; !slices.Equal(got, want) {
		t.Errorf("%v are removed, want %v", got, want)
	}
	if got := decide(pods, nodes, map[string]time.Time{}, 0, now); len(got) != 0 {
		t.Errorf("without a threshold %v are removed", reasons(got))
	}
}
