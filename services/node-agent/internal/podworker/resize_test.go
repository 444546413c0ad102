package podworker_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sampan-io/sampan/services/node-agent/internal/status"
)

// gate is a drainer that opens when it is told to.
type gate struct {
	asked chan string // pods
	open  chan struct{}
}

func (g *gate) Await(ctx context.Context, pod *corev1.Pod, _ []string, _ time.Duration) {
	g.asked <- pod.Name
	select {
	case <-g.open:
	case <-ctx.Done():
	}
}

func TestContainersOfADeletedPodRunUntilTheProxiesHaveLetGo(t *testing.T) {
	n := newNode(t)
	n.end()
	g := &gate{asked: make(chan string, 4), open: make(chan struct{})}
	n.drainer = g
	n.start()
	n.create("served", nil)
	n.create("evicted", nil)
	n.awaitPhase("served", corev1.PodRunning)
	n.awaitPhase("evicted", corev1.PodRunning)
	// A pod that the node ends itself is not waited for: it has no time to lose.
	n.workers.Evict("uid-evicted", status.End{Reason: "Evicted", Grace: 1})
	n.awaitPhase("evicted", corev1.PodFailed)
	n.markDeleted("served", 30)
	if name := <-g.asked; name != "served" {
		t.Errorf("asked about %s", name)
	}
	stopped := n.runtime.Calls("StopContainer")
	n.eventually("the event", func() bool { return n.told("served/main Killing: Stopping container main") })
	if got := n.runtime.Calls("StopContainer"); got != stopped {
		t.Fatal("the container was stopped before the proxies had let go")
	}
	close(g.open)
	n.awaitGone("served")
	if len(g.asked) > 0 {
		t.Errorf("asked about %s too", <-g.asked)
	}
}

func withMemory(limit string) func(pod *corev1.Pod) {
	return func(pod *corev1.Pod) {
		list := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(limit)}
		pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list, Limits: list}
	}
}

func (n *node) condition(name string, kind corev1.PodConditionType) *corev1.PodCondition {
	pod := n.get(name)
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
	if i < 0 {
		return nil
	}
	return &pod.Status.Conditions[i]
}

func TestResizeThatTheRuntimeRefusesIsToldOfAndTriedAgain(t *testing.T) {
	n := newNode(t)
	n.create("pod", withMemory("10Mi"))
	n.awaitPhase("pod", corev1.PodRunning)
	n.runtime.Fail("UpdateContainerResources", func(any) (error, bool) { return errors.New("the kernel does not like it"), false })
	pod := n.get("pod")
	withMemory("20Mi")(pod)
	n.workers.Update(pod)
	n.eventually("the error", func() bool {
		c := n.condition("pod", corev1.PodResizeInProgress)
		return c != nil && c.Reason == corev1.PodReasonError && strings.Contains(c.Message, "the kernel does not like it")
	})
	if have := n.get("pod").Status.ContainerStatuses[0]; have.Resources.Limits.Memory().String() != "10Mi" || have.AllocatedResources.Memory().String() != "20Mi" {
		t.Errorf("it has %v and was given %v", have.Resources.Limits, have.AllocatedResources)
	}
	n.runtime.Fail("UpdateContainerResources", nil)
	n.eventually("the resize to be done", func() bool {
		have := n.get("pod").Status.ContainerStatuses[0]
		return have.Resources.Limits.Memory().String() == "20Mi" && n.condition("pod", corev1.PodResizeInProgress) == nil
	})
	if !n.told("pod ResizeError: ") || !n.told("pod ResizeCompleted: ") {
		t.Errorf("events %q", n.events)
	}
}

func TestResizeThatDoesNotFitWaits(t *testing.T) {
	n := newNode(t)
	n.create("pod", withMemory("10Mi"))
	other := n.create("other", nil)
	n.awaitPhase("pod", corev1.PodRunning)
	n.awaitPhase("other", corev1.PodRunning)
	n.refuse(&status.End{Reason: corev1.PodReasonDeferred, Message: "not now"})
	pod := n.get("pod")
	withMemory("20Mi")(pod)
	n.workers.Update(pod)
	n.eventually("the condition", func() bool {
		c := n.condition("pod", corev1.PodResizePending)
		return c != nil && c.Reason == corev1.PodReasonDeferred && c.Message == "not now"
	})
	n.refuse(nil)
	n.markDeleted(other.Name, 1)
	n.eventually("the resize after the other pod has gone", func() bool {
		have := n.get("pod").Status.ContainerStatuses[0]
		return n.condition("pod", corev1.PodResizePending) == nil && have.AllocatedResources.Memory().String() == "20Mi"
	})
}
