package probes

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sampan-io/sampan/services/node-agent/internal/lifecycle"
)

// Config is what a Set needs.
type Config struct {
	Executor lifecycle.Executor
	// Changed is told that a verdict on one of the pod's containers has changed.
	Changed func(uid types.UID)
	// Unhealthy is told of each try that did not succeed, with the event's reason.
	Unhealthy func(pod *corev1.Pod, container *corev1.Container, reason, message string)
	// Observed is told of each try, for metrics. It may be nil.
	Observed func(target Target, kind Kind, outcome Outcome)
}

// Set probes all containers that it is told of.
type Set struct {
	cfg     Config
	probers []prober

	mu         sync.Mutex
	containers map[string]*probed // by container id
	running    sync.WaitGroup
	base       context.Context
	stop       context.CancelFunc
}

// probed is a container under probing.
type probed struct {
	uid      types.UID
	verdicts map[Kind]Verdict
	has      map[Kind]bool
	cancel   context.CancelFunc
	liveness context.CancelFunc // ends the startup and liveness probes only
}

// New makes an empty set; Close ends it.
func New(cfg Config) *Set {
	base, stop := context.WithCancel(context.Background())
	return &Set{cfg: cfg, probers: probers(cfg.Executor), containers: map[string]*probed{}, base: base, stop: stop}
}

// Close ends all probes and waits for them.
func (s *Set) Close() {
	s.stop()
	s.running.Wait()
}

// Known is what an earlier run of the agent had found out of a container, so that
// a restart of the agent does not make it unready.
type Known struct{ Started, Ready bool }

// Start probes the container from now on. It may be called again.
func (s *Set) Start(target Target, known Known) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, already := s.containers[target.ContainerID]; already {
		return
	}
	c := target.Container
	if c.StartupProbe == nil && c.LivenessProbe == nil && c.ReadinessProbe == nil {
		return
	}
	ctx, cancel := context.WithCancel(s.base)
	liveCtx, endLive := context.WithCancel(ctx)
	p := &probed{uid: target.Pod.UID, verdicts: map[Kind]Verdict{}, has: map[Kind]bool{}, cancel: cancel, liveness: endLive}
	p.has[Startup], p.has[Liveness], p.has[Readiness] = c.StartupProbe != nil, c.LivenessProbe != nil, c.ReadinessProbe != nil
	if known.Started && p.has[Startup] {
		p.verdicts[Startup] = Success
	}
	if known.Ready && p.has[Readiness] {
		p.verdicts[Readiness] = Success
	}
	s.containers[target.ContainerID] = p
	s.running.Go(func() { s.run(ctx, liveCtx, target, p) })
}

// Verdict is what is known of a container. Of one without such a probe it is
// Success.
func (s *Set) Verdict(containerID string, kind Kind) Verdict {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, known := s.containers[containerID]
	if !known || !p.has[kind] {
		return Success
	}
	return p.verdicts[kind]
}

// Stop ends the probes of a container that has ended.
func (s *Set) Stop(containerID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, known := s.containers[containerID]; known {
		p.cancel()
		delete(s.containers, containerID)
	}
}

// StopLiveness ends the startup and liveness probes of a pod that is being
// stopped; readiness goes on.
func (s *Set) StopLiveness(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.containers {
		if p.uid == uid {
			p.liveness()
		}
	}
}

// Forget ends all probes of a pod.
func (s *Set) Forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, p := range s.containers {
		if p.uid == uid {
			p.cancel()
			delete(s.containers, id)
		}
	}
}

// run does the startup probe first, for the others wait for it.
func (s *Set) run(ctx, liveCtx context.Context, target Target, p *probed) {
	c := target.Container
	if c.StartupProbe != nil && s.Verdict(target.ContainerID, Startup) != Success {
		if !s.loop(liveCtx, target, p, Startup, c.StartupProbe) {
			return
		}
	}
	var group sync.WaitGroup
	if c.LivenessProbe != nil {
		group.Go(func() { s.loop(liveCtx, target, p, Liveness, c.LivenessProbe) })
	}
	if c.ReadinessProbe != nil {
		group.Go(func() { s.loop(ctx, target, p, Readiness, c.ReadinessProbe) })
	}
	group.Wait()
}

// loop tries until ctx ends; the startup probe ends with its first verdict, and
// returns whether it is success.
func (s *Set) loop(ctx context.Context, target Target, p *probed, kind Kind, probe *corev1.Probe) bool {
	s.mu.Lock()
	track := newTracker(kind, probe, p.verdicts[kind])
	s.mu.Unlock()
	plan := newSchedule(probe, target.StartedAt, time.Now(), kind)
	for {
		if lifecycle.Sleep(ctx, time.Until(plan.next)) != nil {
			return false
		}
		outcome := try(ctx, s.probers, target, probe)
		if ctx.Err() != nil {
			return false
		}
		if s.cfg.Observed != nil {
			s.cfg.Observed(target, kind, outcome)
		}
		early := plan.advance(time.Now(), outcome)
		if early && !outcome.Success {
			continue
		}
		s.report(target, kind, outcome)
		if !track.observe(outcome) {
			continue
		}
		s.record(target, p, kind, track.verdict)
		if kind == Startup || (kind == Liveness && track.verdict == Failure) {
			return track.verdict == Success
		}
	}
}

func (s *Set) record(target Target, p *probed, kind Kind, verdict Verdict) {
	s.mu.Lock()
	p.verdicts[kind] = verdict
	s.mu.Unlock()
	s.cfg.Changed(target.Pod.UID)
}

func (s *Set) report(target Target, kind Kind, outcome Outcome) {
	text := message(kind, outcome)
	if text == "" {
		return
	}
	reason := "Unhealthy"
	if outcome.Success {
		reason = "ProbeWarning"
	}
	s.cfg.Unhealthy(target.Pod, target.Container, reason, text)
}
