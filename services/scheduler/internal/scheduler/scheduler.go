// Package scheduler is the loop that takes pods from the queue, decides for them,
// and binds them.
package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/sampan-io/sampan/services/scheduler/internal/algorithm"
	"github.com/sampan-io/sampan/services/scheduler/internal/cache"
	"github.com/sampan-io/sampan/services/scheduler/internal/cluster"
	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
	"github.com/sampan-io/sampan/services/scheduler/internal/queue"
)

// Pods is where the newest version of a pod is read; nil when it is gone.
type Pods interface {
	Get(namespace, name string) *corev1.Pod
}

// Reporter writes what became of a pod: conditions and events.
type Reporter interface {
	// Scheduled tells that pod was bound to node.
	Scheduled(pod *corev1.Pod, node string)
	// Failed tells why pod was not. Reason is Unschedulable or SchedulerError;
	// nominated is where room is being made, if anywhere.
	Failed(pod *corev1.Pod, reason, message, nominated string)
}

// Config is what a Scheduler works with.
type Config struct {
	Profiles map[string]*framework.Profile // by scheduler name
	Cache    *cache.Cache
	Queue    *queue.Queue
	Nominees *Nominees
	Waiting  *Waiting
	Pods     Pods
	Reporter Reporter
	Metrics  *Metrics
	Log      *slog.Logger
}

// Scheduler schedules one pod at a time, and binds many at once.
type Scheduler struct {
	Config
	algorithm algorithm.Algorithm
	bindings  sync.WaitGroup

	// cycle guards snapshot and algorithm: scheduling and explaining take turns.
	cycle    sync.Mutex
	snapshot *cluster.Snapshot
}

// New has scheduled nothing yet.
func New(config Config) *Scheduler {
	s := &Scheduler{Config: config, snapshot: cluster.NewSnapshot()}
	s.algorithm = algorithm.Algorithm{Pick: rand.IntN, Nominated: config.Nominees.On}
	return s
}

// Run schedules until ctx ends, and has finished or given up all bindings then.
func (s *Scheduler) Run(ctx context.Context) {
	var helpers sync.WaitGroup
	helpers.Go(func() { s.Queue.Run(ctx) })
	for s.next(ctx) {
	}
	s.bindings.Wait()
	helpers.Wait()
}

// next schedules one pod; false when ctx has ended.
func (s *Scheduler) next(ctx context.Context) bool {
	queued, ok := s.Queue.Pop(ctx)
	if !ok {
		return false
	}
	defer func() {
		if cause := recover(); cause != nil { // one pod must not stop the others
			s.Log.Error("Scheduling panicked", "pod", name(queued.Object), "cause", cause, "stack", string(debug.Stack()))
			s.Queue.Refused(queued, nil)
		}
	}()
	s.schedule(ctx, queued)
	return true
}

func name(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

func (s *Scheduler) schedule(ctx context.Context, queued *framework.QueuedPod) {
	profile := s.Profiles[queued.Object.Spec.SchedulerName]
	if profile == nil || queued.Object.DeletionTimestamp != nil || s.Cache.Placed(queued.Object.UID) {
		s.Queue.Done(queued.Object.UID)
		return
	}
	begun := time.Now()
	state := framework.NewCycleState()
	decision, err := s.decide(ctx, profile, state, queued)
	s.Metrics.algorithm(time.Since(begun))
	if err != nil {
		s.failed(ctx, profile, state, queued, err, begun)
		return
	}
	placed, err := s.place(ctx, profile, state, queued, decision.Node)
	if err != nil {
		s.failed(ctx, profile, state, queued, err, begun)
		return
	}
	s.bindings.Go(func() { s.bind(ctx, profile, state, queued, placed, decision.Node, begun) })
}

// decide chooses a node, and makes room when there is none.
func (s *Scheduler) decide(ctx context.Context, profile *framework.Profile, state *framework.CycleState, queued *framework.QueuedPod) (algorithm.Decision, error) {
	s.cycle.Lock()
	defer s.cycle.Unlock()
	s.Cache.Update(s.snapshot)
	return s.algorithm.Schedule(ctx, profile, state, queued.Pod, s.snapshot)
}

// place assumes the pod on node and runs Reserve and Permit. The error is a
// *refusal when a plugin said no.
func (s *Scheduler) place(ctx context.Context, profile *framework.Profile, state *framework.CycleState, queued *framework.QueuedPod, node string) (*cluster.Pod, error) {
	object := queued.Object.DeepCopy()
	object.Spec.NodeName = node
	placed := *queued.Pod
	placed.Object = object
	if err := s.Cache.Assume(&placed, node); err != nil {
		return nil, err
	}
	s.Nominees.Remove(object.UID)
	undo := func(status *framework.Status) error {
		profile.RunUnreserve(ctx, state, &placed, node)
		s.Cache.Forget(object.UID)
		if status.Rejected() {
			return &refusal{status}
		}
		return status.AsError()
	}
	if status := profile.RunReserve(ctx, state, &placed, node); !status.OK() {
		return nil, undo(status)
	}
	status, timeout := profile.RunPermit(ctx, state, &placed, node)
	switch status.CodeOf() {
	case framework.Success:
	case framework.Wait:
		s.Waiting.add(object.UID, timeout)
	default:
		return nil, undo(status)
	}
	return &placed, nil
}

// refusal is a plugin's no after a node was chosen.
type refusal struct{ status *framework.Status }

func (r *refusal) Error() string { return r.status.Message() }

// failed puts a pod back and tells why. For a pod that fits no node it first tries
// to make room.
func (s *Scheduler) failed(ctx context.Context, profile *framework.Profile, state *framework.CycleState, queued *framework.QueuedPod, err error, begun time.Time) {
	if ctx.Err() != nil {
		s.Queue.Refused(queued, nil)
		return
	}
	reason, result, nominated := corev1.PodReasonSchedulerError, resultError, ""
	var by sets.Set[string]
	if fit := algorithm.AsFitError(err); fit != nil {
		reason, result = corev1.PodReasonUnschedulable, resultUnschedulable
		by = fit.Diagnosis.Refusers
		if by == nil { // an empty cluster: any node may do
			by = sets.New("NodeName")
		}
		nominated = s.makeRoom(ctx, profile, state, queued, fit)
	} else if refused := (*refusal)(nil); errors.As(err, &refused) {
		reason, result = corev1.PodReasonUnschedulable, resultUnschedulable
		by = sets.New(refused.status.Plugin)
	}
	s.Metrics.attempt(result, profile.SchedulerName, time.Since(begun))
	current := s.Pods.Get(queued.Object.Namespace, queued.Object.Name)
	if current == nil || current.UID != queued.Object.UID || current.Spec.NodeName != "" {
		s.Queue.Done(queued.Object.UID) // gone, or placed by another
		return
	}
	s.Nominees.Set(queued.Pod, nominated)
	s.Queue.Refused(queued, by)
	if result == resultError {
		s.Log.Error("Scheduling failed", "pod", name(queued.Object), "err", err)
	} else {
		s.Log.Debug("Pod is unschedulable", "pod", name(queued.Object), "reason", err)
	}
	s.Reporter.Failed(current, reason, err.Error(), nominated)
}

// makeRoom runs PostFilter; it returns the node where room is being made.
func (s *Scheduler) makeRoom(ctx context.Context, profile *framework.Profile, state *framework.CycleState, queued *framework.QueuedPod, fit *algorithm.FitError) string {
	if len(profile.PostFilter) == 0 || fit.Diagnosis.Total == 0 {
		return ""
	}
	s.cycle.Lock()
	defer s.cycle.Unlock()
	nominated, status := profile.RunPostFilters(ctx, state, queued.Pod, s.snapshot, &fit.Diagnosis.Verdicts)
	if !status.OK() {
		fit.Diagnosis.PostFilter = status.Message()
		if !status.Rejected() {
			s.Log.Error("Making room failed", "pod", name(queued.Object), "err", status.AsError())
		}
	}
	return nominated
}

// bind finishes what schedule began, in the background.
func (s *Scheduler) bind(ctx context.Context, profile *framework.Profile, state *framework.CycleState, queued *framework.QueuedPod, pod *cluster.Pod, node string, begun time.Time) {
	status := s.Waiting.wait(ctx, pod.Object.UID)
	if status.OK() {
		status = profile.RunPreBind(ctx, state, pod, node)
	}
	if status.OK() {
		status = profile.RunBind(ctx, state, pod, node)
	}
	if !status.OK() {
		s.bindFailed(ctx, profile, state, queued, pod, node, status, begun)
		return
	}
	s.Queue.Done(pod.Object.UID)
	s.Metrics.bound(profile.SchedulerName, queued, time.Since(begun))
	s.Log.Debug("Bound pod", "pod", name(pod.Object), "node", node)
	s.Reporter.Scheduled(pod.Object, node)
	profile.RunPostBind(ctx, state, pod, node)
}

// bindFailed takes the placement back; the room that it held may help others.
func (s *Scheduler) bindFailed(ctx context.Context, profile *framework.Profile, state *framework.CycleState, queued *framework.QueuedPod, pod *cluster.Pod, node string, status *framework.Status, begun time.Time) {
	cleanup := context.WithoutCancel(ctx)
	profile.RunUnreserve(cleanup, state, pod, node)
	s.Cache.Forget(pod.Object.UID)
	s.Queue.Change(framework.Change{
		Event: framework.Event{Resource: framework.PodResource, Action: framework.Delete, Label: "AssignedPodDelete"}, OldPod: pod.Object,
	})
	err := fmt.Errorf("binding to node %s: %w", node, status.AsError())
	if status.Rejected() {
		err = &refusal{status}
	}
	s.failed(ctx, profile, state, queued, err, begun)
}
