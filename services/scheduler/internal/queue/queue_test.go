package queue_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/sampan-io/sampan/services/scheduler/internal/cluster"
	"github.com/sampan-io/sampan/services/scheduler/internal/config"
	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
	"github.com/sampan-io/sampan/services/scheduler/internal/queue"
)

func mustQueue(t *testing.T) (*queue.Queue, *clocktesting.FakeClock) {
	t.Helper()
	profiles, err := config.Default().Build(framework.Handle{})
	if err != nil {
		t.Fatal(err)
	}
	clock := clocktesting.NewFakeClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	return queue.New(profiles, queue.Options{InitialBackoff: time.Second, MaxBackoff: 10 * time.Second, Clock: clock}), clock
}

func newPod(t *testing.T, name string, change func(*corev1.Pod)) *cluster.Pod {
	t.Helper()
	object := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec:       corev1.PodSpec{SchedulerName: config.DefaultSchedulerName, Containers: []corev1.Container{{Name: "c"}}},
	}
	if change != nil {
		change(object)
	}
	pod, err := cluster.NewPod(object)
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func withPriority(p int32) func(*corev1.Pod) { return func(pod *corev1.Pod) { pod.Spec.Priority = &p } }

func mustPop(t *testing.T, q *queue.Queue, want string) *framework.QueuedPod {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	queued, ok := q.Pop(ctx)
	if !ok || queued.Object.Name != want {
		t.Fatalf("popped %v (%t), want %s; queue has %v", queued, ok, want, q.Counts())
	}
	return queued
}

func assertPart(t *testing.T, q *queue.Queue, pod, want string) {
	t.Helper()
	if got, _ := q.Where(types.UID(pod)); got != want {
		t.Errorf("pod %s is in %q, want %q", pod, got, want)
	}
}

func nodeAdded(node *corev1.Node) framework.Change {
	return framework.Change{Event: framework.Event{Resource: framework.NodeResource, Action: framework.Add, Label: "NodeAdd"}, NewNode: node}
}

func TestQueuePopsByPriorityThenAge(t *testing.T) {
	q, clock := mustQueue(t)
	for _, p := range []struct {
		name     string
		priority int32
	}{{"old", 0}, {"young", 0}, {"urgent", 10}} {
		q.Add(newPod(t, p.name, withPriority(p.priority)))
		clock.Step(time.Millisecond)
	}
	for _, want := range []string{"urgent", "old", "young"} {
		mustPop(t, q, want)
	}
}

func TestQueueHoldsRefusedPodUntilAChangeThatHelps(t *testing.T) {
	q, _ := mustQueue(t)
	tainted := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}}}
	q.Add(newPod(t, "p", nil))
	q.Refused(mustPop(t, q, "p"), sets.New("TaintToleration"))
	assertPart(t, q, "p", queue.Unschedulable)
	q.Change(nodeAdded(tainted))
	assertPart(t, q, "p", queue.Unschedulable)
	q.Change(nodeAdded(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "m"}}))
	assertPart(t, q, "p", queue.Backoff)
	mustPop(t, q, "p") // nothing else waits: it need not sit out its pause
}

func TestQueueDoesNotMissAChangeDuringTheAttempt(t *testing.T) {
	q, _ := mustQueue(t)
	q.Add(newPod(t, "p", nil))
	queued := mustPop(t, q, "p")
	q.Change(nodeAdded(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "m"}}))
	q.Refused(queued, sets.New("TaintToleration"))
	assertPart(t, q, "p", queue.Backoff)
}

func TestQueueBacksOffLongerAfterEachFault(t *testing.T) {
	q, clock := mustQueue(t)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); q.Run(ctx) }()
	defer func() { stop(); <-done }()
	q.Add(newPod(t, "p", nil))
	for attempt, pause := range []time.Duration{1, 2, 4, 8, 10, 10} {
		q.Refused(mustPop(t, q, "p"), nil)
		assertPart(t, q, "p", queue.Backoff)
		// Run waits on the timer of the pause and on its ticker.
		for clock.Waiters() < 2 {
			time.Sleep(time.Millisecond)
		}
		clock.Step(pause*time.Second - time.Millisecond)
		if part, _ := q.Where("p"); part != queue.Backoff {
			t.Fatalf("after attempt %d the pod came back before %v s", attempt+1, int(pause))
		}
		for clock.Waiters() < 2 {
			time.Sleep(time.Millisecond)
		}
		clock.Step(time.Millisecond)
	}
	mustPop(t, q, "p")
}

func TestQueueKeepsGatedPodOutUntilItsGatesGo(t *testing.T) {
	q, _ := mustQueue(t)
	gated := newPod(t, "p", func(pod *corev1.Pod) { pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} })
	q.Add(gated)
	assertPart(t, q, "p", queue.Gated)
	q.Change(nodeAdded(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "m"}}))
	assertPart(t, q, "p", queue.Gated)
	q.Update(gated.Object, newPod(t, "p", nil))
	mustPop(t, q, "p")
}

func TestQueueForgetsPodThatWentDuringTheAttempt(t *testing.T) {
	q, _ := mustQueue(t)
	q.Add(newPod(t, "p", nil))
	queued := mustPop(t, q, "p")
	q.Remove("p")
	q.Refused(queued, nil)
	assertPart(t, q, "p", "")
}

func TestQueueTriesAgainWhatChangedDuringTheAttempt(t *testing.T) {
	q, _ := mustQueue(t)
	pod := newPod(t, "p", nil)
	q.Add(pod)
	queued := mustPop(t, q, "p")
	q.Update(pod.Object, newPod(t, "p", func(pod *corev1.Pod) {
		pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	}))
	q.Refused(queued, sets.New("TaintToleration"))
	assertPart(t, q, "p", queue.Backoff)
	if len(queued.Object.Spec.Tolerations) != 1 {
		t.Error("the queue gave back the old version of the pod")
	}
}

func TestQueuePopEndsWithItsContext(t *testing.T) {
	q, _ := mustQueue(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if queued, ok := q.Pop(ctx); ok {
		t.Errorf("popped %v from an empty queue", queued)
	}
}
