package eviction

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sampan-io/sampan/services/node-agent/internal/qos"
	"github.com/sampan-io/sampan/services/node-agent/internal/status"
)

// Config is what a Manager needs.
type Config struct {
	Thresholds []Threshold
	Every      time.Duration // between looks at the signals
	// Transition is how long a condition of the node stays after the pressure has
	// gone.
	Transition time.Duration
	// MaxGrace bounds the grace period of pods that are ended for a soft threshold, in
	// seconds.
	MaxGrace int64

	Observe func() map[Signal]Observation
	// Usage measures the pods that run.
	Usage func(ctx context.Context) []Usage
	Pods  Pods
	// Reclaim frees what no pod has to go for, of disks alone; it may be nil.
	Reclaim func(ctx context.Context, signal Signal)
	// Changed is called when the node's conditions have.
	Changed func()
	// Evicted is called for each pod that has to go.
	Evicted func(pod *corev1.Pod, signal Signal, message string)
	Log     *slog.Logger
}

// Manager ends pods when the node runs short of something, one at a time, until
// it does not any more.
type Manager struct {
	cfg Config

	mu       sync.Mutex
	since    map[int]time.Time // when each threshold was first met, by its index
	pressure map[corev1.NodeConditionType]time.Time
	told     []corev1.NodeConditionType // at the last look
	going    types.UID                  // the last pod that was told to go
	until    time.Time                  // when the next one may be
}

// New makes a Manager; Run does the work.
func New(cfg Config) *Manager {
	return &Manager{cfg: cfg, since: map[int]time.Time{}, pressure: map[corev1.NodeConditionType]time.Time{}}
}

// Run looks at the signals until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	if len(m.cfg.Thresholds) == 0 {
		<-ctx.Done()
		return nil
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		wait := m.cfg.Every
		if m.Sync(ctx, time.Now()) {
			const soon = time.Second // to see whether that was enough
			wait = min(wait, soon)
		}
		timer.Reset(wait)
	}
}

// Sync looks once, and tells whether a pod was ended, or is about to be gone.
func (m *Manager) Sync(ctx context.Context, now time.Time) bool {
	seen := m.cfg.Observe()
	met := m.observe(seen, now)
	if len(met) == 0 || m.leaving(now) {
		return len(met) > 0
	}
	worst := met[0]
	if worst.Signal.condition() == corev1.NodeDiskPressure && m.cfg.Reclaim != nil {
		m.cfg.Reclaim(ctx, worst.Signal)
		seen = m.cfg.Observe()
		if !worst.met(seen[worst.Signal], true) {
			return true
		}
	}
	return m.evictOne(ctx, worst, seen[worst.Signal], now)
}

// met tells whether less is left than may be. Again asks for the minimum that is
// to be reclaimed, too.
func (t Threshold) met(seen Observation, again bool) bool {
	if seen.Capacity == 0 {
		return false
	}
	least := t.Value.Of(seen.Capacity)
	if again {
		least += t.MinReclaim.Of(seen.Capacity)
	}
	return seen.Available < least
}

// observe updates the conditions and returns the thresholds to act on, in order.
func (m *Manager) observe(seen map[Signal]Observation, now time.Time) []Threshold {
	m.mu.Lock()
	var act []Threshold
	for i, t := range m.cfg.Thresholds {
		first, was := m.since[i]
		if !t.met(seen[t.Signal], was) {
			delete(m.since, i)
			continue
		}
		if !was {
			first = now
			m.since[i] = now
		}
		if now.Sub(first) < t.Grace {
			continue
		}
		m.pressure[t.Signal.condition()] = now
		act = append(act, t)
	}
	conditions := m.conditions(now)
	changed := !slices.Equal(conditions, m.told)
	m.told = conditions
	m.mu.Unlock()
	if changed && m.cfg.Changed != nil {
		m.cfg.Changed()
	}
	slices.SortStableFunc(act, func(a, b Threshold) int { return a.Signal.rank() - b.Signal.rank() })
	return act
}

// conditions are those of the node now. Caller must hold mu.
func (m *Manager) conditions(now time.Time) []corev1.NodeConditionType {
	var list []corev1.NodeConditionType
	for _, condition := range []corev1.NodeConditionType{corev1.NodeDiskPressure, corev1.NodeMemoryPressure, corev1.NodePIDPressure} {
		if last, met := m.pressure[condition]; met && (now.Sub(last) < m.cfg.Transition || now.Equal(last)) {
			list = append(list, condition)
		}
	}
	return list
}

// Conditions are the pressures that the node is under.
func (m *Manager) Conditions() []corev1.NodeConditionType {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.conditions(time.Now())
}

// leaving tells that the last pod that was told to go has not gone yet.
func (m *Manager) leaving(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.going != "" && now.Before(m.until) && m.cfg.Pods.Runs(m.going)
}

// evictOne ends the pod that is first in the order.
func (m *Manager) evictOne(ctx context.Context, t Threshold, seen Observation, now time.Time) bool {
	var pods []Usage
	for _, usage := range m.cfg.Usage(ctx) {
		if !qos.Critical(usage.Pod) && usage.Pod.DeletionTimestamp == nil && usage.Pod.Status.Phase != corev1.PodFailed && usage.Pod.Status.Phase != corev1.PodSucceeded {
			pods = append(pods, usage)
		}
	}
	if len(pods) == 0 {
		m.cfg.Log.WarnContext(ctx, "The node runs short, and no pod can be ended for it", "signal", t.Signal, "available", seen.Available)
		return false
	}
	victim := Rank(pods, t.Signal.resource())[0]
	message := lowMessage(&victim, t, seen)
	grace := int64(1)
	if t.Grace > 0 {
		grace = m.cfg.MaxGrace
		if own := victim.Pod.Spec.TerminationGracePeriodSeconds; own != nil {
			grace = min(grace, *own)
		}
	}
	m.cfg.Log.WarnContext(ctx, "Evicting a pod", "pod", victim.Pod.Namespace+"/"+victim.Pod.Name, "signal", t.Signal, "available", seen.Available, "threshold", t.Value.Of(seen.Capacity))
	m.cfg.Evicted(victim.Pod, t.Signal, message)
	m.cfg.Pods.Evict(victim.Pod.UID, Evicted(message, grace))
	const patience = 30 * time.Second
	m.mu.Lock()
	m.going, m.until = victim.Pod.UID, now.Add(patience)
	m.mu.Unlock()
	return true
}

// Evicted is the end of a pod that had to go for the node's sake.
func Evicted(message string, grace int64) status.End {
	return status.End{Reason: status.ReasonEvicted, Message: message, Grace: grace, Disruption: corev1.PodReasonTerminationByKubelet}
}

// Admit tells why a pod cannot start while the node is under pressure, or nil.
func (m *Manager) Admit(pod *corev1.Pod) *status.End {
	conditions := m.Conditions()
	if len(conditions) == 0 || qos.Critical(pod) {
		return nil
	}
	if len(conditions) == 1 && conditions[0] == corev1.NodeMemoryPressure {
		if qos.Class(pod) != corev1.PodQOSBestEffort || tolerates(pod, corev1.TaintNodeMemoryPressure) {
			return nil
		}
	}
	names := make([]string, 0, len(conditions))
	for _, condition := range conditions {
		names = append(names, string(condition))
	}
	return &status.End{Reason: status.ReasonEvicted, Message: fmt.Sprintf("The node had condition: [%s]. ", strings.Join(names, " "))}
}

func tolerates(pod *corev1.Pod, key string) bool {
	return slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
		return (t.Key == key || (t.Key == "" && t.Operator == corev1.TolerationOpExists)) && (t.Effect == "" || t.Effect == corev1.TaintEffectNoSchedule)
	})
}
