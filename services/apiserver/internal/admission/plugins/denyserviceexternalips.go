package plugins

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
)

// denyExternalIPs refuses new external IPs of Services, by which a user could
// take over traffic to any address (CVE-2020-8554).
type denyExternalIPs struct{ plugin }

func newDenyServiceExternalIPs(Config) admission.Plugin {
	return &denyExternalIPs{plugin{"DenyServiceExternalIPs", []admission.Operation{admission.Create, admission.Update}}}
}

// Validate implements admission.Validator. External IPs that are there may stay
// or go.
func (p *denyExternalIPs) Validate(_ context.Context, a *admission.Attributes) error {
	service, ok := a.Object.(*corev1.Service)
	if !ok || !is(a, corev1.Resource("services")) {
		return nil
	}
	var before []string
	if old, ok := a.OldObject.(*corev1.Service); ok {
		before = old.Spec.ExternalIPs
	}
	for _, ip := range service.Spec.ExternalIPs {
		if !slices.Contains(before, ip) {
			return errors.New("Use of external IPs is denied by admission control") //nolint:staticcheck // upstream's message
		}
	}
	return nil
}
