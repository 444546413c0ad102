package plugins

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
)

// taintNodes taints new nodes as not ready, so that no pod is put on them before
// their first report.
type taintNodes struct{ plugin }

func newTaintNodesByCondition(Config) admission.Plugin {
	return &taintNodes{plugin{"TaintNodesByCondition", []admission.Operation{admission.Create}}}
}

// Admit implements admission.Mutator.
func (p *taintNodes) Admit(_ context.Context, a *admission.Attributes) error {
	node, ok := a.Object.(*corev1.Node)
	if !ok || !is(a, corev1.Resource("nodes")) {
		return nil
	}
	taint := corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}
	if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&taint) }) {
		node.Spec.Taints = append(node.Spec.Taints, taint)
	}
	return nil
}
