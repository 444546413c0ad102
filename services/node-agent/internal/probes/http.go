package probes

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/lifecycle"
)

// httpProber succeeds with a status from 200 to 399.
type httpProber struct{}

func (httpProber) owns(probe *corev1.Probe) bool { return probe.HTTPGet != nil }

func (httpProber) probe(ctx context.Context, target Target, probe *corev1.Probe) Outcome {
	response, err := lifecycle.Get(ctx, probe.HTTPGet, target.Container, target.PodIP, "kube-probe")
	var refused *url.Error
	if errors.As(err, &refused) {
		return Outcome{Output: err.Error()}
	}
	if err != nil {
		return Outcome{Err: err}
	}
	const redirects, failures = 300, 400
	switch {
	case response.Code >= redirects && response.Code < failures:
		return Outcome{Success: true, Warning: true, Output: "Probe terminated redirects, Response body: " + response.Body}
	case response.Code >= 200 && response.Code < redirects:
		return Outcome{Success: true, Output: response.Body}
	}
	return Outcome{Output: fmt.Sprintf("HTTP probe failed with statuscode: %d", response.Code)}
}
