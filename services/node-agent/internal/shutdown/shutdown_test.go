package shutdown_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/node-agent/internal/shutdown"
	"github.com/sampan-io/sampan/services/node-agent/internal/status"
)

// fakeMachine announces what it is told, and has pods that take a while to end.
type fakeMachine struct {
	announcements chan bool
	takes         map[types.UID]time.Duration

	mu    sync.Mutex
	held  time.Duration
	holds int
	ends  []string // pods in the order in which they were told to end
	end   map[types.UID]status.End
	gone  map[types.UID]bool
}

func (m *fakeMachine) Hold(_ context.Context, most time.Duration) (func(), error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held = most
	m.holds++
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.holds--
	}, nil
}

func (m *fakeMachine) Announcements(context.Context) (<-chan bool, error) {
	return m.announcements, nil
}

func (m *fakeMachine) Pods() []*corev1.Pod {
	pod := func(name string, priority int32, grace int64) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{Priority: &priority, TerminationGracePeriodSeconds: ptr.To(grace)}}
	}
	return []*corev1.Pod{pod("critical", 2000000000, 30), pod("usual", 0, 30), pod("brief", 100, 2), pod("low", -10, 30)}
}

func (m *fakeMachine) Runs(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.gone[uid]
}

func (m *fakeMachine) Evict(uid types.UID, end status.End) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ends = append(m.ends, string(uid))
	m.end[uid] = end
	time.AfterFunc(m.takes[uid], func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.gone[uid] = true
	})
}

func newMachine() *fakeMachine {
	return &fakeMachine{announcements: make(chan bool), takes: map[types.UID]time.Duration{}, end: map[types.UID]status.End{}, gone: map[types.UID]bool{}}
}

func TestPodsEndByPriorityBeforeTheMachineDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine()
		m.takes["usual"], m.takes["critical"] = 3*time.Second, time.Second
		changed := 0
		watch := shutdown.New(shutdown.Config{
			Periods: shutdown.Periods(30*time.Second, 10*time.Second), Announcer: m, Pods: m,
			Changed: func() { changed++ }, Event: func(string) {}, Log: slog.New(slog.DiscardHandler),
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- watch.Run(ctx) }()
		synctest.Wait()
		if m.held != 30*time.Second || watch.Going() || watch.Admit() != nil {
			t.Errorf("held %v, going %v", m.held, watch.Going())
		}
		began := time.Now()
		m.announcements <- true
		synctest.Wait()
		if end := watch.Admit(); end == nil || end.Reason != "NodeShutdown" || end.Message != "Pod was rejected as the node is shutting down." || changed != 1 {
			t.Errorf("admits with %+v", end)
		}
		if slices.Contains(m.ends, "critical") {
			t.Error("the critical pod was ended with the others")
		}
		for { // the lock is given back when all have ended
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
			m.mu.Lock()
			holds := m.holds
			m.mu.Unlock()
			if holds == 0 {
				break
			}
		}
		if took := time.Since(began); took < 4*time.Second || took > 5*time.Second {
			t.Errorf("it took %v", took)
		}
		if m.ends[len(m.ends)-1] != "critical" || len(m.ends) != 4 {
			t.Errorf("ended %v", m.ends)
		}
		if end := m.end["usual"]; end.Grace != 20 || end.Reason != "Terminated" || end.Message != "Pod was terminated in response to imminent node shutdown." || end.Disruption != "TerminationByKubelet" {
			t.Errorf("the usual pod's end is %+v", end)
		}
		if m.end["brief"].Grace != 2 || m.end["critical"].Grace != 10 {
			t.Errorf("ends %+v", m.end)
		}
		m.announcements <- false // called off
		synctest.Wait()
		if watch.Going() || m.holds != 1 || changed != 2 {
			t.Errorf("after it was called off: going %v, %d locks", watch.Going(), m.holds)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestPodThatHangsHoldsUpOnlyItsPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine()
		m.takes["usual"] = time.Hour
		watch := shutdown.New(shutdown.Config{
			Periods: []shutdown.Period{{Priority: 2000000000, Grace: 5 * time.Second}, {Priority: 0, Grace: 10 * time.Second}}, Announcer: m, Pods: m,
			Changed: func() {}, Event: func(string) {}, Log: slog.New(slog.DiscardHandler),
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- watch.Run(ctx) }()
		m.announcements <- true
		time.Sleep(9 * time.Second)
		synctest.Wait()
		if slices.Contains(m.ends, "critical") {
			t.Error("the critical pod was ended too early")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if !slices.Contains(m.ends, "critical") {
			t.Error("the critical pod was not ended")
		}
		cancel()
		<-done
	})
}

// without is a machine that has no logind.
type without struct{ fakeMachine }

func (*without) Announcements(context.Context) (<-chan bool, error) {
	return nil, errors.New("no bus")
}

func TestMachineWithoutLogindGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &without{}
		watch := shutdown.New(shutdown.Config{Periods: shutdown.Periods(time.Second, 0), Announcer: m, Pods: m, Changed: func() {}, Event: func(string) {}, Log: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := watch.Run(ctx); err != nil || watch.Going() {
			t.Errorf("error %v", err)
		}
	})
}

func TestPeriods(t *testing.T) {
	if shutdown.Periods(0, 0) != nil || shutdown.Periods(time.Second, time.Minute) != nil {
		t.Error("periods that make no sense were taken")
	}
}
