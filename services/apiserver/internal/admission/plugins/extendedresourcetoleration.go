package plugins

import (
	"context"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
)

// extendedResourceToleration lets pods that ask for a device onto the nodes that
// are tainted with the device's name to keep others away.
type extendedResourceToleration struct{ plugin }

func newExtendedResourceToleration(Config) admission.Plugin {
	return &extendedResourceToleration{plugin{"ExtendedResourceToleration", []admission.Operation{admission.Create, admission.Update}}}
}

// Admit implements admission.Mutator.
func (p *extendedResourceToleration) Admit(_ context.Context, a *admission.Attributes) error {
	pod := podOf(a)
	if pod == nil {
		return nil
	}
	devices := map[string]bool{}
	for _, container := range containersOf(pod) {
		for name := range container.Resources.Requests {
			if isExtended(string(name)) {
				devices[string(name)] = true
			}
		}
	}
	for _, device := range slices.Sorted(maps.Keys(devices)) {
		toleration := corev1.Toleration{Key: device, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}
		if !slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool { return t.MatchToleration(&toleration) }) {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, toleration)
		}
	}
	return nil
}

// isExtended says whether a resource is one that nodes advertise under a domain
// of their own.
func isExtended(name string) bool {
	domain, _, ok := strings.Cut(name, "/")
	return ok && !within(domain, "kubernetes.io") && !strings.HasPrefix(name, corev1.DefaultResourceRequestsPrefix)
}
