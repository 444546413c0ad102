package status

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/cri"
)

// begin is when everything in these tests begins.
func begin() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

func sandbox(ready bool) []*runtimeapi.PodSandboxStatus {
	s := &runtimeapi.PodSandboxStatus{Id: "s", Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "10.0.0.1"}}
	if !ready {
		s.State, s.Network = runtimeapi.PodSandboxState_SANDBOX_NOTREADY, nil
	}
	return []*runtimeapi.PodSandboxStatus{s}
}

func container(name string, restarts int, state runtimeapi.ContainerState, code int32, reason string) cri.Container {
	return cri.Container{SandboxID: "s", ContainerStatus: &runtimeapi.ContainerStatus{
		Id: fmt.Sprintf("%s%d", name, restarts), State: state, ExitCode: code, Reason: reason, ImageRef: "ref", Image: &runtimeapi.ImageSpec{Image: "img:v1"},
		CreatedAt: begin().Add(time.Duration(restarts) * time.Minute).UnixNano(), StartedAt: begin().UnixNano(), FinishedAt: begin().Add(time.Second).UnixNano(),
		Labels: map[string]string{cri.LabelContainerName: name}, Annotations: map[string]string{cri.AnnotationRestartCount: fmt.Sprint(restarts)},
	}}
}

func runs(name string) cri.Container {
	return container(name, 0, runtimeapi.ContainerState_CONTAINER_RUNNING, 0, "")
}

func ended(name string, code int32) cri.Container {
	return container(name, 0, runtimeapi.ContainerState_CONTAINER_EXITED, code, "")
}

func pod(policy corev1.RestartPolicy, inits, apps string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u", Generation: 3}, Spec: corev1.PodSpec{RestartPolicy: policy}}
	for _, name := range strings.Fields(inits) {
		c := corev1.Container{Name: strings.TrimSuffix(name, "*"), Image: "img"}
		if strings.HasSuffix(name, "*") {
			always := corev1.ContainerRestartPolicyAlways
			c.RestartPolicy = &always
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
	for _, name := range strings.Fields(apps) {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: name, Image: "img"})
	}
	return p
}

func input(p *corev1.Pod, sandboxes []*runtimeapi.PodSandboxStatus, containers ...cri.Container) Input {
	yes := func(string) bool { return true }
	return Input{
		Pod: p, Runtime: cri.Pod{Sandboxes: sandboxes, Containers: containers}, RuntimeName: "rt", HostIPs: []string{"192.0.2.1"}, Now: begin(),
		Started: yes, Ready: yes, Starting: func(string) bool { return false }, Message: func(cri.Container) string { return "said" },
	}
}

// show is a status in words.
func show(s corev1.PodStatus) string {
	parts := []string{string(s.Phase)}
	for _, list := range [][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses} {
		for _, c := range list {
			text := c.Name + " "
			switch {
			case c.State.Running != nil:
				text += "running"
			case c.State.Terminated != nil:
				text += fmt.Sprintf("%s(%d)", c.State.Terminated.Reason, c.State.Terminated.ExitCode)
			case c.State.Waiting != nil:
				text += c.State.Waiting.Reason
			}
			if last := c.LastTerminationState.Terminated; last != nil {
				text += fmt.Sprintf(" after %s(%d)", last.Reason, last.ExitCode)
			}
			if c.Ready {
				text += " ready"
			}
			parts = append(parts, text)
		}
	}
	for _, c := range s.Conditions {
		if c.Status == corev1.ConditionTrue {
			parts = append(parts, "+"+string(c.Type))
		}
	}
	return strings.Join(parts, ", ")
}

func TestComputePhaseContainersAndConditions(t *testing.T) {
	const always, onFailure, never = corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever
	crash := map[string]Waiting{"a": {Reason: ReasonCrashLoopBackOff, Message: "back-off"}}
	for _, c := range []struct {
		name   string
		in     Input
		change func(in *Input)
		want   string
	}{
		{name: "nothing yet", in: input(pod(always, "", "a"), nil), want: "Pending, a ContainerCreating, +Initialized, +PodScheduled"},
		{name: "the sandbox is there", in: input(pod(always, "i", "a"), sandbox(true)), want: "Pending, i PodInitializing, a PodInitializing, +PodReadyToStartContainers, +PodScheduled"},
		{name: "an init container runs", in: input(pod(always, "i", "a"), sandbox(true), runs("i")), want: "Pending, i running, a PodInitializing, +PodReadyToStartContainers, +PodScheduled"},
		{name: "the init container is done", in: input(pod(always, "i", "a"), sandbox(true), ended("i", 0)),
			want: "Pending, i Completed(0) ready, a ContainerCreating, +PodReadyToStartContainers, +Initialized, +PodScheduled"},
		{name: "an init container failed for good", in: input(pod(never, "i", "a"), sandbox(true), ended("i", 1)),
			want: "Failed, i Error(1), a PodInitializing, +PodReadyToStartContainers, +PodScheduled"},
		{name: "a sidecar has started", in: input(pod(always, "s*", "a"), sandbox(true), runs("s")),
			want: "Pending, s running ready, a ContainerCreating, +PodReadyToStartContainers, +Initialized, +PodScheduled"},
		{name: "all runs", in: input(pod(always, "", "a b"), sandbox(true), runs("a"), runs("b")),
			want: "Running, a running ready, b running ready, +PodReadyToStartContainers, +Initialized, +Ready, +ContainersReady, +PodScheduled"},
		{name: "one is not ready", in: input(pod(always, "", "a b"), sandbox(true), runs("a"), runs("b")), change: func(in *Input) { in.Ready = func(id string) bool { return id != "b0" } },
			want: "Running, a running ready, b running, +PodReadyToStartContainers, +Initialized, +PodScheduled"},
		{name: "one waits for its image", in: input(pod(always, "", "a b"), sandbox(true), runs("b")), change: func(in *Input) { in.Waiting = map[string]Waiting{"a": {Reason: "ErrImagePull"}} },
			want: "Pending, a ErrImagePull, b running ready, +PodReadyToStartContainers, +Initialized, +PodScheduled"},
		{name: "one crashes", in: input(pod(always, "", "a"), sandbox(true), ended("a", 2)), change: func(in *Input) { in.Waiting = crash },
			want: "Running, a CrashLoopBackOff after Error(2), +PodReadyToStartContainers, +Initialized, +PodScheduled"},
		{name: "one runs again", in: input(pod(always, "", "a"), sandbox(true), container("a", 1, runtimeapi.ContainerState_CONTAINER_RUNNING, 0, ""), container("a", 0, runtimeapi.ContainerState_CONTAINER_EXITED, 137, "OOMKilled")),
			want: "Running, a running after OOMKilled(137) ready, +PodReadyToStartContainers, +Initialized, +Ready, +ContainersReady, +PodScheduled"},
		{name: "the last is ending", in: input(pod(onFailure, "", "a"), sandbox(true), ended("a", 0)),
			want: "Running, a Completed(0), +PodReadyToStartContainers, +Initialized, +PodScheduled"},
		{name: "success", in: input(pod(onFailure, "", "a"), sandbox(false), ended("a", 0)), change: func(in *Input) { in.Finished = true },
			want: "Succeeded, a Completed(0), +Initialized, +PodScheduled"},
		{name: "failure", in: input(pod(never, "", "a b"), sandbox(false), ended("a", 1), ended("b", 0)), change: func(in *Input) { in.Finished = true },
			want: "Failed, a Error(1), b Completed(0), +Initialized, +PodScheduled"},
		{name: "evicted", in: input(pod(always, "", "a"), nil), change: func(in *Input) { in.End = &End{Reason: ReasonEvicted, Message: "m"} },
			want: "Failed, a ContainerCreating, +Initialized, +PodScheduled"},
		{name: "its hook after the start goes on", in: input(pod(always, "", "a"), sandbox(true), runs("a")), change: func(in *Input) { in.Starting = func(string) bool { return true } },
			want: "Pending, a ContainerCreating, +PodReadyToStartContainers, +Initialized, +PodScheduled"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.change != nil {
				c.change(&c.in)
			}
			if got := show(Compute(c.in)); got != c.want {
				t.Errorf("status\n%s, want\n%s", got, c.want)
			}
		})
	}
}

func TestComputeKeepsWhatItMust(t *testing.T) {
	p := pod(corev1.RestartPolicyAlways, "", "a")
	first := Compute(input(p, sandbox(true), runs("a")))
	p.Status = first
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: "example.com/gate", Status: corev1.ConditionTrue})
	in := input(p, sandbox(true), runs("a"))
	in.Now = begin().Add(time.Hour)
	again := Compute(in)
	if !again.StartTime.Equal(first.StartTime) {
		t.Error("the start time has changed")
	}
	found := false
	for _, condition := range again.Conditions {
		found = found || condition.Type == "example.com/gate"
		if condition.Type == corev1.PodReady && !condition.LastTransitionTime.Time.Equal(begin()) {
			t.Errorf("the time of readiness has changed: %+v", condition)
		}
		if Owned(condition.Type) && condition.ObservedGeneration != 3 {
			t.Errorf("condition %+v", condition)
		}
	}
	if !found {
		t.Error("another's condition is lost")
	}
	p.Status.Phase, p.Status.Reason = corev1.PodFailed, "Because"
	if got := Compute(input(p, sandbox(true), runs("a"))); got.Phase != corev1.PodFailed || got.Reason != "Because" {
		t.Errorf("a failed pod became %s %s", got.Phase, got.Reason)
	}
}

func TestReadinessGatesHoldAPodBack(t *testing.T) {
	p := pod(corev1.RestartPolicyAlways, "", "a")
	p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.com/gate"}}
	ready := func() corev1.PodCondition {
		for _, condition := range Compute(input(p, sandbox(true), runs("a"))).Conditions {
			if condition.Type == corev1.PodReady {
				return condition
			}
		}
		return corev1.PodCondition{}
	}
	if got := ready(); got.Status != corev1.ConditionFalse || got.Reason != "ReadinessGatesNotReady" || got.Message != `corresponding condition of pod readiness gate "example.com/gate" does not exist.` {
		t.Errorf("condition %+v", got)
	}
	p.Status.Conditions = []corev1.PodCondition{{Type: "example.com/gate", Status: corev1.ConditionTrue}}
	if got := ready(); got.Status != corev1.ConditionTrue {
		t.Errorf("condition %+v", got)
	}
}

func TestStatusPatchTouchesOnlyWhatIsOurs(t *testing.T) {
	p := pod(corev1.RestartPolicyAlways, "", "a")
	p.Status.Conditions = []corev1.PodCondition{{Type: "example.com/gate", Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(begin())}}
	next := Compute(input(p, sandbox(true), runs("a")))
	data, unchanged, err := statusPatch(p, &next)
	if err != nil || unchanged {
		t.Fatalf("patch %s, unchanged %v, %v", data, unchanged, err)
	}
	var patch struct {
		Metadata map[string]any
		Status   struct{ Conditions []map[string]any }
	}
	if err := json.Unmarshal(data, &patch); err != nil {
		t.Fatal(err)
	}
	if patch.Metadata["uid"] != "u" || len(patch.Metadata) != 1 {
		t.Errorf("metadata %v", patch.Metadata)
	}
	for _, condition := range patch.Status.Conditions {
		if condition["type"] == "example.com/gate" {
			t.Errorf("the patch has another's condition: %s", data)
		}
	}
	p.Status = next
	if data, unchanged, err := statusPatch(p, &next); err != nil || !unchanged {
		t.Errorf("an equal status makes the patch %s, %v", data, err)
	}
}
