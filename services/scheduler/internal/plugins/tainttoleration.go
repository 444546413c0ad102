package plugins

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"github.com/sampan-io/sampan/services/scheduler/internal/cluster"
	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
)

// taintToleration keeps pods off nodes whose taints they do not tolerate, and
// prefers nodes with fewer PreferNoSchedule taints that they do not tolerate.
type taintToleration struct{ untolerated *framework.Status }

func newTaintToleration(args []byte, _ framework.Handle) (framework.Plugin, error) {
	refused := refusal("TaintToleration", framework.UnschedulableAndUnresolvable, "node(s) had untolerated taint(s)")
	return taintToleration{refused}, none("TaintToleration", args)
}

func (taintToleration) Name() string { return "TaintToleration" }

// tolerates also understands the comparison operators Gt and Lt.
func tolerates(tolerations []corev1.Toleration, taint *corev1.Taint) bool {
	return corev1helpers.TolerationsTolerateTaint(klog.Background(), tolerations, taint, true)
}

func untolerated(pod *corev1.Pod, node *corev1.Node) bool {
	for i := range node.Spec.Taints {
		taint := &node.Spec.Taints[i]
		if taint.Effect != corev1.TaintEffectPreferNoSchedule && !tolerates(pod.Spec.Tolerations, taint) {
			return true
		}
	}
	return false
}

func (p taintToleration) Filter(_ context.Context, _ *framework.CycleState, pod *cluster.Pod, node *cluster.Node) *framework.Status {
	if untolerated(pod.Object, node.Object) {
		return p.untolerated
	}
	return nil
}

func (taintToleration) PreScore(_ context.Context, _ *framework.CycleState, _ *cluster.Pod, _ *cluster.Snapshot, nodes []*cluster.Node) *framework.Status {
	for _, node := range nodes {
		for i := range node.Object.Spec.Taints {
			if node.Object.Spec.Taints[i].Effect == corev1.TaintEffectPreferNoSchedule {
				return nil
			}
		}
	}
	return framework.NewStatus(framework.Skip) // all would score alike
}

func (taintToleration) Score(_ context.Context, _ *framework.CycleState, pod *cluster.Pod, node *cluster.Node) (int64, *framework.Status) {
	var count int64
	for i := range node.Object.Spec.Taints {
		taint := &node.Object.Spec.Taints[i]
		if taint.Effect == corev1.TaintEffectPreferNoSchedule && !tolerates(pod.Object.Spec.Tolerations, taint) {
			count++
		}
	}
	return count, nil
}

func (taintToleration) Normalize(_ context.Context, _ *framework.CycleState, _ *cluster.Pod, scores []framework.NodeScore) *framework.Status {
	return framework.DefaultNormalize(true, scores)
}

func (taintToleration) Interests() []framework.Interest {
	return []framework.Interest{{Resource: framework.NodeResource, Actions: framework.Add | framework.UpdateNodeTaints, Hint: func(pod *corev1.Pod, change framework.Change) bool {
		return !untolerated(pod, change.NewNode)
	}}}
}
