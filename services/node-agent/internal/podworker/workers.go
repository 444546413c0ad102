// Package podworker runs pods: for each a goroutine that brings what the runtime
// has of the pod to what the pod's object says, again after each event, and tells
// the API server.
//
// A worker decides with makePlan, which is pure, and leaves what may take long to
// goroutines of its own: at most one that starts things, one that stops them, and
// one for each container that is killed alone. It never waits for them, so that
// the pod's status follows every event. Nothing is shared between pods: what
// hangs in one stalls no other.
package podworker

import (
	"context"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sampan-io/sampan/services/node-agent/internal/cri"
	"github.com/sampan-io/sampan/services/node-agent/internal/criconfig"
	"github.com/sampan-io/sampan/services/node-agent/internal/objects"
	"github.com/sampan-io/sampan/services/node-agent/internal/probes"
	"github.com/sampan-io/sampan/services/node-agent/internal/pulling"
	"github.com/sampan-io/sampan/services/node-agent/internal/status"
	"github.com/sampan-io/sampan/services/node-agent/internal/volumes"
)

// Events tells pods' authors what happens. Container is nil for the whole pod.
type Events interface {
	Event(pod *corev1.Pod, container *corev1.Container, warning bool, reason, message string)
}

// Cgroups keeps pods' control groups.
type Cgroups interface {
	EnsurePod(pod *corev1.Pod) error
	// MemoryUsed is what a container of the pod has, in bytes; 0 if that is not known.
	MemoryUsed(pod *corev1.Pod, containerID string) int64
	// Remove kills what is left in the pod's group and removes it.
	Remove(uid types.UID) error
}

// Observer measures; its methods must not block.
type Observer interface {
	// ObservePodStart is called once for a pod, with the time from when it was first
	// seen until all its containers had been started.
	ObservePodStart(elapsed time.Duration)
	// ObserveSync is called for each piece of a worker's work: "create", "update",
	// "kill" or "sync".
	ObserveSync(operation string, elapsed time.Duration)
	// ObserveRelist is called each time that the runtime has told what it has of a pod.
	ObserveRelist(elapsed time.Duration)
}

// Drainer knows who sends pods connections.
type Drainer interface {
	// Await returns when the pod gets no new ones, or need not wait for that any
	// longer; see draining.Proxies.
	Await(ctx context.Context, pod *corev1.Pod, addresses []string, grace time.Duration)
}

// Assigner gives pods what only one can have.
type Assigner interface {
	// Allocate is called once for a pod that is new here; with an error the pod cannot
	// run, and has nothing.
	Allocate(ctx context.Context, pod *corev1.Pod) error
	// Assigned is what a container has been given.
	Assigned(uid types.UID, container string) criconfig.Assigned
	// Prepare is called before each start of a container.
	Prepare(ctx context.Context, uid types.UID, container string) error
	// Release is called when the pod's containers have ended for good.
	Release(uid types.UID)
}

// Config is what Workers need.
type Config struct {
	Runtime     *cri.Client
	RuntimeName string // the scheme of container ids
	Node        criconfig.Node
	Cgroups     Cgroups
	Volumes     *volumes.Manager
	Objects     *objects.Store
	Services    func() []*corev1.Service
	Puller      *pulling.Puller
	Probes      *probes.Set
	Status      *status.Publisher
	Events      Events
	Observer    Observer
	// Admit tells why a pod that is new here cannot run on this node, or nil.
	Admit func(pod *corev1.Pod, others []*corev1.Pod) *status.End
	// Preempt chooses pods to end so that one runs that Admit refuses; none if that would
	// not help. Nil never does.
	Preempt  func(pod *corev1.Pod, others []*corev1.Pod) []*corev1.Pod
	Assigner Assigner // nil gives nothing
	// Resizable tells why a pod that runs cannot be given what it asks for now: with
	// the reasons Deferred or Infeasible; nil if it can.
	Resizable func(pod *corev1.Pod, others []*corev1.Pod) *status.End
	// Drainer is asked before the containers of a pod that is deleted are told to end;
	// nil does not wait.
	Drainer Drainer
	// Handler finds the runtime's handler for a runtime class.
	Handler           func(ctx context.Context, class string) (string, error)
	MaxRestartPause   time.Duration         // default 5 min
	RuntimeTimeout    time.Duration         // of a call that is not expected to take long; default 2 min
	TerminationMirror func(pod *corev1.Pod) // called when a static pod is over; may be nil
	Log               *slog.Logger
}

// Workers are all pods of this node.
type Workers struct {
	cfg Config

	giving  sync.Mutex // held while it is decided on resources; taken before mu
	mu      sync.Mutex
	workers map[types.UID]*worker
	running sync.WaitGroup
	base    context.Context
	stop    context.CancelFunc
}

// New starts nothing; Close ends all workers.
func New(cfg Config) *Workers {
	const restartPause, runtimeTimeout = 5 * time.Minute, 2 * time.Minute
	if cfg.MaxRestartPause == 0 {
		cfg.MaxRestartPause = restartPause
	}
	if cfg.RuntimeTimeout == 0 {
		cfg.RuntimeTimeout = runtimeTimeout
	}
	base, stop := context.WithCancel(context.Background())
	return &Workers{cfg: cfg, workers: map[types.UID]*worker{}, base: base, stop: stop}
}

// Close ends all workers and waits for them. Containers go on.
func (w *Workers) Close() {
	w.stop()
	w.running.Wait()
}

// Update tells of a pod as the API server has it now.
func (w *Workers) Update(pod *corev1.Pod) {
	w.cfg.Status.Seen(pod)
	w.accept(pod, false)
}

// UpdateStatic tells of a pod that comes from a file of this node.
func (w *Workers) UpdateStatic(pod *corev1.Pod) { w.accept(pod, true) }

func (w *Workers) accept(pod *corev1.Pod, static bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if worker, known := w.workers[pod.UID]; known {
		worker.update(pod)
		return
	}
	var others []*corev1.Pod
	for _, other := range w.workers {
		if !other.ended.Load() {
			others = append(others, other.holds())
		}
	}
	w.startWorker(pod, others, static)
}

// Remove tells that the pod is gone from its source; what runs of it is stopped.
func (w *Workers) Remove(uid types.UID) {
	w.cfg.Status.Forget(uid)
	w.mu.Lock()
	defer w.mu.Unlock()
	if worker, known := w.workers[uid]; known {
		worker.remove()
	}
}

// Orphan stops what the runtime or the disk has of a pod that no source knows.
func (w *Workers) Orphan(uid types.UID, name types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, known := w.workers[uid]; known {
		return
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, Namespace: name.Namespace, Name: name.Name}}
	w.startWorker(pod, nil, false).remove()
}

// startWorker adds one. Caller must hold mu.
func (w *Workers) startWorker(pod *corev1.Pod, others []*corev1.Pod, static bool) *worker {
	worker := newWorker(w, pod, others)
	worker.static = static
	w.workers[pod.UID] = worker
	w.running.Go(func() {
		worker.run(w.base)
		w.mu.Lock()
		defer w.mu.Unlock()
		if worker.over {
			delete(w.workers, pod.UID)
		}
		w.ringWaiting()
	})
	return worker
}

// PodChanged tells that the runtime has something new of the pod.
func (w *Workers) PodChanged(uid types.UID) {
	if worker := w.find(uid); worker != nil {
		worker.touch(true)
	}
}

// AllChanged tells that the runtime may have something new of any pod.
func (w *Workers) AllChanged() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, worker := range w.workers {
		worker.touch(true)
	}
}

// Wake lets the pod's worker look again, because a probe's verdict or an object
// that it uses has changed.
func (w *Workers) Wake(uid types.UID) {
	if worker := w.find(uid); worker != nil {
		worker.retry()
	}
}

// Evict ends the pod as failed, with its containers stopped in their grace period.
func (w *Workers) Evict(uid types.UID, end status.End) {
	if worker := w.find(uid); worker != nil {
		worker.evict(end)
	}
}

// Runs tells whether a container of the pod runs, as far as its worker knows.
func (w *Workers) Runs(uid types.UID) bool {
	worker := w.find(uid)
	if worker == nil {
		return false
	}
	state := worker.state()
	return len(state.Runtime.Running()) > 0
}

func (w *Workers) find(uid types.UID) *worker {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.workers[uid]
}

// Pods are the pods of this node as their sources have them.
func (w *Workers) Pods() []*corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	var pods []*corev1.Pod
	for _, worker := range w.workers {
		if pod := worker.current(); pod.Spec.NodeName != "" || len(pod.Spec.Containers) > 0 {
			pods = append(pods, pod)
		}
	}
	return pods
}

// Known tells whether the pod has a worker.
func (w *Workers) Known(uid types.UID) bool { return w.find(uid) != nil }

// State is a pod and what the runtime had of it when its worker last looked.
type State struct {
	Pod     *corev1.Pod
	Runtime cri.Pod
}

// State finds a pod by its name; uid may be empty.
func (w *Workers) State(namespace, name string, uid types.UID) (State, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, worker := range w.workers {
		state := worker.state()
		if state.Pod.Namespace == namespace && state.Pod.Name == name && (uid == "" || uid == id) {
			return state, true
		}
	}
	return State{}, false
}

// States are all pods.
func (w *Workers) States() []State {
	w.mu.Lock()
	defer w.mu.Unlock()
	states := make([]State, 0, len(w.workers))
	for _, worker := range w.workers {
		if state := worker.state(); len(state.Pod.Spec.Containers) > 0 {
			states = append(states, state)
		}
	}
	return states
}
