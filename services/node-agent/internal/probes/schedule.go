package probes

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// schedule says when the next try is due. Regular tries come every period from
// the container's start and its initial delay on. Before its first success, and
// within the first period, a startup or readiness probe is tried early as well,
// after 100 ms and then ever less often: most containers are ready long before a
// period is over. An early try that fails counts for nothing.
type schedule struct {
	period  time.Duration
	regular time.Time // the next try that counts
	next    time.Time
	pause   time.Duration // until the next early try; 0 for none
}

const firstEarly = 100 * time.Millisecond

func newSchedule(probe *corev1.Probe, started, now time.Time, kind Kind) *schedule {
	const defaultPeriod = 10
	period := time.Duration(probe.PeriodSeconds) * time.Second
	if period <= 0 {
		period = defaultPeriod * time.Second
	}
	begin := started.Add(time.Duration(probe.InitialDelaySeconds) * time.Second)
	s := &schedule{period: period, next: begin, regular: begin}
	if begin.Before(now) { // taken over from an earlier run, or the startup probe took its time
		s.next, s.regular = now, now
	}
	if kind == Liveness {
		return s
	}
	s.pause, s.regular = firstEarly, s.next.Add(period)
	return s
}

// advance plans the try after this one and tells whether this one was early.
func (s *schedule) advance(now time.Time, outcome Outcome) (early bool) {
	early = s.next.Before(s.regular)
	if outcome.Success || !early {
		s.pause = 0
	}
	if !early || outcome.Success {
		s.regular = s.next.Add(s.period)
		if s.regular.Before(now) { // a try that took longer than the period
			s.regular = now
		}
	}
	s.next = s.regular
	if s.pause > 0 {
		if at := now.Add(s.pause); at.Before(s.regular) {
			s.next = at
		}
		s.pause = min(2*s.pause, time.Second)
	}
	return early
}
