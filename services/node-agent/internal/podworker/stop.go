package podworker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/cri"
	"github.com/sampan-io/sampan/services/node-agent/internal/criconfig"
	"github.com/sampan-io/sampan/services/node-agent/internal/lifecycle"
	"github.com/sampan-io/sampan/services/node-agent/internal/status"
)

// minimalGrace is what a container gets though its pre-stop hook has used up its
// grace period, in seconds.
const minimalGrace = 2

// die brings a pod to its end, one stage a step.
func (w *worker) die(ctx context.Context, pod *corev1.Pod, gone bool) (next time.Time) {
	w.cfg.Probes.StopLiveness(w.uid)
	grace := w.graceOf(pod, gone)
	found := w.runtime // jobs run beside this goroutine, which goes on asking
	if w.job != nil {
		if !w.job.stop || grace < w.job.grace {
			w.job.cancel() // its end wakes this worker
		}
		return w.tell(pod, gone)
	}
	if wait := time.Until(w.retryAt); wait > 0 {
		w.tell(pod, gone)
		return w.retryAt
	}
	if w.stage == stopping && w.quiet() {
		w.stage = stopped
	}
	switch w.stage {
	case stopping:
		w.stopJob(ctx, grace, func(ctx context.Context) error { return w.stopAll(ctx, pod, found, grace) }, stopping)
	case stopped:
		w.finished = true
		w.tell(pod, gone)
		w.stopJob(ctx, grace, func(ctx context.Context) error {
			if err := w.giveBack(ctx); err != nil {
				return err
			}
			w.ended.Store(true)
			w.retryPending()
			return nil
		}, settled)
		return time.Time{}
	case settled:
		if gone || pod.DeletionTimestamp != nil {
			w.stopJob(ctx, grace, func(ctx context.Context) error { return w.erase(ctx, pod, found, gone) }, settled)
			return time.Time{}
		}
	}
	return w.tell(pod, gone)
}

func (w *worker) tell(pod *corev1.Pod, gone bool) time.Time {
	if gone || w.stage == settled {
		return time.Time{}
	}
	return w.publish(pod, nil)
}

// quiet tells that nothing of the pod runs.
func (w *worker) quiet() bool {
	for _, sandbox := range w.runtime.Sandboxes {
		if sandbox.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY {
			return false
		}
	}
	return len(w.runtime.Running()) == 0
}

// stopJob does work beside the worker, and then goes on to a stage, or tries
// again after a pause.
func (w *worker) stopJob(ctx context.Context, grace int64, work func(ctx context.Context) error, then stage) {
	ctx, cancel := context.WithCancel(ctx)
	w.job = &job{began: time.Now(), stop: true, grace: grace, cancel: cancel}
	w.running.Go(func() {
		defer cancel()
		err := work(ctx)
		cancelled := ctx.Err() != nil
		w.finish(func() {
			w.job = nil
			switch {
			case err == nil:
				w.stage, w.pause, w.retryAt = max(w.stage, then), 0, time.Time{}
			case !cancelled:
				w.cfg.Log.Warn("Stopping a pod", "pod", name(w.current()), "err", err)
				w.backOff()
			}
		})
	})
}

// backOff lets the next try wait, ever longer.
func (w *worker) backOff() {
	const first, most = 250 * time.Millisecond, 10 * time.Second
	w.pause = min(max(2*w.pause, first), most)
	w.retryAt = time.Now().Add(w.pause)
}

// stopAll stops all containers in their order, and then the sandboxes.
func (w *worker) stopAll(ctx context.Context, pod *corev1.Pod, found cri.Pod, grace int64) error {
	running := found.Running()
	turns := newTurns(pod, running)
	drained := w.drain(ctx, pod, found, grace)
	errs := make([]error, len(running))
	var group sync.WaitGroup
	for i, c := range running {
		group.Go(func() {
			defer turns.done(c.Name())
			errs[i] = w.stopContainer(ctx, pod, c, ending{message: "Stopping container " + c.Name(), grace: grace, turns: turns, drained: drained})
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, sandbox := range found.Sandboxes {
		if sandbox.GetState() != runtimeapi.PodSandboxState_SANDBOX_READY {
			continue
		}
		if err := w.stopSandbox(ctx, sandbox.GetId()); err != nil {
			return err
		}
	}
	return nil
}

func (w *worker) stopSandbox(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.RuntimeTimeout)
	defer cancel()
	if _, err := w.cfg.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		return fmt.Errorf("stopping sandbox %s: %w", id, err)
	}
	return nil
}

// killOne stops one container while its pod goes on.
func (w *worker) killOne(ctx context.Context, pod *corev1.Pod, k kill) {
	id := k.container.GetId()
	w.kills[id] = true
	w.cfg.Probes.Stop(id)
	grace := w.graceOf(pod, false)
	if k.atOnce {
		grace = 0
	}
	for _, probe := range []*corev1.Probe{k.spec.LivenessProbe, k.spec.StartupProbe} {
		if probe != nil && probe.TerminationGracePeriodSeconds != nil && !k.atOnce {
			grace = *probe.TerminationGracePeriodSeconds
		}
	}
	w.running.Go(func() {
		err := w.stopContainer(ctx, pod, k.container, ending{message: k.message, grace: grace})
		w.finish(func() {
			if err != nil && ctx.Err() == nil {
				w.cfg.Log.Warn("Stopping a container", "pod", name(pod), "container", k.container.Name(), "err", err)
			}
			delete(w.kills, id)
		})
	})
}

// ending is how a container is stopped.
type ending struct {
	message string // of the event
	grace   int64  // seconds
	turns   *turns // nil does not wait for other containers
	// drained is closed when the pod gets no new connections; nil does not wait.
	drained <-chan struct{}
}

// drain waits for the proxies beside the pre-stop hooks.
func (w *worker) drain(ctx context.Context, pod *corev1.Pod, found cri.Pod, grace int64) <-chan struct{} {
	if w.cfg.Drainer == nil || pod.DeletionTimestamp == nil || len(found.Running()) == 0 {
		return nil
	}
	addresses := status.PodIPs(pod, &found, w.cfg.Node.HostIPs)
	drained := make(chan struct{})
	w.running.Go(func() {
		defer close(drained)
		w.cfg.Drainer.Await(ctx, pod, addresses, time.Duration(grace)*time.Second)
	})
	return drained
}

// stopContainer runs the pre-stop hook, waits for the container's turn and for the
// proxies, and stops it, all within the grace period.
func (w *worker) stopContainer(ctx context.Context, pod *corev1.Pod, c cri.Container, e ending) error {
	spec, grace := findSpec(pod, c.Name()), e.grace
	end := time.Now().Add(time.Duration(grace) * time.Second)
	first := w.tellOnce(c.GetId())
	if first {
		w.cfg.Events.Event(pod, specOf(spec, c), false, "Killing", e.message)
	}
	if handler := preStop(spec, c); handler != nil && grace > 0 && first {
		hookCtx, cancel := context.WithDeadline(ctx, end)
		err := lifecycle.Handle(hookCtx, executor{w.cfg.Runtime}, handler, specOf(spec, c), c.GetId(), firstIP(w, pod))
		cancel()
		if err != nil && ctx.Err() == nil {
			w.cfg.Events.Event(pod, specOf(spec, c), true, "FailedPreStopHook", "PreStopHook failed")
			w.cfg.Log.InfoContext(ctx, "A pre-stop hook failed", "pod", name(pod), "container", c.Name(), "err", err)
		}
	}
	if e.turns != nil {
		e.turns.wait(ctx, c.Name(), end)
	}
	if e.drained != nil {
		<-e.drained // ends with ctx, and within the grace period
	}
	left := max(int64(time.Until(end).Round(time.Second)/time.Second), min(grace, minimalGrace))
	callCtx, cancel := context.WithTimeout(ctx, time.Duration(left)*time.Second+w.cfg.RuntimeTimeout)
	defer cancel()
	if _, err := w.cfg.Runtime.StopContainer(callCtx, &runtimeapi.StopContainerRequest{ContainerId: c.GetId(), Timeout: left}); err != nil && !cri.IsNotFound(err) {
		return fmt.Errorf("stopping container %s: %w", c.Name(), err)
	}
	return nil
}

// tellOnce tells whether the container is told to stop for the first time; a
// shorter grace period may come after that.
func (w *worker) tellOnce(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := !w.told[id]
	w.told[id] = true
	return first
}

func firstIP(w *worker, pod *corev1.Pod) string {
	w.mu.Lock()
	runtime := w.seen
	w.mu.Unlock()
	if ips := status.PodIPs(pod, &runtime, w.cfg.Node.HostIPs); len(ips) > 0 {
		return ips[0]
	}
	return ""
}

// specOf makes do with a name when the pod's object is gone.
func specOf(spec *corev1.Container, c cri.Container) *corev1.Container {
	if spec != nil {
		return spec
	}
	return &corev1.Container{Name: c.Name()}
}

func preStop(spec *corev1.Container, c cri.Container) *corev1.LifecycleHandler {
	if spec != nil {
		if spec.Lifecycle == nil {
			return nil
		}
		return spec.Lifecycle.PreStop
	}
	text := c.GetAnnotations()[cri.AnnotationPreStop]
	if text == "" {
		return nil
	}
	handler := &corev1.LifecycleHandler{}
	if json.Unmarshal([]byte(text), handler) != nil {
		return nil
	}
	return handler
}

// giveBack returns what the pod used of the node. Its containers are kept for
// their logs and messages.
func (w *worker) giveBack(ctx context.Context) error {
	w.cfg.Probes.Forget(w.uid)
	if err := w.cfg.Volumes.Unmount(ctx, w.uid); err != nil {
		return err
	}
	if err := w.cfg.Cgroups.Remove(w.uid); err != nil {
		return err
	}
	if w.cfg.Assigner != nil {
		w.cfg.Assigner.Release(w.uid)
	}
	w.cfg.Objects.Forget(w.uid)
	return nil
}

// erase removes what is left of the pod here, and then its object.
func (w *worker) erase(ctx context.Context, pod *corev1.Pod, found cri.Pod, gone bool) error {
	for _, sandbox := range found.Sandboxes {
		if err := w.removeSandbox(ctx, sandbox.GetId()); err != nil {
			return err
		}
	}
	if err := w.cfg.Volumes.Remove(ctx, w.uid); err != nil {
		return err
	}
	if err := os.RemoveAll(w.cfg.Node.PodLogsDir(pod)); err != nil {
		return fmt.Errorf("removing logs: %w", err)
	}
	if !gone && !w.static {
		if err := w.cfg.Status.Delete(ctx, pod); err != nil {
			return err
		}
	}
	w.finish(func() { w.over = true })
	return nil
}

func (w *worker) removeSandbox(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.RuntimeTimeout)
	defer cancel()
	if _, err := w.cfg.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
		return fmt.Errorf("removing sandbox %s: %w", id, err)
	}
	return nil
}

// turns lets sidecars stop after the containers that they serve, the last one
// first.
type turns struct {
	after map[string][]<-chan struct{}
	ended map[string]chan struct{}
	once  map[string]*sync.Once
}

func newTurns(pod *corev1.Pod, running []cri.Container) *turns {
	t := &turns{after: map[string][]<-chan struct{}{}, ended: map[string]chan struct{}{}, once: map[string]*sync.Once{}}
	for _, c := range running {
		t.ended[c.Name()], t.once[c.Name()] = make(chan struct{}), &sync.Once{}
	}
	var before []<-chan struct{} // those that must have ended first
	for i := range pod.Spec.Containers {
		if ended, runs := t.ended[pod.Spec.Containers[i].Name]; runs {
			before = append(before, ended)
		}
	}
	for i := len(pod.Spec.InitContainers) - 1; i >= 0; i-- {
		spec := &pod.Spec.InitContainers[i]
		if !criconfig.Restartable(spec) {
			continue
		}
		t.after[spec.Name] = append([]<-chan struct{}(nil), before...)
		if ended, runs := t.ended[spec.Name]; runs {
			before = append(before, ended)
		}
	}
	return t
}

func (t *turns) wait(ctx context.Context, name string, until time.Time) {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	for _, ended := range t.after[name] {
		select {
		case <-ended:
		case <-ctx.Done():
			return
		}
	}
}

func (t *turns) done(name string) { t.once[name].Do(func() { close(t.ended[name]) }) }

// executor runs handlers' commands through the runtime.
type executor struct{ runtime *cri.Client }

// Exec implements lifecycle.Executor.
func (e executor) Exec(ctx context.Context, containerID string, command []string, timeout time.Duration) (*runtimeapi.ExecSyncResponse, error) {
	return e.runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: containerID, Cmd: command, Timeout: int64(timeout / time.Second)})
}
