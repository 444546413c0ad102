package podworker

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/status"
)

func (w *worker) ring() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
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

// holds is the pod with the resources that it has been given.
func (w *worker) holds() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held == nil {
		return w.pod
	}
	held := *w.held
	held.Status = w.pod.Status
	return &held
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

// isStarting tells that the container's hook after its start goes on.
func (w *worker) isStarting(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.starting[id]
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
