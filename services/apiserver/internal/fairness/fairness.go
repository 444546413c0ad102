// Package fairness divides the server's capacity between its clients: API
// priority and fairness (KEP-1040). A FlowSchema puts each request into a
// priority level and a flow; a level has a share of the seats, lends what it does
// not use, and serves its flows in turn, so that neither a flood of one client
// nor of one kind of client starves the others.
package fairness

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/utils/clock"
)

// Request is what classifies a request and how much it asks for.
type Request struct {
	Subject
	Attributes
	// Objects is how many objects the request reads; 0 if it reads one.
	Objects int
}

// Classification is the schema and the level that a request fell into.
type Classification struct {
	Schema, SchemaUID string
	Level, LevelUID   string
}

// Reasons of a refusal, as the metric's label names them.
const (
	ReasonQueueFull        = "queue-full"
	ReasonConcurrencyLimit = "concurrency-limit"
	ReasonTimeOut          = "time-out"
	ReasonCancelled        = "cancelled"
)

// RefusedError says that a request found no seat in time.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return "too many requests: " + e.Reason }

// Dispatcher hands out the seats.
//
// Lock order: a single mutex guards all levels; no method calls out with it.
type Dispatcher struct {
	clock   clock.PassiveClock
	metrics *Metrics
	// wait is the longest time that a request waits for a seat.
	wait time.Duration

	mu      sync.Mutex
	total   int // seats of all levels that are limited
	inUse   int // of those
	schemas []*flowSchema
	levels  map[string]*level
}

// New makes a dispatcher of that many seats, with the mandatory configuration
// until Configure brings another.
func New(seats int, wait time.Duration, metrics *Metrics, c clock.PassiveClock) *Dispatcher {
	d := &Dispatcher{clock: c, metrics: metrics, wait: wait, total: seats, levels: map[string]*level{}}
	d.Configure(mandatorySchemas(), mandatoryLevels())
	return d
}

// Configure takes new schemas and levels. What waits and runs in a level that
// stays goes on under the new limits; what waits in one that goes is served as
// its seats come free.
func (d *Dispatcher) Configure(schemas []*flowcontrolv1.FlowSchema, levels []*flowcontrolv1.PriorityLevelConfiguration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	shares := 0
	for _, configured := range levels {
		shares += int(nominalShares(configured))
	}
	kept := map[string]*level{}
	for _, configured := range levels {
		l := d.levels[configured.Name]
		if l == nil {
			l = &level{name: configured.Name, metrics: d.metrics}
		}
		l.configure(configured, d.total, shares)
		kept[l.name] = l
	}
	for name, l := range d.levels {
		if kept[name] == nil && l.waiting+l.inUse > 0 {
			l.retire()
			kept[name] = l
		}
	}
	d.levels = kept
	d.schemas = d.schemas[:0]
	for _, configured := range schemas {
		// A schema whose level is not there matches nothing.
		if l := kept[configured.Spec.PriorityLevelConfiguration.Name]; l != nil && !l.retired {
			d.schemas = append(d.schemas, &flowSchema{FlowSchema: configured, level: l})
		}
	}
	slices.SortFunc(d.schemas, func(a, b *flowSchema) int {
		if a.Spec.MatchingPrecedence != b.Spec.MatchingPrecedence {
			return int(a.Spec.MatchingPrecedence - b.Spec.MatchingPrecedence)
		}
		return strings.Compare(a.Name, b.Name)
	})
	d.dispatch()
}

// Acquire waits for a seat. The request runs until it calls release, which must
// be called once and may be called before the request ends: a watch gives its
// seat back when it has begun. It fails with a RefusedError, or with ctx's error.
func (d *Dispatcher) Acquire(ctx context.Context, request *Request) (classified Classification, release func(), err error) {
	d.mu.Lock()
	schema := d.classify(request)
	l := schema.level
	classified = Classification{Schema: schema.Name, SchemaUID: string(schema.UID), Level: l.name, LevelUID: l.uid}
	began := d.clock.Now()
	if l.exempt {
		l.inUse++
		d.mu.Unlock()
		d.metrics.started(classified, 1, 0)
		return classified, d.releaser(&ticket{level: l, seats: 1, exempt: true}, classified, began), nil
	}
	t := &ticket{level: l, seats: l.width(request.Objects), ready: make(chan struct{})}
	reason := l.enqueue(t, schema.flow(request))
	if reason == "" {
		d.dispatch()
		if l.queues == nil && !t.running {
			l.withdraw(t)
			reason = ReasonConcurrencyLimit
		}
	}
	d.mu.Unlock()
	if reason != "" {
		d.metrics.refused(classified, reason)
		return classified, nil, &RefusedError{Reason: reason}
	}
	if err := d.await(ctx, t); err != nil {
		var refused *RefusedError
		if errors.As(err, &refused) {
			d.metrics.refused(classified, refused.Reason)
		}
		return classified, nil, err
	}
	started := d.clock.Now()
	d.metrics.started(classified, t.seats, started.Sub(began))
	return classified, d.releaser(t, classified, started), nil
}

// await waits until the ticket runs.
func (d *Dispatcher) await(ctx context.Context, t *ticket) error {
	select {
	case <-t.ready:
		return nil
	default:
	}
	limit := time.NewTimer(d.wait)
	defer limit.Stop()
	reason := ReasonTimeOut
	select {
	case <-t.ready:
		return nil
	case <-limit.C:
	case <-ctx.Done():
		reason = ReasonCancelled
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if t.running { // the seat came at the same moment
		return nil
	}
	t.level.withdraw(t)
	return &RefusedError{Reason: reason}
}

func (d *Dispatcher) releaser(t *ticket, classified Classification, started time.Time) func() {
	var once sync.Once
	return func() {
		once.Do(func() {
			took := d.clock.Since(started)
			d.metrics.ended(classified, t.seats, took)
			d.mu.Lock()
			defer d.mu.Unlock()
			t.level.inUse -= t.seats
			if t.exempt {
				return
			}
			d.inUse -= t.seats
			t.level.finished(t, took)
			if t.level.retired && t.level.inUse+t.level.waiting == 0 {
				delete(d.levels, t.level.name)
			}
			d.dispatch()
		})
	}
}

// classify is the first schema that matches; the last one, catch-all, always does.
func (d *Dispatcher) classify(request *Request) *flowSchema {
	for _, schema := range d.schemas {
		if schema.matches(request) {
			return schema
		}
	}
	return &flowSchema{FlowSchema: mandatorySchemas()[1], level: d.levels[flowcontrolv1.PriorityLevelConfigurationNameCatchAll]}
}

// dispatch starts what may start: the level that uses least of its share first.
// Caller must hold mu.
func (d *Dispatcher) dispatch() {
	for {
		var next *level
		least := math.Inf(1)
		for _, l := range d.levels {
			if used := float64(l.inUse) / float64(max(l.nominal, 1)); l.waiting > 0 && used < least && d.fits(l) {
				next, least = l, used
			}
		}
		if next == nil {
			return
		}
		t := next.take()
		next.inUse += t.seats
		d.inUse += t.seats
		t.running = true
		close(t.ready)
	}
}

// fits says whether the level's next request may start. Up to what a level does
// not lend it always may; beyond, as long as every other level keeps free what
// it does not lend. A request that is wider than its level runs when it is alone.
func (d *Dispatcher) fits(l *level) bool {
	t := l.peek()
	if l.inUse == 0 || l.inUse+t.seats <= l.guaranteed() {
		return true
	}
	if l.inUse+t.seats > l.ceiling() {
		return false
	}
	free := d.total - d.inUse
	for _, other := range d.levels {
		if other != l && !other.exempt {
			free -= max(0, other.guaranteed()-other.inUse)
		}
	}
	return t.seats <= free
}
