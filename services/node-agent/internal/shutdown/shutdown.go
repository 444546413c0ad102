// Package shutdown ends a node's pods before the machine goes down, by priority,
// when systemd-logind announces it (KEP-2000, KEP-2712). Ending this program ends no
// pod: that is what makes upgrades harmless.
package shutdown

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sampan-io/sampan/services/node-agent/internal/status"
)

// Period is how long pods of at least a priority may take to end.
type Period struct {
	Priority int32
	Grace    time.Duration
}

// critical is the least priority of system pods.
const critical = 2000000000

// Periods are those that shutdownGracePeriod and shutdownGracePeriodCriticalPods
// mean; none if there is no total.
func Periods(total, forCritical time.Duration) []Period {
	if total <= 0 || forCritical > total {
		return nil
	}
	return []Period{{Priority: 0, Grace: total - forCritical}, {Priority: critical, Grace: forCritical}}
}

// Announcer tells of shutdowns and can hold them up.
type Announcer interface {
	// Hold asks that shutdowns wait for as long, until release is called.
	Hold(ctx context.Context, most time.Duration) (release func(), err error)
	// Announcements are true when a shutdown begins and false when one is called off.
	// The channel is closed when they end.
	Announcements(ctx context.Context) (<-chan bool, error)
}

// Pods are the node's.
type Pods interface {
	Pods() []*corev1.Pod
	Runs(uid types.UID) bool
	Evict(uid types.UID, end status.End)
}

// Config is what a Watch needs.
type Config struct {
	Periods   []Period
	Announcer Announcer
	Pods      Pods
	Changed   func()            // called when a shutdown begins or is called off
	Event     func(text string) // of the node
	Log       *slog.Logger
}

// Watch waits for the machine to go down.
type Watch struct {
	cfg Config

	mu    sync.Mutex
	going bool
}

// New makes a Watch; Run does the work.
func New(cfg Config) *Watch {
	slices.SortFunc(cfg.Periods, func(a, b Period) int { return int(a.Priority) - int(b.Priority) })
	return &Watch{cfg: cfg}
}

// Going tells whether the machine is going down.
func (w *Watch) Going() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.going
}

// Admit tells why no pod can start any more, or nil.
func (w *Watch) Admit() *status.End {
	if !w.Going() {
		return nil
	}
	return &status.End{Reason: "NodeShutdown", Message: "Pod was rejected as the node is shutting down."}
}

// Run watches until ctx ends, again after the announcer's failures.
func (w *Watch) Run(ctx context.Context) error {
	if len(w.cfg.Periods) == 0 {
		<-ctx.Done()
		return nil
	}
	const pause = time.Second
	told := false
	for ctx.Err() == nil {
		if err := w.follow(ctx); err != nil && ctx.Err() == nil && !told {
			told = true // once: a machine without logind will not get one
			w.cfg.Log.WarnContext(ctx, "Shutdowns of the machine are not watched for", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return nil
}

func (w *Watch) follow(ctx context.Context) error {
	var total time.Duration
	for _, p := range w.cfg.Periods {
		total += p.Grace
	}
	announcements, err := w.cfg.Announcer.Announcements(ctx)
	if err != nil {
		return err
	}
	release, err := w.cfg.Announcer.Hold(ctx, total)
	if err != nil {
		return err
	}
	defer func() { release() }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case going, open := <-announcements:
			if !open {
				return nil
			}
			w.set(going)
			if going {
				w.cfg.Event("Shutdown manager detected shutdown event")
				w.endPods(ctx)
				release()
				release = func() {}
				continue
			}
			w.cfg.Event("Shutdown manager detected shutdown cancellation")
			release()
			if release, err = w.cfg.Announcer.Hold(ctx, total); err != nil {
				release = func() {}
				return err
			}
		}
	}
}

func (w *Watch) set(going bool) {
	w.mu.Lock()
	changed := w.going != going
	w.going = going
	w.mu.Unlock()
	if changed {
		w.cfg.Changed()
	}
}

// endPods ends the pods of one period after the other, and waits for each.
func (w *Watch) endPods(ctx context.Context) {
	groups := make([][]*corev1.Pod, len(w.cfg.Periods))
	for _, pod := range w.cfg.Pods.Pods() {
		if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			at := w.group(pod)
			groups[at] = append(groups[at], pod)
		}
	}
	for i, period := range w.cfg.Periods {
		for _, pod := range groups[i] {
			grace := int64(period.Grace / time.Second)
			if own := pod.Spec.TerminationGracePeriodSeconds; own != nil {
				grace = min(grace, *own)
			}
			w.cfg.Log.InfoContext(ctx, "Ending a pod, for the machine goes down", "pod", pod.Namespace+"/"+pod.Name, "grace", grace)
			w.cfg.Pods.Evict(pod.UID, status.End{
				Reason: "Terminated", Message: "Pod was terminated in response to imminent node shutdown.",
				Grace: max(grace, 1), Disruption: corev1.PodReasonTerminationByKubelet,
			})
		}
		w.await(ctx, groups[i], period.Grace)
	}
}

// group is the period of the highest priority that the pod has at least; the
// lowest one if it has none.
func (w *Watch) group(pod *corev1.Pod) int {
	priority := int32(0)
	if pod.Spec.Priority != nil {
		priority = *pod.Spec.Priority
	}
	at := 0
	for i, period := range w.cfg.Periods {
		if period.Priority <= priority {
			at = i
		}
	}
	return at
}

// await waits until none of the pods runs, or for the period.
func (w *Watch) await(ctx context.Context, pods []*corev1.Pod, most time.Duration) {
	const look = 100 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for slices.ContainsFunc(pods, func(pod *corev1.Pod) bool { return w.cfg.Pods.Runs(pod.UID) }) {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
