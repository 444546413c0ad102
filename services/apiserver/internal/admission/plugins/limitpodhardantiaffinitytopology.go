package plugins

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
)

// hardAntiAffinity refuses pods that keep others off more than their own node.
type hardAntiAffinity struct{ plugin }

func newLimitPodHardAntiAffinityTopology(Config) admission.Plugin {
	return &hardAntiAffinity{plugin{"LimitPodHardAntiAffinityTopology", []admission.Operation{admission.Create, admission.Update}}}
}

// Validate implements admission.Validator.
func (p *hardAntiAffinity) Validate(_ context.Context, a *admission.Attributes) error {
	pod := podOf(a)
	if pod == nil || pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return nil
	}
	for _, term := range pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
		if term.TopologyKey != corev1.LabelHostname {
			return fmt.Errorf("affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey %v but only key %v is allowed", term.TopologyKey, corev1.LabelHostname)
		}
	}
	return nil
}
