package podworker

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sampan-io/sampan/services/node-agent/internal/admission"
	"github.com/sampan-io/sampan/services/node-agent/internal/backoff"
	"github.com/sampan-io/sampan/services/node-agent/internal/cri"
	"github.com/sampan-io/sampan/services/node-agent/internal/probes"
	"github.com/sampan-io/sampan/services/node-agent/internal/pulling"
	"github.com/sampan-io/sampan/services/node-agent/internal/status"
	"github.com/sampan-io/sampan/services/node-agent/internal/topology"
)

// stage is how far a pod has come. It only ever grows.
type stage int

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
	held     *corev1.Pod     // the pod with the resources that it has been given
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
	resizing resizing
	// restartingAll tells that all containers begin anew.
	restartingAll bool
	waiting       atomic.Bool // for resources that other pods have
	ended         atomic.Bool // it has given back what it had of the node
	// preempted are the pods that make room for this one, which is not admitted before.
	preempted map[types.UID]bool
	over      bool // nothing is left to do; guarded by Workers.mu after run has returned
}

// job is what goes on beside the worker.
type job struct {
	began  time.Time
	starts map[string]bool // names of the containers that it starts
	stop   bool            // it stops the pod
	grace  int64           // seconds that it gives the containers
	cancel context.CancelFunc
}

func newWorker(w *Workers, pod *corev1.Pod, others []*corev1.Pod) *worker {
	const restartPause = 10 * time.Second
	return &worker{
		Workers: w, uid: pod.UID, wake: make(chan struct{}, 1), pod: pod, dirty: true, others: others, began: time.Now(),
		kills: map[string]bool{}, failures: map[string]hold{}, messages: map[string]string{}, told: map[string]bool{}, starting: map[string]bool{}, paused: map[string]bool{},
		restarts: &backoff.Map{Base: min(restartPause, w.cfg.MaxRestartPause), Max: w.cfg.MaxRestartPause}, pulls: pulling.NewState(),
	}
}

// run works until ctx ends or nothing is left to do.
func (w *worker) run(ctx context.Context) {
	for !w.over && ctx.Err() == nil {
		next := w.step(ctx)
		if w.over {
			break
		}
		const idle = time.Hour
		wait := idle
		if !next.IsZero() {
			wait = max(time.Until(next), 0)
		}
		timer := time.NewTimer(wait)
		select {
		case <-w.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	if w.job != nil {
		w.job.cancel()
	}
}

// step does what can be done now and returns when to look again.
func (w *worker) step(ctx context.Context) (next time.Time) {
	start := time.Now()
	in := w.take()
	quiet, err := w.refresh(ctx, in.dirty, start)
	if err != nil {
		if ctx.Err() == nil {
			w.cfg.Log.WarnContext(ctx, "Asking the runtime for a pod", "pod", name(in.pod), "err", err)
		}
		const pause = time.Second
		w.asked = false
		return start.Add(pause)
	}
	pod := w.withKnownStatus(in.pod)
	w.admit(ctx, pod, in.gone)
	if !w.admitted {
		return time.Time{} // the end of another pod wakes this worker
	}
	pod = w.allocate(ctx, pod)
	w.expire(pod)
	operation := "sync"
	if w.stage == living && (in.gone || pod.DeletionTimestamp != nil || w.end != nil || over(pod)) {
		w.stage = stopping
	}
	if w.stage == living {
		next = w.live(ctx, pod)
	}
	if w.stage != living { // live may have found that all is over
		operation = "kill"
		next = w.die(ctx, pod, in.gone)
	}
	w.cfg.Observer.ObserveSync(operation, time.Since(start))
	if quiet {
		next = earliest(next, w.quietUntil())
	}
	return next
}

// refresh asks the runtime if it must. While a start is under way it waits with
// that, and says so.
func (w *worker) refresh(ctx context.Context, dirty bool, now time.Time) (quiet bool, err error) {
	switch {
	case !dirty && w.asked:
		return false, nil
	case w.asked && now.Before(w.quietUntil()):
		w.mu.Lock()
		defer w.mu.Unlock()
		w.dirty = true
		return true, nil
	}
	return false, w.ask(ctx)
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

func name(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

// over tells that the pod had ended before this worker began.
func over(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

func (w *worker) ask(ctx context.Context) error {
	const patience = 30 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	began := time.Now()
	state, err := w.cfg.Runtime.Pod(ctx, w.uid)
	if err != nil {
		return err
	}
	w.cfg.Observer.ObserveRelist(time.Since(began))
	w.runtime, w.asked = state, true
	w.mu.Lock()
	w.seen = state
	w.mu.Unlock()
	for _, c := range state.Containers {
		if !c.Running() {
			w.cfg.Probes.Stop(c.GetId())
			delete(w.kills, c.GetId())
		}
	}
	return nil
}

// withKnownStatus is the pod with the newest status that this node has written,
// which the pod's source may not tell of yet.
func (w *worker) withKnownStatus(pod *corev1.Pod) *corev1.Pod {
	known, ok := w.cfg.Status.Known(w.uid)
	if !ok {
		return pod
	}
	copied := *pod
	conditions := copied.Status.Conditions
	copied.Status = known
	copied.Status.Conditions = foreign(conditions, known.Conditions)
	return &copied
}

// foreign takes the conditions of others from the source, ours from what is known.
func foreign(source, known []corev1.PodCondition) []corev1.PodCondition {
	var list []corev1.PodCondition
	for _, c := range known {
		if status.Owned(c.Type) {
			list = append(list, c)
		}
	}
	for _, c := range source {
		if !status.Owned(c.Type) {
			list = append(list, c)
		}
	}
	return list
}

// admit asks once, and only for a pod that has nothing here yet. A pod that others make
// room for is asked after again when they have ended, and is not admitted until then.
func (w *worker) admit(ctx context.Context, pod *corev1.Pod, gone bool) {
	if w.admitted {
		return
	}
	others := w.others
	if w.preempted != nil {
		others = w.heldBy(w.uid)
	}
	w.admitted, w.others = true, nil
	if gone || len(w.runtime.Sandboxes) > 0 || pod.DeletionTimestamp != nil || over(pod) || len(pod.Spec.Containers) == 0 || pod.Status.StartTime != nil {
		return
	}
	w.end = w.cfg.Admit(pod, others)
	if w.end != nil && w.makeRoom(pod, others) {
		w.admitted, w.end, w.others = false, nil, others
		return
	}
	if w.end == nil && w.cfg.Assigner != nil {
		if err := w.cfg.Assigner.Allocate(ctx, pod); err != nil {
			w.end = notAllocated(err)
		}
	}
	if w.end != nil {
		w.cfg.Events.Event(pod, nil, true, w.end.Reason, w.end.Message)
	}
}

// makeRoom ends the pods that are in the way of a critical one, and tells whether any
// still is that will go.
func (w *worker) makeRoom(pod *corev1.Pod, others []*corev1.Pod) bool {
	if w.cfg.Preempt == nil {
		return false
	}
	if slices.ContainsFunc(others, func(other *corev1.Pod) bool { return w.preempted[other.UID] }) {
		return true
	}
	victims := w.cfg.Preempt(pod, others)
	if len(victims) == 0 {
		return false
	}
	w.preempted = map[types.UID]bool{}
	w.waiting.Store(true)
	for _, victim := range victims {
		w.preempted[victim.UID] = true
		w.cfg.Log.Info("Ending a pod to make room for a critical one", "pod", name(victim), "for", name(pod))
		w.cfg.Events.Event(victim, nil, true, admission.PreemptedReason, admission.PreemptedMessage)
		w.Evict(victim.UID, status.End{Reason: admission.PreemptedReason, Message: admission.PreemptedMessage, Disruption: corev1.PodReasonTerminationByKubelet})
	}
	w.ring() // one may have ended just before
	return true
}

// notAllocated is why a pod ends that cannot be given what only one can have.
func notAllocated(err error) *status.End {
	if errors.Is(err, topology.Refused{}) {
		return &status.End{Reason: topology.Reason, Message: "Pod was rejected: " + err.Error()}
	}
	return &status.End{Reason: "UnexpectedAdmissionError", Message: "Pod was rejected: Allocate failed due to " + err.Error() + ", which is unexpected"}
}

// expire ends a pod that has been active for longer than it may.
func (w *worker) expire(pod *corev1.Pod) {
	due := deadline(pod)
	if w.stage != living || w.end != nil || due.IsZero() || time.Now().Before(due) {
		return
	}
	const message = "Pod was active on the node longer than the specified deadline"
	w.end = &status.End{Reason: status.ReasonDeadlineExceeded, Message: message}
	w.cfg.Events.Event(pod, nil, false, w.end.Reason, message)
}

func deadline(pod *corev1.Pod) time.Time {
	if pod.Spec.ActiveDeadlineSeconds == nil || pod.Status.StartTime == nil {
		return time.Time{}
	}
	return pod.Status.StartTime.Add(time.Duration(*pod.Spec.ActiveDeadlineSeconds) * time.Second)
}

// live brings a pod nearer to what it should be.
func (w *worker) live(ctx context.Context, pod *corev1.Pod) (next time.Time) {
	w.cfg.Objects.Use(pod)
	w.cfg.Volumes.PodChanged(pod, status.PodIPs(pod, &w.runtime, w.cfg.Node.HostIPs))
	w.probe(pod)
	p := makePlan(planInput{
		pod: pod, runtime: &w.runtime, now: time.Now(), verdict: w.cfg.Probes.Verdict, pause: w.restartPause,
		killing: func(id string) bool { return w.kills[id] }, resized: w.forResize,
	})
	if p.finished && w.job == nil && len(w.kills) == 0 {
		w.stage = stopping
		return time.Time{}
	}
	for _, k := range p.kills {
		w.killOne(ctx, pod, k)
	}
	w.holdBack(p)
	w.tellBackOff(pod, p)
	w.noteStart(pod, p)
	next = earliest(p.next(), deadline(pod), w.actuate(ctx, pod))
	w.restartingAll = p.again
	if w.job == nil && (p.newSandbox || len(p.starts) > 0 || (p.again && len(p.discard) > 0)) {
		if time.Now().Before(w.retryAt) {
			next = earliest(next, w.retryAt)
		} else {
			w.startJob(ctx, pod, p)
		}
	}
	return earliest(next, w.publish(pod, p.holds))
}

func earliest(times ...time.Time) time.Time {
	var first time.Time
	for _, t := range times {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}

// holdBack leaves out of the plan what has just failed and must wait.
func (w *worker) holdBack(p *plan) {
	now := time.Now()
	for name, h := range p.holds {
		if w.job != nil && w.job.starts[name] { // its pause has just been over
			delete(p.holds, name)
			continue
		}
		if failure, failed := w.failures[name]; failed { // it has ended because it could not start
			h.why = failure.why
			p.holds[name] = h
		}
	}
	starting := p.starts[:0]
	for _, s := range p.starts {
		failure, failed := w.failures[s.spec.Name]
		if failed {
			p.holds[s.spec.Name] = failure
		}
		if failed && now.Before(failure.until) {
			continue
		}
		starting = append(starting, s)
	}
	p.starts = starting
	if len(p.starts) == 0 {
		p.newSandbox = false
	}
}

// tellBackOff makes an event the first time that a container waits for a restart.
func (w *worker) tellBackOff(pod *corev1.Pod, p *plan) {
	for name, h := range p.holds {
		last, known := w.runtime.Latest(name)
		if h.why.Reason != status.ReasonCrashLoopBackOff || !known || w.paused[last.GetId()] {
			continue
		}
		w.paused[last.GetId()] = true
		spec := findSpec(pod, name)
		w.cfg.Events.Event(pod, spec, true, "BackOff", "Back-off restarting failed container "+name+" in pod "+podFormat(pod))
	}
}

func podFormat(pod *corev1.Pod) string {
	return pod.Name + "_" + pod.Namespace + "(" + string(pod.UID) + ")"
}

func findSpec(pod *corev1.Pod, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if pod.Spec.EphemeralContainers[i].Name == name {
			spec := corev1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
			return &spec
		}
	}
	return nil
}

func (w *worker) restartPause(c cri.Container) time.Duration {
	// A run of the agent before this one may have counted.
	w.restarts.Adopt(c.Name(), int(c.RestartCount()), time.Unix(0, c.GetStartedAt()))
	return w.restarts.Pause(c.Name(), time.Unix(0, c.GetFinishedAt()))
}

func (w *worker) noteStart(pod *corev1.Pod, p *plan) {
	if w.started || p.newSandbox || len(p.starts) > 0 || len(p.holds) > 0 || w.job != nil {
		return
	}
	for i := range pod.Spec.Containers {
		if c, ok := w.runtime.Latest(pod.Spec.Containers[i].Name); !ok || !c.Running() {
			return
		}
	}
	w.started = true
	w.cfg.Observer.ObservePodStart(time.Since(w.began))
}

// probe begins the probes of running containers.
func (w *worker) probe(pod *corev1.Pod) {
	ips := status.PodIPs(pod, &w.runtime, w.cfg.Node.HostIPs)
	if len(ips) == 0 {
		return
	}
	for _, c := range w.runtime.Running() {
		spec := findSpec(pod, c.Name())
		if spec == nil || w.kills[c.GetId()] || w.isStarting(c.GetId()) {
			continue
		}
		w.cfg.Probes.Start(probes.Target{
			Pod: pod, Container: spec, ContainerID: c.GetId(), PodIP: ips[0], StartedAt: time.Unix(0, c.GetStartedAt()),
		}, w.knownOf(pod, c))
	}
}

// knownOf is what the last status says of a container that ran then already.
func (w *worker) knownOf(pod *corev1.Pod, c cri.Container) probes.Known {
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, old := range list {
			if old.Name == c.Name() && old.ContainerID == w.cfg.RuntimeName+"://"+c.GetId() {
				return probes.Known{Started: old.Started != nil && *old.Started, Ready: old.Ready}
			}
		}
	}
	return probes.Known{}
}
