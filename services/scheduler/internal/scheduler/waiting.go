package scheduler

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
)

// Waiting is the pods that a Permit plugin holds before binding. It is safe for
// concurrent use.
type Waiting struct {
	mu   sync.Mutex
	pods map[types.UID]*waitingPod
}

// NewWaiting has none.
func NewWaiting() *Waiting { return &Waiting{pods: map[types.UID]*waitingPod{}} }

type waitingPod struct {
	timeout time.Duration
	verdict chan *framework.Status
}

func (w *Waiting) add(uid types.UID, timeout time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pods[uid] = &waitingPod{timeout: timeout, verdict: make(chan *framework.Status, 1)}
}

// Allow lets a pod that waits go on; false when it does not wait.
func (w *Waiting) Allow(uid types.UID) bool { return w.decide(uid, nil) }

// Reject refuses a pod that waits for the reason given; false when it does not wait.
func (w *Waiting) Reject(uid types.UID, plugin, reason string) bool {
	return w.decide(uid, framework.NewStatus(framework.Unschedulable, reason).Named(plugin))
}

func (w *Waiting) decide(uid types.UID, verdict *framework.Status) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	pod := w.pods[uid]
	if pod == nil {
		return false
	}
	delete(w.pods, uid)
	pod.verdict <- verdict
	return true
}

// wait blocks while the pod is held, if it is.
func (w *Waiting) wait(ctx context.Context, uid types.UID) *framework.Status {
	w.mu.Lock()
	pod := w.pods[uid]
	w.mu.Unlock()
	if pod == nil {
		return nil
	}
	timer := time.NewTimer(pod.timeout)
	defer timer.Stop()
	select {
	case verdict := <-pod.verdict:
		return verdict
	case <-timer.C:
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pods, uid)
	return framework.NewStatus(framework.Unschedulable, "waiting for permission took too long")
}
