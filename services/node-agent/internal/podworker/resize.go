package podworker

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/allocation"
	"github.com/sampan-io/sampan/services/node-agent/internal/cri"
	"github.com/sampan-io/sampan/services/node-agent/internal/status"
)

// resizing is what a worker knows of its pod's resources.
type resizing struct {
	record  *allocation.Record
	pending *status.End // why what the pod asks for has not been given
	busy    bool        // something is being brought to the containers
	err     error       // why the last try of that failed
	retryAt time.Time
}

// retryResize is when a resize that failed is tried again.
const retryResize = 5 * time.Second

// allocate is the pod with the resources that it has been given. It gives what
// the pod asks for now if the node has it.
func (w *worker) allocate(ctx context.Context, pod *corev1.Pod) *corev1.Pod {
	if len(pod.Spec.Containers) == 0 || w.end != nil {
		return pod
	}
	r := &w.resizing
	if r.record == nil {
		r.record = w.loadRecord(ctx, pod)
	}
	if r.record.Matches(pod) {
		r.pending = nil
	} else if w.stage == living && pod.DeletionTimestamp == nil && !over(pod) {
		w.giveMore(ctx, pod)
	}
	w.waiting.Store(r.pending != nil && w.stage == living)
	given := r.record.Apply(pod)
	w.mu.Lock()
	w.held = given
	w.mu.Unlock()
	return given
}

func (w *worker) loadRecord(ctx context.Context, pod *corev1.Pod) *allocation.Record {
	record, err := allocation.Load(w.cfg.Volumes.PodDir(w.uid))
	if err != nil {
		w.cfg.Log.WarnContext(ctx, "A pod's record of its resources is of no use", "pod", name(pod), "err", err)
	}
	if record == nil {
		record = allocation.New(pod)
		if err := record.Save(w.cfg.Volumes.PodDir(w.uid)); err != nil {
			w.cfg.Log.WarnContext(ctx, "Keeping a pod's resources", "pod", name(pod), "err", err)
		}
	}
	return record
}

// giveMore decides on what the pod asks for. Pods are decided on one after the
// other, so that no two are given the same.
func (w *worker) giveMore(ctx context.Context, pod *corev1.Pod) {
	w.giving.Lock()
	defer w.giving.Unlock()
	r := &w.resizing
	refused := w.refuse(pod)
	if refused != nil {
		if r.pending == nil || *r.pending != *refused {
			w.cfg.Events.Event(pod, nil, true, "Resize"+refused.Reason, refused.Message)
		}
		r.pending = refused
		return
	}
	r.record.Allocated, r.pending, r.err, r.retryAt = allocation.Of(pod), nil, nil, time.Time{}
	w.saveRecord(ctx, pod)
	w.cfg.Events.Event(pod, nil, false, "ResizeStarted", "Pod resize started")
	w.mu.Lock()
	w.held = pod
	w.mu.Unlock()
}

func (w *worker) refuse(pod *corev1.Pod) *status.End {
	if w.static {
		return &status.End{Reason: corev1.PodReasonInfeasible, Message: "In-place resize of static-pods is not supported"}
	}
	if w.cfg.Resizable == nil {
		return nil
	}
	return w.cfg.Resizable(pod, w.heldBy(w.uid))
}

func (w *worker) saveRecord(ctx context.Context, pod *corev1.Pod) {
	if err := w.resizing.record.Save(w.cfg.Volumes.PodDir(w.uid)); err != nil {
		w.cfg.Log.WarnContext(ctx, "Keeping a pod's resources", "pod", name(pod), "err", err)
	}
}

// noteMade takes note of the resources that a container has been made with.
func (w *worker) noteMade(ctx context.Context, pod *corev1.Pod, spec *corev1.Container) {
	r := w.resizing.record
	if r == nil {
		return
	}
	r.Actuated.Containers[spec.Name] = spec.Resources
	r.Actuated.Pod = pod.Spec.Resources
	delete(r.Restarting, spec.Name)
	w.saveRecord(ctx, pod)
}

// forResize tells whether a container has been stopped to get other resources.
func (w *worker) forResize(name string) bool {
	return w.resizing.record != nil && w.resizing.record.Restarting[name]
}

// actuate brings resources to the containers, and returns when to look again.
func (w *worker) actuate(ctx context.Context, pod *corev1.Pod) time.Time {
	r := &w.resizing
	if r.record == nil || r.busy || w.job != nil {
		return time.Time{}
	}
	now := time.Now()
	if now.Before(r.retryAt) {
		return r.retryAt
	}
	var updates []update
	for _, change := range r.record.Changes(pod) {
		c, known := w.runtime.Latest(change.Name)
		if !known || !c.Running() || w.kills[c.GetId()] || w.isStarting(c.GetId()) {
			continue
		}
		spec := findSpec(pod, change.Name)
		if change.Restart {
			r.record.Restarting[change.Name] = true
			w.saveRecord(ctx, pod)
			w.killOne(ctx, pod, kill{container: c, spec: spec, message: fmt.Sprintf("Container %s resize requires restart", spec.Name)})
			continue
		}
		updates = append(updates, update{container: c, spec: spec, from: change.From})
	}
	if len(updates) > 0 || r.record.PodChanged(pod) {
		w.updateBeside(ctx, pod, updates)
	}
	return time.Time{}
}

// update is a running container that is to get other limits.
type update struct {
	container cri.Container
	spec      *corev1.Container
	from      corev1.ResourceRequirements
}

func (w *worker) updateBeside(ctx context.Context, pod *corev1.Pod, updates []update) {
	r := &w.resizing
	r.busy = true
	largest := r.record.Largest(pod)
	w.running.Go(func() {
		done, err := w.updateAll(ctx, pod, largest, updates)
		w.finish(func() {
			r.busy, r.err = false, err
			for _, u := range done {
				r.record.Actuated.Containers[u.spec.Name] = u.spec.Resources
			}
			if err != nil {
				r.retryAt = time.Now().Add(retryResize)
				if ctx.Err() == nil {
					w.cfg.Events.Event(pod, nil, true, "ResizeError", "Pod resize error: "+err.Error())
					w.cfg.Log.Info("Resizing a pod", "pod", name(pod), "err", err)
				}
			} else {
				r.record.Actuated.Pod = pod.Spec.Resources
			}
			w.saveRecord(ctx, pod)
			if err == nil && len(r.record.Changes(pod)) == 0 {
				w.cfg.Events.Event(pod, nil, false, "ResizeCompleted", "Pod resize completed")
				w.retryPending()
			}
		})
	})
}

// updateAll widens the pod's control group, changes the containers, and narrows
// the group to what it is to be. It returns what it could change.
func (w *worker) updateAll(ctx context.Context, pod, largest *corev1.Pod, updates []update) (done []update, err error) {
	if err := w.cfg.Cgroups.EnsurePod(largest); err != nil {
		return nil, err
	}
	var errs []error
	for _, u := range updates {
		if err := w.updateOne(ctx, pod, u); err != nil {
			errs = append(errs, fmt.Errorf("container %s: %w", u.spec.Name, err))
			continue
		}
		done = append(done, u)
	}
	if len(errs) > 0 {
		return done, errors.Join(errs...)
	}
	return done, w.cfg.Cgroups.EnsurePod(pod)
}

func (w *worker) updateOne(ctx context.Context, pod *corev1.Pod, u update) error {
	was, limit := u.from.Limits.Memory().Value(), u.spec.Resources.Limits.Memory().Value()
	if limit > 0 && (was == 0 || limit < was) {
		if used := w.cfg.Cgroups.MemoryUsed(pod, u.container.GetId()); used > limit {
			return fmt.Errorf("attempting to set container %q memory limit (%d) below current usage (%d)", u.spec.Name, limit, used)
		}
	}
	callCtx, cancel := context.WithTimeout(ctx, w.cfg.RuntimeTimeout)
	defer cancel()
	_, err := w.cfg.Runtime.UpdateContainerResources(callCtx, &runtimeapi.UpdateContainerResourcesRequest{
		ContainerId: u.container.GetId(), Linux: w.cfg.Node.UpdatedResources(pod, u.spec),
	})
	if err != nil {
		return errors.New(errorText(err))
	}
	return nil
}

// resizeConditions are what the pod's status says of this.
func (w *worker) resizeConditions(pod *corev1.Pod) []corev1.PodCondition {
	var list []corev1.PodCondition
	r := &w.resizing
	if w.restartingAll {
		list = append(list, corev1.PodCondition{Type: corev1.AllContainersRestarting, Status: corev1.ConditionTrue})
	}
	if r.pending != nil {
		list = append(list, corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: r.pending.Reason, Message: r.pending.Message})
	}
	if r.record == nil || over(pod) || w.stage != living {
		return list
	}
	if r.busy || len(r.record.Changes(pod)) > 0 || len(r.record.Restarting) > 0 || (len(r.record.Actuated.Containers) > 0 && r.record.PodChanged(pod)) {
		condition := corev1.PodCondition{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue}
		if r.err != nil {
			condition.Reason, condition.Message = corev1.PodReasonError, r.err.Error()
		}
		list = append(list, condition)
	}
	return list
}

// resources are what a container's status tells: what it has, or will have.
func (w *worker) resources(name string, running bool) (allocated corev1.ResourceList, resources *corev1.ResourceRequirements) {
	if w.resizing.record == nil {
		return nil, nil
	}
	given, known := w.resizing.record.Allocated.Containers[name]
	if !known {
		return nil, nil
	}
	now := given
	if have, made := w.resizing.record.Actuated.Containers[name]; made && running {
		now = have
	}
	return given.Requests, &now
}

// retryPending lets pods try again that wait for resources which this one may
// have given back.
func (w *Workers) retryPending() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ringWaiting()
}

// ringWaiting wakes them. Caller must hold mu.
func (w *Workers) ringWaiting() {
	for _, worker := range w.workers {
		if worker.waiting.Load() {
			worker.ring()
		}
	}
}

// heldBy are the node's other pods that have not ended, with the resources that they
// have been given.
func (w *Workers) heldBy(except types.UID) []*corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	var others []*corev1.Pod
	for uid, worker := range w.workers {
		if uid != except && !worker.ended.Load() {
			others = append(others, worker.holds())
		}
	}
	return others
}
