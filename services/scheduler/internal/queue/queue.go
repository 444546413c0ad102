// Package queue holds the pods that wait for a node: those to try now, those that
// back off after a refusal, and those that wait for a change in the cluster that
// may help them.
package queue

import (
	"container/heap"
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"

	"github.com/sampan-io/sampan/services/scheduler/internal/cluster"
	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
)

// Names of the parts, as metrics have them.
const (
	Active        = "active"
	Backoff       = "backoff"
	Unschedulable = "unschedulable"
	Gated         = "gated"
)

// Events of the queue's own.
const (
	eventPodAdd          = "PodAdd"
	eventPodUpdate       = "PodUpdate"
	eventAttemptFailure  = "ScheduleAttemptFailure"
	eventBackoffComplete = "BackoffComplete"
	eventTimeout         = "UnschedulableTimeout"
)

// A pod that waits for longer than maxUnschedulable is tried again though nothing
// changed; that is looked at every sweepPeriod.
const (
	maxUnschedulable = 5 * time.Minute
	sweepPeriod      = 30 * time.Second
)

// Options says how pods back off, and who wants to know.
type Options struct {
	InitialBackoff time.Duration
	MaxBackoff     time.Duration
	Clock          clock.WithTicker
	// Incoming is told which part a pod comes into and why.
	Incoming func(queue, event string)
}

// Queue is safe for concurrent use.
//
//	Add ──> active ──Pop──> in flight ──Refused──> unschedulable ──Change──> backoff ──time──> active
//	        gated (PreEnqueue) ──update──> active
type Queue struct {
	options  Options
	profiles map[string]*framework.Profile

	mu            sync.Mutex
	ready         *sync.Cond // active or backoff has a pod, or the queue is closed
	closed        bool
	active        *podHeap
	backoff       *podHeap                           // refused, and something changed since: tried early when nothing else waits
	faulted       *podHeap                           // a fault of a plugin or of the API: these wait their time
	unschedulable map[types.UID]*framework.QueuedPod // and gated ones
	flying        map[types.UID]*flight
	changes       []framework.Change // since the oldest pod in flight was popped
	firstChange   int                // number of changes[0]
	wake          chan struct{}      // tells Run that backoff has a new first pod
}

// flight is a pod that is being scheduled.
type flight struct {
	queued *framework.QueuedPod
	since  int         // number of the first change after it was popped
	update *corev1.Pod // newest version seen meanwhile
	gone   bool
}

// New has no pods. Profiles are by scheduler name; the QueueSort of any of them
// orders.
func New(profiles map[string]*framework.Profile, options Options) *Queue {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.Incoming == nil {
		options.Incoming = func(string, string) {}
	}
	var sort framework.QueueSort
	for _, profile := range profiles {
		sort = profile.QueueSort
	}
	q := &Queue{
		options: options, profiles: profiles, unschedulable: map[types.UID]*framework.QueuedPod{},
		flying: map[types.UID]*flight{}, wake: make(chan struct{}, 1),
	}
	q.ready = sync.NewCond(&q.mu)
	q.active = newHeap(func(a, b *framework.QueuedPod) int { return sort.Compare(a, b) })
	byEnd := func(a, b *framework.QueuedPod) int { return q.backoffEnd(a).Compare(q.backoffEnd(b)) }
	q.backoff, q.faulted = newHeap(byEnd), newHeap(byEnd)
	return q
}

// backoffEnd is when queued may be tried again: the initial pause, doubled for each
// try, up to the longest.
func (q *Queue) backoffEnd(queued *framework.QueuedPod) time.Time {
	if queued.Attempts == 0 {
		return queued.Timestamp
	}
	pause := q.options.InitialBackoff
	for i := 1; i < queued.Attempts && pause < q.options.MaxBackoff; i++ {
		pause *= 2
	}
	return queued.Timestamp.Add(min(pause, q.options.MaxBackoff))
}

// Add takes in a pod that is not on a node. Adding one that is known updates it.
func (q *Queue) Add(pod *cluster.Pod) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.known(pod.Object.UID) {
		q.update(nil, pod)
		return
	}
	q.enqueue(&framework.QueuedPod{Pod: pod, Timestamp: q.options.Clock.Now()}, eventPodAdd)
}

func (q *Queue) known(uid types.UID) bool {
	return q.active.has(uid) || q.backoff.has(uid) || q.faulted.has(uid) || q.unschedulable[uid] != nil || q.flying[uid] != nil
}

// enqueue makes queued ready to be tried, unless a PreEnqueue plugin holds it.
// Caller must hold mu.
func (q *Queue) enqueue(queued *framework.QueuedPod, event string) {
	if q.gate(queued) {
		q.unschedulable[queued.Object.UID] = queued
		q.options.Incoming(Gated, event)
		return
	}
	heap.Push(q.active, queued)
	q.options.Incoming(Active, event)
	q.ready.Signal()
}

func (q *Queue) gate(queued *framework.QueuedPod) bool {
	queued.Gated = false
	profile := q.profiles[queued.Object.Spec.SchedulerName]
	if profile == nil {
		return false
	}
	if status := profile.RunPreEnqueue(context.Background(), queued.Pod); !status.OK() {
		queued.Gated = true
		queued.Refusers = sets.New(status.Plugin)
	}
	return queued.Gated
}

// Update notes that a pod that is not on a node has changed from old.
func (q *Queue) Update(old *corev1.Pod, pod *cluster.Pod) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.known(pod.Object.UID) {
		q.enqueue(&framework.QueuedPod{Pod: pod, Timestamp: q.options.Clock.Now()}, eventPodUpdate)
		return
	}
	q.update(old, pod)
}

func (q *Queue) update(old *corev1.Pod, pod *cluster.Pod) {
	uid := pod.Object.UID
	if flight := q.flying[uid]; flight != nil {
		flight.update = pod.Object
		return
	}
	if q.active.replace(pod) || q.backoff.replace(pod) || q.faulted.replace(pod) {
		return
	}
	queued := q.unschedulable[uid]
	queued.Pod = pod
	if old != nil && !changesPlacement(old, pod.Object) {
		return
	}
	if queued.Gated {
		if !q.gate(queued) {
			delete(q.unschedulable, uid)
			queued.Timestamp = q.options.Clock.Now()
			q.enqueue(queued, eventPodUpdate)
		}
		return
	}
	delete(q.unschedulable, uid)
	q.release(queued, eventPodUpdate)
}

// Remove forgets a pod: it is gone, or on a node.
func (q *Queue) Remove(uid types.UID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if flight := q.flying[uid]; flight != nil {
		flight.gone = true
	}
	q.active.remove(uid)
	q.backoff.remove(uid)
	q.faulted.remove(uid)
	delete(q.unschedulable, uid)
}

// Pop waits for the next pod to try: an active one, or when there is none, the one
// that has backed off for longest of those that a change may help. It is in flight until Refused or Done. ok is
// false when ctx has ended.
func (q *Queue) Pop(ctx context.Context) (queued *framework.QueuedPod, ok bool) {
	stop := context.AfterFunc(ctx, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.closed = true
		q.ready.Broadcast()
	})
	defer stop()
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.active.Len()+q.backoff.Len() == 0 && !q.closed && ctx.Err() == nil {
		q.ready.Wait()
	}
	if q.closed || ctx.Err() != nil {
		return nil, false
	}
	from := q.active
	if from.Len() == 0 {
		from = q.backoff
	}
	queued = heap.Pop(from).(*framework.QueuedPod)
	queued.Attempts++
	if queued.First.IsZero() {
		queued.First = q.options.Clock.Now()
	}
	q.flying[queued.Object.UID] = &flight{queued: queued, since: q.firstChange + len(q.changes)}
	return queued, true
}

// Done ends the flight of a pod that needs no further try.
func (q *Queue) Done(uid types.UID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.land(uid)
}

// land ends a flight and drops the changes that no flight needs any more.
func (q *Queue) land(uid types.UID) *flight {
	ended := q.flying[uid]
	delete(q.flying, uid)
	oldest := q.firstChange + len(q.changes)
	for _, other := range q.flying {
		oldest = min(oldest, other.since)
	}
	if drop := oldest - q.firstChange; drop > 0 {
		q.changes = append([]framework.Change(nil), q.changes[drop:]...)
		q.firstChange = oldest
	}
	return ended
}

// Refused puts a pod in flight back. By is the plugins that refused it; none means
// a fault, after which it only backs off. A change that came during the flight and
// may help counts as if it came now.
func (q *Queue) Refused(queued *framework.QueuedPod, by sets.Set[string]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	uid := queued.Object.UID
	var meanwhile []framework.Change
	if flight := q.flying[uid]; flight != nil {
		meanwhile = q.changes[flight.since-q.firstChange:]
	}
	ended := q.land(uid)
	if ended == nil || ended.gone {
		return
	}
	changed := false
	if ended.update != nil {
		if pod, err := cluster.NewPod(ended.update); err == nil {
			changed = changesPlacement(queued.Object, ended.update) // what was refused is not what is asked for now
			queued.Pod = pod
		}
	}
	queued.Timestamp = q.options.Clock.Now()
	queued.Refusers = by
	if len(by) == 0 || changed || q.anyHelps(queued, meanwhile) {
		q.release(queued, eventAttemptFailure)
		return
	}
	q.unschedulable[uid] = queued
	q.options.Incoming(Unschedulable, eventAttemptFailure)
}

// release lets queued be tried again once it has backed off. Caller must hold mu.
func (q *Queue) release(queued *framework.QueuedPod, event string) {
	if q.backoffEnd(queued).After(q.options.Clock.Now()) {
		pause := q.backoff
		if len(queued.Refusers) == 0 {
			pause = q.faulted
		}
		heap.Push(pause, queued)
		q.options.Incoming(Backoff, event)
		q.ready.Signal()
		select {
		case q.wake <- struct{}{}:
		default:
		}
		return
	}
	q.enqueue(queued, event)
}

// Change tells of a change in the cluster: pods that it may help are tried again.
func (q *Queue) Change(change framework.Change) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.flying) > 0 {
		q.changes = append(q.changes, change)
	} else {
		q.firstChange++
	}
	for uid, queued := range q.unschedulable {
		if queued.Gated && change.Resource != framework.UnscheduledPod || !q.helps(queued, change) {
			continue
		}
		delete(q.unschedulable, uid)
		q.release(queued, change.Label)
	}
}

func (q *Queue) anyHelps(queued *framework.QueuedPod, changes []framework.Change) bool {
	for _, change := range changes {
		if q.helps(queued, change) {
			return true
		}
	}
	return false
}

// helps asks the plugins that refused queued.
func (q *Queue) helps(queued *framework.QueuedPod, change framework.Change) bool {
	profile := q.profiles[queued.Object.Spec.SchedulerName]
	if profile == nil {
		return false
	}
	for name := range queued.Refusers {
		plugin := profile.Plugins[name]
		if plugin == nil || framework.Helps(plugin, queued.Object, change) {
			return true
		}
	}
	return false
}

// Run moves pods whose pause is over, until ctx ends.
func (q *Queue) Run(ctx context.Context) {
	sweep := q.options.Clock.NewTicker(sweepPeriod)
	defer sweep.Stop()
	for {
		next := q.flush()
		var timer clock.Timer
		var due <-chan time.Time
		if next > 0 {
			timer = q.options.Clock.NewTimer(next)
			due = timer.C()
		}
		select {
		case <-ctx.Done():
		case <-due:
		case <-q.wake:
		case <-sweep.C():
			q.sweep()
		}
		if timer != nil {
			timer.Stop()
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// flush moves what has backed off to active; it returns how long until the next.
func (q *Queue) flush() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.options.Clock.Now()
	next := time.Duration(0)
	for _, pause := range []*podHeap{q.backoff, q.faulted} {
		for pause.Len() > 0 {
			first := pause.pods[0]
			if wait := q.backoffEnd(first).Sub(now); wait > 0 {
				if next == 0 || wait < next {
					next = wait
				}
				break
			}
			heap.Pop(pause)
			q.enqueue(first, eventBackoffComplete)
		}
	}
	return next
}

func (q *Queue) sweep() {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.options.Clock.Now()
	for uid, queued := range q.unschedulable {
		if !queued.Gated && now.Sub(queued.Timestamp) > maxUnschedulable {
			delete(q.unschedulable, uid)
			q.release(queued, eventTimeout)
		}
	}
}

// Counts is how many pods are in each part.
func (q *Queue) Counts() map[string]int {
	q.mu.Lock()
	defer q.mu.Unlock()
	gated := 0
	for _, queued := range q.unschedulable {
		if queued.Gated {
			gated++
		}
	}
	return map[string]int{
		Active: q.active.Len(), Backoff: q.backoff.Len() + q.faulted.Len(), Unschedulable: len(q.unschedulable) - gated, Gated: gated,
	}
}

// Where says in which part the pod of that UID is, and how often it was tried.
// Part is "scheduling" in flight, and empty for a pod that is not known.
func (q *Queue) Where(uid types.UID) (part string, attempts int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.flying[uid] != nil:
		return "scheduling", q.flying[uid].queued.Attempts
	case q.active.has(uid):
		return Active, q.active.pods[q.active.at[uid]].Attempts
	case q.backoff.has(uid):
		return Backoff, q.backoff.pods[q.backoff.at[uid]].Attempts
	case q.faulted.has(uid):
		return Backoff, q.faulted.pods[q.faulted.at[uid]].Attempts
	case q.unschedulable[uid] != nil && q.unschedulable[uid].Gated:
		return Gated, q.unschedulable[uid].Attempts
	case q.unschedulable[uid] != nil:
		return Unschedulable, q.unschedulable[uid].Attempts
	}
	return "", 0
}
