package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sampan-io/sampan/services/internal/testenv"
)

// awaitEvent waits for an event of the pod with the reason and a message that
// contains text.
func awaitEvent(t *testing.T, namespace, pod, reason, text string) {
	t.Helper()
	testenv.Eventually(t, 60*time.Second, "event "+reason+" of "+pod, func(ctx context.Context) error {
		events, err := cluster.Client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod})
		if err != nil {
			return err
		}
		var seen []string
		for _, event := range events.Items {
			if event.Reason == reason && strings.Contains(event.Message, text) {
				return nil
			}
			seen = append(seen, event.Reason+": "+event.Message)
		}
		return fmt.Errorf("events are %q", seen)
	})
}

func TestCrashLoopBacksOff(t *testing.T) {
	namespace := newNamespace(t)
	mustCreatePod(t, namespace, newPod("crashing", "exit 1"))
	pod := awaitPod(t, namespace, "crashing", "backs off", func(p *corev1.Pod) bool {
		s := first(p)
		return s.RestartCount >= 1 && s.State.Waiting != nil && s.State.Waiting.Reason == "CrashLoopBackOff"
	})
	if message := first(pod).State.Waiting.Message; !strings.Contains(message, "back-off 10s restarting failed container=main") {
		t.Errorf("message is %q", message)
	}
	if last := first(pod).LastTerminationState.Terminated; last == nil || last.ExitCode != 1 {
		t.Errorf("last state is %+v", first(pod).LastTerminationState)
	}
	awaitEvent(t, namespace, "crashing", "BackOff", "Back-off restarting failed container main")
}

func TestOutOfMemoryIsReported(t *testing.T) {
	namespace := newNamespace(t)
	pod := newPod("hungry", "dd if=/dev/zero of=/dev/null bs=200M count=1")
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("32Mi")}
	mustCreatePod(t, namespace, pod)
	got := awaitPod(t, namespace, "hungry", "failed", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if end := first(got).State.Terminated; end == nil || end.Reason != "OOMKilled" || end.ExitCode != 137 {
		t.Errorf("container state is %+v", first(got).State)
	}
}

func TestImageThatDoesNotExist(t *testing.T) {
	namespace := newNamespace(t)
	pod := newPod("imageless", "true")
	pod.Spec.Containers[0].Image = "127.0.0.1:1/no/such:image"
	mustCreatePod(t, namespace, pod)
	awaitPod(t, namespace, "imageless", "waits for its image", func(p *corev1.Pod) bool {
		w := first(p).State.Waiting
		return w != nil && (w.Reason == "ErrImagePull" || w.Reason == "ImagePullBackOff")
	})
	awaitEvent(t, namespace, "imageless", "Failed", "127.0.0.1:1/no/such:image")
}

func TestUnschedulableSaysWhy(t *testing.T) {
	namespace := newNamespace(t)
	pod := newPod("huge", "true")
	pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1000")}
	mustCreatePod(t, namespace, pod)
	const why = "0/2 nodes are available: 2 Insufficient cpu."
	got := awaitPod(t, namespace, "huge", "is unschedulable", func(p *corev1.Pod) bool {
		return hasCondition(p, corev1.PodScheduled, corev1.ConditionFalse)
	})
	for _, c := range got.Status.Conditions {
		if c.Type == corev1.PodScheduled && (c.Reason != corev1.PodReasonUnschedulable || !strings.HasPrefix(c.Message, why)) {
			t.Errorf("condition is %+v", c)
		}
	}
	awaitEvent(t, namespace, "huge", "FailedScheduling", why)
}

func probe(handler corev1.ProbeHandler) *corev1.Probe {
	return &corev1.Probe{ProbeHandler: handler, PeriodSeconds: 1, FailureThreshold: 1, SuccessThreshold: 1, TimeoutSeconds: 1}
}

func TestEachKindOfProbe(t *testing.T) {
	namespace := newNamespace(t)
	handlers := map[string]corev1.ProbeHandler{
		"exec": {Exec: &corev1.ExecAction{Command: []string{"cat", "/tmp/fine"}}},
		"http": {HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(8080)}},
		"tcp":  {TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(8080)}},
	}
	for name, handler := range handlers {
		pod := newPod("ready-"+name, "until [ -e /tmp/fine ]; do sleep 0.1; done; exec /demo serve")
		pod.Spec.Containers[0].ReadinessProbe = probe(handler)
		mustCreatePod(t, namespace, pod)
	}
	for name := range handlers {
		t.Run(name, func(t *testing.T) {
			pod := "ready-" + name
			awaitPod(t, namespace, pod, "runs unready", func(p *corev1.Pod) bool {
				return p.Status.Phase == corev1.PodRunning && hasCondition(p, corev1.PodReady, corev1.ConditionFalse)
			})
			cluster.MustKubectl(t, "-n", namespace, "exec", pod, "--", "touch", "/tmp/fine")
			awaitReady(t, namespace, pod)
		})
	}
}

func TestLivenessProbeRestartsAndStartupProbeHoldsIt(t *testing.T) {
	namespace := newNamespace(t)
	pod := newPod("lively", "touch /tmp/alive; sleep 2; touch /tmp/started; sleep 1; rm /tmp/alive; sleep 3600")
	pod.Spec.Containers[0].LivenessProbe = probe(corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"cat", "/tmp/alive"}}})
	pod.Spec.Containers[0].StartupProbe = probe(corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"cat", "/tmp/started"}}})
	pod.Spec.Containers[0].StartupProbe.FailureThreshold = 30
	mustCreatePod(t, namespace, pod)
	awaitPod(t, namespace, "lively", "is restarted", func(p *corev1.Pod) bool { return first(p).RestartCount >= 1 })
	awaitEvent(t, namespace, "lively", "Unhealthy", "Liveness probe failed")
	awaitEvent(t, namespace, "lively", "Killing", "failed liveness probe, will be restarted")
}
