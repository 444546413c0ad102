package nodelifecycle

import (
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// sign is the last sign of life of a node, by this process's clock: clocks of nodes
// are not trusted.
type sign struct {
	at    time.Time
	lease time.Time // renewTime that was seen
	beat  time.Time // lastHeartbeatTime of Ready that was seen
}

// look is the sign of life after a look at node and its lease, which may be nil.
func look(last sign, node *corev1.Node, lease *coordinationv1.Lease, now time.Time) sign {
	next := last
	if ready := condition(node, corev1.NodeReady); ready != nil && ready.Status != corev1.ConditionUnknown {
		next.beat = ready.LastHeartbeatTime.Time
	}
	if lease != nil && lease.Spec.RenewTime != nil {
		next.lease = lease.Spec.RenewTime.Time
	}
	if last.at.IsZero() || !next.lease.Equal(last.lease) || !next.beat.Equal(last.beat) {
		next.at = now
	}
	return next
}

func condition(node *corev1.Node, kind corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == kind {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}

func isTrue(c *corev1.NodeCondition) bool { return c != nil && c.Status == corev1.ConditionTrue }

// unknown is node with the conditions of its agent Unknown, and whether that is a
// change.
func unknown(node *corev1.Node, now time.Time) (*corev1.Node, bool) {
	next := node.DeepCopy()
	changed := false
	at := metav1.NewTime(now)
	for _, kind := range []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		c := condition(next, kind)
		switch {
		case c == nil:
			next.Status.Conditions = append(next.Status.Conditions, corev1.NodeCondition{
				Type: kind, Status: corev1.ConditionUnknown, Reason: "NodeStatusNeverUpdated", Message: "Kubelet never posted node status.",
				LastHeartbeatTime: node.CreationTimestamp, LastTransitionTime: at,
			})
			changed = true
		case c.Status != corev1.ConditionUnknown:
			c.Status, c.Reason, c.Message = corev1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status."
			c.LastTransitionTime = at
			changed = true
		}
	}
	return next, changed
}

// rule is a taint that this controller keeps while a condition has a status.
type rule struct {
	condition corev1.NodeConditionType
	status    corev1.ConditionStatus
	taint     string
	effects   []corev1.TaintEffect
}

func rules() []rule {
	noSchedule := []corev1.TaintEffect{corev1.TaintEffectNoSchedule}
	both := []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute}
	return []rule{
		{corev1.NodeReady, corev1.ConditionFalse, corev1.TaintNodeNotReady, both},
		{corev1.NodeReady, corev1.ConditionUnknown, corev1.TaintNodeUnreachable, both},
		{corev1.NodeMemoryPressure, corev1.ConditionTrue, corev1.TaintNodeMemoryPressure, noSchedule},
		{corev1.NodeDiskPressure, corev1.ConditionTrue, corev1.TaintNodeDiskPressure, noSchedule},
		{corev1.NodeNetworkUnavailable, corev1.ConditionTrue, corev1.TaintNodeNetworkUnavailable, noSchedule},
		{corev1.NodePIDPressure, corev1.ConditionTrue, corev1.TaintNodePIDPressure, noSchedule},
	}
}

// wantedTaints is the taints that node should have, and whether they differ from
// those that it has. Taints of others stay.
func wantedTaints(node *corev1.Node, now time.Time) ([]corev1.Taint, bool) {
	ours := map[string]bool{corev1.TaintNodeUnschedulable: true}
	wanted := []corev1.Taint{}
	for _, r := range rules() {
		ours[r.taint] = true
		c := condition(node, r.condition)
		holds := c != nil && c.Status == r.status
		if c == nil && r.condition == corev1.NodeReady && r.status == corev1.ConditionFalse {
			// It has not reported yet: it is not ready, but nothing is evicted.
			wanted = append(wanted, corev1.Taint{Key: r.taint, Effect: corev1.TaintEffectNoSchedule})
		}
		if !holds {
			continue
		}
		for _, effect := range r.effects {
			wanted = append(wanted, corev1.Taint{Key: r.taint, Effect: effect})
		}
	}
	if node.Spec.Unschedulable {
		wanted = append(wanted, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
	}
	var taints []corev1.Taint
	changed := false
	for _, t := range node.Spec.Taints {
		same := func(w corev1.Taint) bool { return w.MatchTaint(&t) }
		switch {
		case !ours[t.Key]:
			taints = append(taints, t)
		case slices.ContainsFunc(wanted, same):
			taints = append(taints, t) // with the time since when it is there
			wanted = slices.DeleteFunc(wanted, same)
		default:
			changed = true
		}
	}
	at := metav1.NewTime(now)
	for _, t := range wanted {
		changed = true
		if t.Effect == corev1.TaintEffectNoExecute {
			t.TimeAdded = &at
		}
		taints = append(taints, t)
	}
	return taints, changed
}
