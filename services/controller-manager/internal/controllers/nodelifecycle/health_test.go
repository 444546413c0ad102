package nodelifecycle

import (
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func newNode(ready corev1.ConditionStatus, more ...corev1.NodeCondition) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	if ready != "" {
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeReady, Status: ready})
	}
	node.Status.Conditions = append(node.Status.Conditions, more...)
	return node
}

func taints(node *corev1.Node) string {
	wanted, _ := wantedTaints(node, now)
	text := ""
	for _, t := range wanted {
		text += fmt.Sprintf("%s:%s ", t.Key, t.Effect)
	}
	return text
}

func TestNodeTaintsFollowConditions(t *testing.T) {
	for name, c := range map[string]struct {
		node *corev1.Node
		want string
	}{
		"ready":                 {newNode(corev1.ConditionTrue), ""},
		"not ready":             {newNode(corev1.ConditionFalse), "node.kubernetes.io/not-ready:NoSchedule node.kubernetes.io/not-ready:NoExecute "},
		"unreachable":           {newNode(corev1.ConditionUnknown), "node.kubernetes.io/unreachable:NoSchedule node.kubernetes.io/unreachable:NoExecute "},
		"new, has not reported": {newNode(""), "node.kubernetes.io/not-ready:NoSchedule "},
		"pressure": {newNode(corev1.ConditionTrue, corev1.NodeCondition{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionTrue}, corev1.NodeCondition{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse}),
			"node.kubernetes.io/memory-pressure:NoSchedule "},
	} {
		if got := taints(c.node); got != c.want {
			t.Errorf("%s: taints are %q, want %q", name, got, c.want)
		}
	}
	cordoned := newNode(corev1.ConditionTrue)
	cordoned.Spec.Unschedulable = true
	if got := taints(cordoned); got != "node.kubernetes.io/unschedulable:NoSchedule " {
		t.Errorf("cordoned: taints are %q", got)
	}
}

func TestNodeTaintsOfOthersAndTheirTimesStay(t *testing.T) {
	since := metav1.NewTime(now.Add(-time.Hour))
	node := newNode(corev1.ConditionUnknown)
	node.Spec.Taints = []corev1.Taint{
		{Key: "mine", Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute, TimeAdded: &since},
		{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute},
	}
	wanted, changed := wantedTaints(node, now)
	if !changed || len(wanted) != 3 || wanted[0].Key != "mine" || !wanted[1].TimeAdded.Equal(&since) || wanted[2].Effect != corev1.TaintEffectNoSchedule {
		t.Errorf("taints are %+v, changed %t", wanted, changed)
	}
	node.Spec.Taints = wanted
	if _, changed := wantedTaints(node, now); changed {
		t.Error("a second look changes them again")
	}
}

func TestNodeLivesByItsLeaseNotByItsClock(t *testing.T) {
	renewed := metav1.NewMicroTime(now.Add(-24 * time.Hour)) // the node's clock is a day late
	lease := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{RenewTime: &renewed}}
	first := look(sign{}, newNode(corev1.ConditionTrue), lease, now)
	if !first.at.Equal(now) {
		t.Errorf("first seen at %v", first.at)
	}
	silent := look(first, newNode(corev1.ConditionTrue), lease, now.Add(30*time.Second))
	if !silent.at.Equal(now) {
		t.Error("the same lease counts as a sign of life")
	}
	renewed = metav1.NewMicroTime(renewed.Add(10 * time.Second))
	alive := look(silent, newNode(corev1.ConditionTrue), lease, now.Add(40*time.Second))
	if !alive.at.Equal(now.Add(40 * time.Second)) {
		t.Error("a renewed lease is no sign of life")
	}
}

func TestSilentNodeTurnsUnknownOnce(t *testing.T) {
	next, changed := unknown(newNode(corev1.ConditionTrue), now)
	if !changed || condition(next, corev1.NodeReady).Status != corev1.ConditionUnknown || condition(next, corev1.NodeReady).Reason != "NodeStatusUnknown" ||
		condition(next, corev1.NodeDiskPressure).Reason != "NodeStatusNeverUpdated" {
		t.Errorf("conditions are %+v", next.Status.Conditions)
	}
	if _, changed := unknown(next, now.Add(time.Minute)); changed {
		t.Error("a node that is unknown is written again")
	}
}
