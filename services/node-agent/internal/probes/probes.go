// Package probes finds out whether containers have started, are alive and are
// ready, as their pods' authors say.
package probes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/lifecycle"
)

// Kind is what a probe asks.
type Kind string

// The kinds of probes.
const (
	Startup   Kind = "Startup"
	Liveness  Kind = "Liveness"
	Readiness Kind = "Readiness"
)

// Verdict is what is known of a container by a kind of probe.
type Verdict int

// Unknown is the verdict before enough tries have agreed.
const (
	Unknown Verdict = iota
	Success
	Failure
)

// Outcome is the result of one try.
type Outcome struct {
	Success bool
	Warning bool // a success that the author should know of
	Output  string
	Err     error // the try itself failed, and tells nothing of the container
}

// Target is a container that is probed.
type Target struct {
	Pod         *corev1.Pod
	Container   *corev1.Container
	ContainerID string // in the runtime
	PodIP       string
	StartedAt   time.Time
}

// prober does one try. There is one for each kind of handler.
type prober interface {
	owns(probe *corev1.Probe) bool
	probe(ctx context.Context, target Target, probe *corev1.Probe) Outcome
}

func probers(executor lifecycle.Executor) []prober {
	return []prober{execProber{executor}, httpProber{}, tcpProber{}, grpcProber{}}
}

func try(ctx context.Context, list []prober, target Target, probe *corev1.Probe) Outcome {
	timeout := time.Duration(max(1, probe.TimeoutSeconds)) * time.Second
	for _, p := range list {
		if !p.owns(probe) {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, timeout+slack(p))
		defer cancel()
		outcome := p.probe(ctx, target, probe)
		outcome.Output = clip(outcome.Output)
		return outcome
	}
	return Outcome{Err: errors.New("missing probe handler")}
}

// slack lets the runtime tell of a command's timeout itself.
func slack(p prober) time.Duration {
	if _, exec := p.(execProber); exec {
		return time.Second
	}
	return 0
}

// clip keeps events short.
func clip(output string) string {
	const most = 10 << 10
	if len(output) > most {
		output = output[:most]
	}
	if !utf8.ValidString(output) {
		output = strings.ToValidUTF8(output, "�")
	}
	return output
}

// tracker turns outcomes into a verdict. It is pure: it knows no clock.
type tracker struct {
	kind      Kind
	threshold struct{ success, failure int }
	verdict   Verdict
	last      Verdict // of the last tries
	run       int     // how many tries in a row had it
}

func newTracker(kind Kind, probe *corev1.Probe, initial Verdict) *tracker {
	t := &tracker{kind: kind, verdict: initial}
	t.threshold.success = int(max(1, probe.SuccessThreshold))
	t.threshold.failure = int(max(1, probe.FailureThreshold))
	return t
}

// observe counts a try and tells whether the verdict has changed by it. A try
// that failed itself counts for nothing.
func (t *tracker) observe(outcome Outcome) (changed bool) {
	if outcome.Err != nil {
		return false
	}
	now := Failure
	if outcome.Success {
		now = Success
	}
	if now == t.last {
		t.run++
	} else {
		t.last, t.run = now, 1
	}
	if (now == Success && t.run < t.threshold.success) || (now == Failure && t.run < t.threshold.failure) {
		return false
	}
	changed = t.verdict != now
	t.verdict = now
	return changed
}

// message is the text of the event for a try, "" for none.
func message(kind Kind, outcome Outcome) string {
	switch {
	case outcome.Err != nil:
		return fmt.Sprintf("%s probe errored and resulted in unknown state: %v", kind, outcome.Err)
	case !outcome.Success:
		return fmt.Sprintf("%s probe failed: %s", kind, outcome.Output)
	case outcome.Warning:
		return fmt.Sprintf("%s probe warning: %s", kind, outcome.Output)
	}
	return ""
}
