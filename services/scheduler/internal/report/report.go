// Package report writes to the API what the scheduler has decided: bindings,
// conditions of pods that found no node, and events.
package report

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
)

// workers is how many conditions are written at once.
const workers = 8

// Reporter writes conditions in the background: of several for one pod, the newest
// only. Events are written by its recorder.
type Reporter struct {
	client   kubernetes.Interface
	recorder events.EventRecorder
	log      *slog.Logger
	queue    workqueue.TypedRateLimitingInterface[types.UID]

	background sync.WaitGroup // evictions

	mu      sync.Mutex
	pending map[types.UID]failure
}

type failure struct {
	pod       *corev1.Pod
	condition corev1.PodCondition
	nominated string
}

// New writes through client and recorder; Run does the writing.
func New(client kubernetes.Interface, recorder events.EventRecorder, log *slog.Logger) *Reporter {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[types.UID](50*time.Millisecond, 30*time.Second)
	return &Reporter{
		client: client, recorder: recorder, log: log, pending: map[types.UID]failure{},
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[types.UID]{Name: "pod_conditions"}),
	}
}

// Bind binds pod to node.
func (r *Reporter) Bind(ctx context.Context, pod *corev1.Pod, node string) error {
	binding := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}
	if err := r.client.CoreV1().Pods(pod.Namespace).Bind(ctx, binding, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("binding pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// Scheduled records the event Scheduled.
func (r *Reporter) Scheduled(pod *corev1.Pod, node string) {
	r.recorder.Eventf(pod, nil, corev1.EventTypeNormal, "Scheduled", "Binding", "Successfully assigned %v/%v to %v", pod.Namespace, pod.Name, node)
}

// Failed records the event FailedScheduling, and sets the condition PodScheduled to
// False where it does not say so yet.
func (r *Reporter) Failed(pod *corev1.Pod, reason, message, nominated string) {
	r.recorder.Eventf(pod, nil, corev1.EventTypeWarning, "FailedScheduling", "Scheduling", "%s", message)
	now := metav1.Now()
	next := corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: reason, Message: message,
		ObservedGeneration: pod.Generation, LastTransitionTime: now,
	}
	for _, c := range pod.Status.Conditions {
		if c.Type != corev1.PodScheduled {
			continue
		}
		if c.Status == next.Status {
			next.LastTransitionTime = c.LastTransitionTime
		}
		if c.Status == next.Status && c.Reason == reason && c.Message == message && (nominated == "" || nominated == pod.Status.NominatedNodeName) {
			return
		}
	}
	r.mu.Lock()
	r.pending[pod.UID] = failure{pod: pod, condition: next, nominated: nominated}
	r.mu.Unlock()
	r.queue.Add(pod.UID)
}

// Run writes conditions until ctx ends.
func (r *Reporter) Run(ctx context.Context) {
	stop := context.AfterFunc(ctx, r.queue.ShutDown)
	defer stop()
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for r.next(ctx) {
			}
		})
	}
	group.Wait()
	r.background.Wait()
}

func (r *Reporter) next(ctx context.Context) bool {
	uid, quit := r.queue.Get()
	if quit {
		return false
	}
	defer r.queue.Done(uid)
	r.mu.Lock()
	f, ok := r.pending[uid]
	delete(r.pending, uid)
	r.mu.Unlock()
	if !ok {
		return true
	}
	err := r.write(ctx, f)
	switch {
	case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err), ctx.Err() != nil: // gone, or another of its name
		r.queue.Forget(uid)
	default:
		r.log.Warn("Writing the condition of a pod, trying again", "pod", f.pod.Namespace+"/"+f.pod.Name, "err", err)
		r.mu.Lock()
		if _, newer := r.pending[uid]; !newer {
			r.pending[uid] = f
		}
		r.mu.Unlock()
		r.queue.AddRateLimited(uid)
	}
	return true
}

func (r *Reporter) write(ctx context.Context, f failure) error {
	status := map[string]any{"conditions": []corev1.PodCondition{f.condition}}
	if f.nominated != "" {
		status["nominatedNodeName"] = f.nominated
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": f.pod.UID}, "status": status})
	if err != nil {
		return fmt.Errorf("encoding condition: %w", err)
	}
	_, err = r.client.CoreV1().Pods(f.pod.Namespace).Patch(ctx, f.pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}
