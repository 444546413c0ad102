package podworker

import (
	corev1 "k8s.io/api/core/v1"

	"time"

	"github.com/sampan-io/sampan/services/node-agent/internal/status"
)

const (
	living   stage = iota // containers run, or will
	stopping              // they are being stopped for good
	stopped               // none runs; what they used is being given back
	settled               // all has been given back; the pod's object is still there
)

// worker runs one pod. The fields below mu are its mailbox; the others belong to
// its goroutine.
type worker struct {
	*Workers
	uid  types.UID
	wake chan struct{}

	mu       sync.Mutex
	pod      *corev1.Pod
	gone     bool            // from its source
	dirty    bool            // the runtime may have something new
	evicted  *status.End     // asked for from outside
	again    bool            // what waits for a retry need not wait any longer
	results  []func()        // of jobs, to be run by the worker's goroutine
	seen     cri.Pod         // what the runtime had when it was last asked
	others   []*corev1.Pod   // the node's other pods when this one came
	static   bool            // it comes from a file of this node
	starting map[string]bool // containers by id whose hook after the start goes on
	told     map[string]bool // containers by id that have been told to stop, hook and event included

	runtime  cri.Pod
	asked    bool // runtime is known
	admitted bool
	stage    stage
	end      *status.End
	finished bool
	began    time.Time // when this worker first saw the pod
	started  bool      // all containers have been started once

	job      *job // starts things, or stops them
	kills    map[string]bool
	failures map[string]hold // why containers could not be started, by name
	restarts *backoff.Map
	pulls    *pulling.State
	messages map[string]string // termination messages by container id
	paused   map[string]bool   // containers by id whose back-off has been told of
	retryAt  time.Time
	pause    time.Duration
	over     bool // nothing is left to do; guarded by Workers.mu after run has returned
}

func (w *worker) update(pod *corev1.Pod) {
	w.mu.Lock()
	w.pod = pod
	w.mu.Unlock()
	w.ring()
}

func (w *worker) remove() {
	w.mu.Lock()
	w.gone = true
	w.mu.Unlock()
	w.ring()
}

func (w *worker) touch(dirty bool) {
	w.mu.Lock()
	w.dirty = w.dirty || dirty
	w.mu.Unlock()
	w.ring()
}

func (w *worker) retry() {
	w.mu.Lock()
	w.again = true
	w.mu.Unlock()
	w.ring()
}

func (w *worker) evict(end status.End) {
	w.mu.Lock()
	w.evicted = &end
	w.mu.Unlock()
	w.ring()
}

// finish hands a job's result to the worker's goroutine.
func (w *worker) finish(result func()) {
	w.mu.Lock()
	w.results = append(w.results, result)
	w.dirty = true
	w.mu.Unlock()
	w.ring()
}

func (w *worker) current() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pod
}

func (w *worker) state() State {
	w.mu.Lock()
	defer w.mu.Unlock()
	return State{Pod: w.pod, Runtime: w.seen}
}

// inbox is what a step works on.
type inbox struct {
	pod   *corev1.Pod
	gone  bool
	dirty bool
}

func (w *worker) take() inbox {
	w.mu.Lock()
	in := inbox{pod: w.pod, gone: w.gone, dirty: w.dirty}
	w.dirty = false
	results := w.results
	w.results = nil
	if w.evicted != nil && w.end == nil {
		w.end, w.evicted = w.evicted, nil
	}
	again := w.again
	w.again = false
	w.mu.Unlock()
	for _, result := range results {
		result()
	}
	if again {
		for name, f := range w.failures {
			f.until = time.Time{}
			w.failures[name] = f
		}
		w.retryAt = time.Time{}
	}
	return in
}

// startQuiet is how long a start is not followed step by step: most are over by
// then, and each step would be asked after and told of.
const startQuiet = 150 * time.Millisecond

// quietUntil is when the start that is under way will be looked at; zero if none is.
func (w *worker) quietUntil() time.Time {
	if w.job == nil || w.job.stop {
		return time.Time{}
	}
	return w.job.began.Add(startQuiet)
}

func (w *worker) setStarting(id string, starting bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if starting {
		w.starting[id] = true
	} else {
		delete(w.starting, id)
	}
}
