package podworker

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/cri"
	"github.com/sampan-io/sampan/services/node-agent/internal/probes"
)

// world is what the runtime has of a pod, in words: "sandbox", "old sandbox", and
// for containers "name running", "name exited 3", "name created", with "in old" for
// those of the old sandbox.
func world(t *testing.T, now time.Time, lines ...string) *cri.Pod {
	t.Helper()
	pod := &cri.Pod{}
	for i, text := range lines {
		at := now.Add(time.Duration(i-len(lines)) * time.Second).UnixNano()
		words := strings.Fields(text)
		switch {
		case text == "sandbox":
			pod.Sandboxes = append([]*runtimeapi.PodSandboxStatus{{
				Id: "new", Metadata: &runtimeapi.PodSandboxMetadata{Attempt: uint32(len(pod.Sandboxes))}, State: runtimeapi.PodSandboxState_SANDBOX_READY,
				Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "10.0.0.1"},
			}}, pod.Sandboxes...)
			continue
		case text == "old sandbox":
			pod.Sandboxes = append(pod.Sandboxes, &runtimeapi.PodSandboxStatus{
				Id: "old", Metadata: &runtimeapi.PodSandboxMetadata{}, State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY, Network: &runtimeapi.PodSandboxNetworkStatus{},
			})
			continue
		case len(words) < 2:
			t.Fatalf("%q is not understood", text)
		}
		status := &runtimeapi.ContainerStatus{
			Id: fmt.Sprintf("%s-%d", words[0], i), Metadata: &runtimeapi.ContainerMetadata{Name: words[0]}, CreatedAt: at, StartedAt: at, Image: &runtimeapi.ImageSpec{},
			Labels: map[string]string{cri.LabelContainerName: words[0]}, Annotations: map[string]string{cri.AnnotationRestartCount: fmt.Sprint(len(pod.Instances(words[0])))},
		}
		switch words[1] {
		case "running":
			status.State = runtimeapi.ContainerState_CONTAINER_RUNNING
		case "created":
			status.State = runtimeapi.ContainerState_CONTAINER_CREATED
		case "exited":
			status.State, status.FinishedAt = runtimeapi.ContainerState_CONTAINER_EXITED, at
			if _, err := fmt.Sscan(words[2], &status.ExitCode); err != nil {
				t.Fatal(err)
			}
		}
		sandbox := "new"
		if strings.HasSuffix(text, "in old") {
			sandbox = "old"
		}
		pod.Containers = append([]cri.Container{{ContainerStatus: status, SandboxID: sandbox}}, pod.Containers...)
	}
	return pod
}

// describe says what a plan does, in order.
func describe(p *plan) string {
	var parts []string
	if p.newSandbox {
		parts = append(parts, fmt.Sprintf("sandbox#%d", p.attempt))
	}
	for _, c := range p.discard {
		parts = append(parts, "discard "+c.Name())
	}
	for _, k := range p.kills {
		parts = append(parts, "kill "+k.container.Name())
	}
	for _, s := range p.starts {
		parts = append(parts, fmt.Sprintf("start %s#%d", s.spec.Name, s.restarts))
	}
	for name := range p.holds {
		parts = append(parts, "hold "+name)
	}
	if p.finished {
		parts = append(parts, "finished")
	}
	return strings.Join(parts, ", ")
}

func newPod(policy corev1.RestartPolicy, inits, sidecars, apps string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "uid"}, Spec: corev1.PodSpec{RestartPolicy: policy}}
	always := corev1.ContainerRestartPolicyAlways
	for _, name := range strings.Fields(sidecars) {
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, corev1.Container{Name: name, RestartPolicy: &always})
	}
	for _, name := range strings.Fields(inits) {
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, corev1.Container{Name: name})
	}
	for _, name := range strings.Fields(apps) {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: name})
	}
	return pod
}

func TestPlan(t *testing.T) {
	const always, onFailure, never = corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever
	for _, c := range []struct {
		name     string
		pod      *corev1.Pod
		world    []string
		starting string // containers whose startup probe has not succeeded
		dead     string // containers whose liveness probe has failed
		pause    time.Duration
		want     string
	}{
		{name: "a new pod", pod: newPod(always, "", "", "a b"), want: "sandbox#0, start a#0, start b#0"},
		{name: "a new pod begins with its first init container", pod: newPod(always, "i j", "", "a"), want: "sandbox#0, start i#0"},
		{name: "a new pod begins with its first sidecar", pod: newPod(always, "i", "s", "a"), want: "sandbox#0, start s#0"},
		{name: "only the sandbox is there", pod: newPod(always, "", "", "a"), world: []string{"sandbox"}, want: "start a#0"},
		{name: "all runs", pod: newPod(always, "", "", "a b"), world: []string{"sandbox", "a running", "b running"}, want: ""},
		{name: "one of two has ended", pod: newPod(always, "", "", "a b"), world: []string{"sandbox", "a exited 0", "b running"}, want: "start a#1"},
		{name: "a pause is kept", pod: newPod(always, "", "", "a b"), world: []string{"sandbox", "a exited 1", "b running"}, pause: time.Minute, want: "hold a"},
		{name: "a failure restarts", pod: newPod(onFailure, "", "", "a"), world: []string{"sandbox", "a exited 1"}, want: "start a#1"},
		{name: "success does not", pod: newPod(onFailure, "", "", "a"), world: []string{"sandbox", "a exited 0"}, want: "finished"},
		{name: "never does not", pod: newPod(never, "", "", "a b"), world: []string{"sandbox", "a exited 1", "b running"}, want: ""},
		{name: "never has an end", pod: newPod(never, "", "", "a b"), world: []string{"sandbox", "a exited 1", "b exited 0"}, want: "finished"},
		{name: "init containers go one by one", pod: newPod(always, "i j", "", "a"), world: []string{"sandbox", "i exited 0"}, want: "start j#0"},
		{name: "an init container that runs is waited for", pod: newPod(always, "i j", "", "a"), world: []string{"sandbox", "i running"}, want: ""},
		{name: "after the last init container", pod: newPod(always, "i j", "", "a b"), world: []string{"sandbox", "i exited 0", "j exited 0"}, want: "start a#0, start b#0"},
		{name: "an init container that failed restarts", pod: newPod(always, "i", "", "a"), world: []string{"sandbox", "i exited 2"}, want: "start i#1"},
		{name: "unless it never may", pod: newPod(never, "i", "", "a"), world: []string{"sandbox", "i exited 2"}, want: "finished"},
		{name: "init containers that were removed are not run again", pod: newPod(always, "i", "", "a"), world: []string{"sandbox", "a running"}, want: ""},
		{name: "a sidecar lets the next start once it has started", pod: newPod(always, "i", "s", "a"), world: []string{"sandbox", "s running"}, want: "start i#0"},
		{name: "a sidecar that has not started holds all back", pod: newPod(always, "i", "s", "a"), world: []string{"sandbox", "s running"}, starting: "s", want: ""},
		{name: "a sidecar always restarts", pod: newPod(never, "", "s", "a"), world: []string{"sandbox", "s exited 0", "a running"}, want: "start s#1"},
		{name: "sidecars do not keep a pod alive", pod: newPod(never, "", "s", "a"), world: []string{"sandbox", "s running", "a exited 0"}, want: "finished"},
		{name: "a dead container is killed", pod: newPod(always, "", "", "a"), world: []string{"sandbox", "a running"}, dead: "a", want: "kill a"},
		{name: "a container that was never started is made anew", pod: newPod(always, "", "", "a"), world: []string{"sandbox", "a created"}, want: "discard a, start a#0"},
		{name: "a lost sandbox is replaced", pod: newPod(always, "i", "", "a"), world: []string{"old sandbox", "i exited 0 in old", "a exited 255 in old"}, want: "sandbox#1, start i#1"},
		{name: "but not for what had ended well", pod: newPod(onFailure, "", "", "a"), world: []string{"old sandbox", "a exited 0 in old"}, want: "finished"},
		{name: "nor for what never restarts", pod: newPod(never, "", "", "a"), world: []string{"old sandbox", "a exited 255 in old"}, want: "finished"},
		{name: "unless nothing had run", pod: newPod(never, "", "", "a"), world: []string{"old sandbox"}, want: "sandbox#1, start a#0"},
		{name: "after a new sandbox all begins again", pod: newPod(always, "i", "", "a"), world: []string{"old sandbox", "i exited 0 in old", "a exited 255 in old", "sandbox", "i exited 0"}, want: "start a#1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := time.Now()
			p := makePlan(planInput{
				pod: c.pod, runtime: world(t, now, c.world...), now: now,
				pause:   func(cri.Container) time.Duration { return c.pause },
				killing: func(string) bool { return false },
				verdict: func(id string, kind probes.Kind) probes.Verdict {
					name, _, _ := strings.Cut(id, "-")
					switch {
					case kind == probes.Startup && c.starting == name:
						return probes.Unknown
					case kind == probes.Liveness && c.dead == name:
						return probes.Failure
					}
					return probes.Success
				},
			})
			if got := describe(p); got != c.want {
				t.Errorf("plan %q, want %q", got, c.want)
			}
		})
	}
}

func TestShouldRestartFollowsRulesThenPolicies(t *testing.T) {
	never, onFailure := corev1.ContainerRestartPolicyNever, corev1.ContainerRestartPolicyOnFailure
	rule := []corev1.ContainerRestartRule{{
		Action:    corev1.ContainerRestartRuleActionRestart,
		ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}},
	}}
	for _, c := range []struct {
		pod  corev1.RestartPolicy
		spec corev1.Container
		code int32
		want bool
	}{
		{corev1.RestartPolicyAlways, corev1.Container{}, 0, true},
		{corev1.RestartPolicyOnFailure, corev1.Container{}, 0, false},
		{corev1.RestartPolicyOnFailure, corev1.Container{}, 1, true},
		{corev1.RestartPolicyNever, corev1.Container{}, 1, false},
		{corev1.RestartPolicyAlways, corev1.Container{RestartPolicy: &never}, 1, false},
		{corev1.RestartPolicyNever, corev1.Container{RestartPolicy: &onFailure}, 1, true},
		{corev1.RestartPolicyAlways, corev1.Container{RestartPolicy: &never, RestartPolicyRules: rule}, 42, true},
		{corev1.RestartPolicyAlways, corev1.Container{RestartPolicy: &never, RestartPolicyRules: rule}, 1, false},
	} {
		pod := newPod(c.pod, "", "", "")
		if got := shouldRestart(pod, &c.spec, c.code); got != c.want {
			t.Errorf("%s %+v exited %d: restart %v", c.pod, c.spec.RestartPolicy, c.code, got)
		}
	}
}

func TestTurnsStopSidecarsLastToFirst(t *testing.T) {
	pod := newPod(corev1.RestartPolicyAlways, "", "s t", "a")
	running := world(t, time.Now(), "s running", "t running", "a running").Containers
	turns := newTurns(pod, running)
	order := make(chan string, 3)
	finished := make(chan struct{})
	for _, name := range []string{"s", "t", "a"} {
		go func() {
			turns.wait(t.Context(), name, time.Now().Add(time.Minute))
			order <- name
			turns.done(name)
			finished <- struct{}{}
		}()
	}
	for range 3 {
		<-finished
	}
	if got := <-order + <-order + <-order; got != "ats" {
		t.Errorf("order %q, want the container, then the last sidecar, then the first", got)
	}
}
