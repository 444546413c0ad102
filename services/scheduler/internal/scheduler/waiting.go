package scheduler

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
)

// waitingPods are pods that a Permit plugin holds before binding.
type waitingPods struct {
	mu   sync.Mutex
	pods map[types.UID]*waitingPod
}

type waitingPod struct {
	timeout time.Duration
	verdict chan *framework.Status
}

func (w *waitingPods) add(uid types.UID, timeout time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pods[uid] = &waitingPod{timeout: timeout, verdict: make(chan *framework.Status, 1)}
}

// decide allows (nil) or refuses a pod that waits; false when it does not.
func (w *waitingPods) decide(uid types.UID, verdict *framework.Status) bool {
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
func (w *waitingPods) wait(ctx context.Context, uid types.UID) *framework.Status {
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
