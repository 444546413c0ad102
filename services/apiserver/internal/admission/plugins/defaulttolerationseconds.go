package plugins

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
)

const defaultTolerationSeconds = 300

// tolerationSeconds lets pods stay for a while on a node that is not ready or not
// reachable.
type tolerationSeconds struct {
	plugin
	notReady, unreachable int64
}

func newDefaultTolerationSeconds(config Config) admission.Plugin {
	p := &tolerationSeconds{
		plugin{"DefaultTolerationSeconds", []admission.Operation{admission.Create, admission.Update}},
		config.NotReadySeconds, config.UnreachableSeconds,
	}
	if p.notReady == 0 {
		p.notReady = defaultTolerationSeconds
	}
	if p.unreachable == 0 {
		p.unreachable = defaultTolerationSeconds
	}
	return p
}

// Admit implements admission.Mutator.
func (p *tolerationSeconds) Admit(_ context.Context, a *admission.Attributes) error {
	pod := podOf(a)
	if pod == nil {
		return nil
	}
	tolerate(pod, corev1.TaintNodeNotReady, p.notReady)
	tolerate(pod, corev1.TaintNodeUnreachable, p.unreachable)
	return nil
}

// tolerate adds a toleration of the taint unless the pod has one.
func tolerate(pod *corev1.Pod, taint string, seconds int64) {
	for _, t := range pod.Spec.Tolerations {
		if (t.Key == taint || t.Key == "") && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == "") {
			return
		}
	}
	pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{
		Key: taint, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(seconds),
	})
}
