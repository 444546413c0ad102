package webhook

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// maxTimeouts is after how many timeouts in a row a webhook is no longer waited
// for.
const maxTimeouts = 3

// probeEvery is the pause between probes of a webhook that is not waited for.
const probeEvery = time.Second

// breaker stops waiting for a webhook that only times out: while it is open, a
// call fails at once instead of after the timeout, and the failure policy decides
// as it would have then. Probes close it.
type breaker struct {
	hook *hook
	kind string // of the configuration

	mu       sync.Mutex
	timeouts int  // in a row
	open     bool // Invariant: timeouts >= maxTimeouts
	dropped  bool // the webhook is no longer configured
	// probe is the review that probes ask; nil for a webhook with side effects, which
	// only real requests may reach.
	probe []byte
	tried time.Time // when a real request last went through an open breaker
}

func newBreaker(h *hook, kind string) *breaker { return &breaker{hook: h, kind: kind} }

// OpenError says that a webhook was not asked.
type OpenError struct {
	Webhook  string
	Timeouts int
}

// Error implements error.
func (e *OpenError) Error() string {
	return fmt.Sprintf("circuit breaker is open: %q did not answer in time %d times in a row (context deadline exceeded); it is probed every second", e.Webhook, e.Timeouts)
}

// allow is an *OpenError while the webhook is not waited for.
func (b *breaker) allow() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open {
		return nil
	}
	if now := time.Now(); b.probe == nil && now.Sub(b.tried) >= probeEvery {
		b.tried = now
		return nil
	}
	return &OpenError{Webhook: b.hook.Name, Timeouts: b.timeouts}
}

// timedOut counts a call that took all its time. The review is what probes may
// ask. It says whether the breaker has just opened.
func (b *breaker) timedOut(review func() []byte) (opened bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.timeouts++
	if b.open || b.dropped || b.timeouts < maxTimeouts {
		return false
	}
	b.open, b.tried, b.probe = true, time.Now(), review()
	return true
}

// answered notes a call that ended in time, however. It says whether the breaker
// has just closed.
func (b *breaker) answered() (closed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	closed = b.open
	b.timeouts, b.open, b.probe = 0, false, nil
	return closed
}

// drop ends the probes of a webhook that is no longer configured.
func (b *breaker) drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dropped, b.open, b.probe = true, false, nil
}

func (b *breaker) isOpen() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open
}

// probeOnce asks the webhook the question that it did not answer, as a dry run
// whose answer changes nothing, and says whether that closed the breaker.
func (b *breaker) probeOnce(ctx context.Context) (closed bool) {
	b.mu.Lock()
	review := b.probe
	b.mu.Unlock()
	if review == nil {
		return false
	}
	limited, cancel := context.WithTimeout(ctx, b.hook.timeout)
	defer cancel()
	_, err := b.hook.client.post(limited, review)
	if ctx.Err() != nil || errors.Is(limited.Err(), context.DeadlineExceeded) && err != nil {
		return false
	}
	return b.answered()
}
