package conformance

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// webServer serves /echo on port 8080 and prints the paths of its requests.
const webServer = "mkdir /tmp/www; touch /tmp/www/echo; busybox httpd -f -vv -p 8080 -h /tmp/www"

var containers = map[string]func(*testing.T){
	"should use the image defaults if command and args are blank [NodeConformance]":                   imageDefaults,
	"should be able to override the image's default arguments (container cmd) [NodeConformance]":      overridden(nil, []string{"/bin/echo", "args"}, "args\n"),
	"should be able to override the image's default command (container entrypoint) [NodeConformance]": overridden([]string{"/bin/echo", "command"}, nil, "command\n"),
	"should be able to override the image's default command and arguments [NodeConformance]":          overridden([]string{"/bin/echo"}, []string{"both", "of them"}, "both of them\n"),
}

func imageDefaults(t *testing.T) {
	namespace := newNamespace(t)
	made := pod("defaults", "")
	made.Spec.Containers[0].Command = nil
	create(t, namespace, made)
	running := awaitRunning(t, namespace, "defaults")
	eventuallyShell(t, namespace, "defaults", "wget -q -O - http://"+running.Status.PodIP+":8080/", "defaults")
}

func overridden(command, args []string, want string) func(*testing.T) {
	return func(t *testing.T) {
		made := pod("overridden", "")
		made.Spec.Containers[0].Command, made.Spec.Containers[0].Args = command, args
		if printed := output(t, newNamespace(t), made); printed != want {
			t.Errorf("the pod prints %q, not %q", printed, want)
		}
	}
}

var configMapEnvironment = map[string]func(*testing.T){
	"should be consumable via environment variable [NodeConformance]": environmentOf(storeConfigMap, func(made *corev1.Pod) {
		made.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "VALUE", ValueFrom: &corev1.EnvVarSource{
			ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "object"}, Key: "data_1"},
		}}}
	}, "VALUE=value-1"),
	"should be consumable via the environment [NodeConformance]": environmentOf(storeConfigMap, func(made *corev1.Pod) {
		reference := corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "object"}}
		made.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &reference}, {Prefix: "p_", ConfigMapRef: &reference}}
	}, "data_1=value-1", "data_2=value-2", "p_data_1=value-1"),
}

var secretEnvironment = map[string]func(*testing.T){
	"should be consumable from pods in env vars [NodeConformance]": environmentOf(storeSecret, func(made *corev1.Pod) {
		made.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "VALUE", ValueFrom: &corev1.EnvVarSource{
			SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "object"}, Key: "data_1"},
		}}}
	}, "VALUE=value-1"),
	"should be consumable via the environment [NodeConformance]": environmentOf(storeSecret, func(made *corev1.Pod) {
		reference := corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "object"}}
		made.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{SecretRef: &reference}, {Prefix: "p_", SecretRef: &reference}}
	}, "data_1=value-1", "data_2=value-2", "p_data_1=value-1"),
}

func environmentOf(store func(*testing.T, string, string, map[string]string), use func(*corev1.Pod), want ...string) func(*testing.T) {
	return func(t *testing.T) {
		namespace := newNamespace(t)
		store(t, namespace, "object", map[string]string{"data_1": "value-1", "data_2": "value-2"})
		made := pod("environment", "env")
		use(made)
		contains(t, output(t, namespace, made), want...)
	}
}

// runtimeBlackbox is what a container's end reports.
var runtimeBlackbox = map[string]func(*testing.T){
	"blackbox test on terminated container should report termination message if TerminationMessagePath is set as non-root user and at a non-default path [NodeConformance]": func(t *testing.T) {
		made := asUser(pod("message", "printf DONE > /dev/termination-custom-log"), 10000)
		made.Spec.Containers[0].TerminationMessagePath = "/dev/termination-custom-log"
		assertMessage(t, made, corev1.PodSucceeded, "DONE")
	},
	"blackbox test on terminated container should report termination message from log output if TerminationMessagePolicy FallbackToLogsOnError is set [NodeConformance]": func(t *testing.T) {
		assertMessage(t, falling("printf DONE; exit 1"), corev1.PodFailed, "DONE")
	},
	"blackbox test on terminated container should report termination message as empty when pod succeeds and TerminationMessagePolicy FallbackToLogsOnError is set [NodeConformance]": func(t *testing.T) {
		assertMessage(t, falling("printf DONE"), corev1.PodSucceeded, "")
	},
	"blackbox test on terminated container should report termination message from file when pod succeeds and TerminationMessagePolicy FallbackToLogsOnError is set [NodeConformance]": func(t *testing.T) {
		assertMessage(t, falling("printf OK > /dev/termination-log; printf DONE"), corev1.PodSucceeded, "OK")
	},
	"blackbox test when starting a container that exits should run with the expected status [NodeConformance]": expectedStatus,
}

func falling(script string) *corev1.Pod {
	made := pod("message", script)
	made.Spec.Containers[0].TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
	return made
}

func assertMessage(t *testing.T, made *corev1.Pod, phase corev1.PodPhase, want string) {
	t.Helper()
	namespace := newNamespace(t)
	made.Spec.RestartPolicy = corev1.RestartPolicyNever
	create(t, namespace, made)
	ended := awaitPod(t, namespace, made.Name, string(phase), func(pod *corev1.Pod) bool { return pod.Status.Phase == phase })
	if terminated := ended.Status.ContainerStatuses[0].State.Terminated; terminated == nil || terminated.Message != want {
		t.Errorf("the container ended as %+v, not with the message %q", terminated, want)
	}
}

// expectedStatus runs a container that fails at its first and second start and
// then stays, under each restart policy.
func expectedStatus(t *testing.T) {
	namespace := newNamespace(t)
	const script = `f=/etc/vol/count; n=$(cat $f 2>/dev/null || echo 0); n=$((n+1)); echo $n > $f; `
	for _, c := range []struct {
		policy   corev1.RestartPolicy
		script   string
		phase    corev1.PodPhase
		restarts int32
		ready    bool
	}{
		{corev1.RestartPolicyAlways, script + `[ $n -ge 2 ] && sleep 3600; exit 1`, corev1.PodRunning, 1, true},
		{corev1.RestartPolicyOnFailure, script + `[ $n -ge 2 ]`, corev1.PodSucceeded, 1, false},
		{corev1.RestartPolicyNever, script + `exit 1`, corev1.PodFailed, 0, false},
	} {
		made := withVolume(pod("terminate-"+strings.ToLower(string(c.policy)), c.script), emptyDir(""))
		made.Spec.RestartPolicy = c.policy
		create(t, namespace, made)
		awaitPod(t, namespace, made.Name, fmt.Sprintf("%s after %d restarts", c.phase, c.restarts), func(pod *corev1.Pod) bool {
			if pod.Status.Phase != c.phase || len(pod.Status.ContainerStatuses) != 1 {
				return false
			}
			status := pod.Status.ContainerStatuses[0]
			return status.RestartCount == c.restarts && status.Ready == c.ready && (status.State.Running != nil) == c.ready
		})
	}
}

var variableExpansion = map[string]func(*testing.T){
	"should allow composing env vars into new env vars [NodeConformance]": func(t *testing.T) {
		made := withEnv(pod("composed", "env"), "FOO", "foo-value", "BAR", "bar-value", "FOOBAR", "$(FOO);;$(BAR)")
		contains(t, output(t, newNamespace(t), made), "FOO=foo-value\n", "BAR=bar-value\n", "FOOBAR=foo-value;;bar-value\n")
	},
	"should allow substituting values in a container's command [NodeConformance]": func(t *testing.T) {
		made := withEnv(pod("command", `TEST_VAR=wrong echo "$(TEST_VAR)"`), "TEST_VAR", "test-value")
		contains(t, output(t, newNamespace(t), made), "test-value")
	},
	"should allow substituting values in a container's args [NodeConformance]": func(t *testing.T) {
		made := withEnv(pod("args", ""), "TEST_VAR", "test-value")
		made.Spec.Containers[0].Command, made.Spec.Containers[0].Args = []string{"/bin/sh", "-c"}, []string{`TEST_VAR=wrong echo "$(TEST_VAR)"`}
		contains(t, output(t, newNamespace(t), made), "test-value")
	},
	"should allow substituting values in a volume subpath": func(t *testing.T) {
		made := withSubPathExpr(pod("expanded", "test -d /testcontainer/expanded && echo there"), "$(POD_NAME)")
		made.Spec.Containers[0].VolumeMounts = append(made.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "workdir", MountPath: "/testcontainer"})
		if printed := output(t, newNamespace(t), made); printed != "there\n" {
			t.Errorf("the pod prints %q", printed)
		}
	},
	"should fail substituting values in a volume subpath with absolute path":                                    func(t *testing.T) { failsToExpand(t, "/tmp") },
	"should fail substituting values in a volume subpath with backticks":                                        func(t *testing.T) { failsToExpand(t, "..") },
	"should succeed in writing subpaths in container":                                                           writesSubpath,
	"should verify that a failing subpath expansion can be modified during the lifecycle of a container [Slow]": expansionIsRepaired,
}

// withSubPathExpr mounts a scratch volume at /volume_mount under a path that is
// made from the pod's name or its annotation.
func withSubPathExpr(made *corev1.Pod, expression string) *corev1.Pod {
	withFieldEnv(made, "POD_NAME", "metadata.name", "ANNOTATION", "metadata.annotations['mysubpath']")
	made.Spec.Volumes = []corev1.Volume{{Name: "workdir", VolumeSource: emptyDir("")}}
	made.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "workdir", MountPath: "/volume_mount", SubPathExpr: expression}}
	return made
}

func failsToExpand(t *testing.T, annotation string) {
	t.Helper()
	namespace := newNamespace(t)
	made := withSubPathExpr(pod("refused", "sleep 3600"), "$(ANNOTATION)")
	made.Annotations = map[string]string{"mysubpath": annotation}
	create(t, namespace, made)
	refused := awaitPod(t, namespace, "refused", "refused", waitingToStart)
	if refused.Status.Phase != corev1.PodPending {
		t.Errorf("the pod is %s", refused.Status.Phase)
	}
}

func waitingToStart(pod *corev1.Pod) bool {
	return len(pod.Status.ContainerStatuses) > 0 && pod.Status.ContainerStatuses[0].State.Waiting != nil &&
		pod.Status.ContainerStatuses[0].State.Waiting.Reason == "CreateContainerConfigError"
}

func writesSubpath(t *testing.T) {
	namespace := newNamespace(t)
	made := withSubPathExpr(pod("writer", "sleep 3600"), "$(ANNOTATION)/$(POD_NAME)")
	made.Annotations = map[string]string{"mysubpath": "mypath"}
	made.Spec.Containers[0].VolumeMounts = append(made.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "workdir", MountPath: "/whole"})
	create(t, namespace, made)
	awaitRunning(t, namespace, "writer")
	shell(t, namespace, "writer", "touch /volume_mount/test.log && test -f /whole/mypath/writer/test.log")
	cluster.MustKubectl(t, "-n", namespace, "annotate", "pod", "writer", "--overwrite", "mysubpath=other")
	shell(t, namespace, "writer", "test -f /volume_mount/test.log")
	must(t, client.CoreV1().Pods(namespace).Delete(t.Context(), "writer", metav1.DeleteOptions{}))
	awaitNoPod(t, namespace, "writer")
}

func awaitNoPod(t *testing.T, namespace, name string) {
	t.Helper()
	eventually(t, "pod "+name+" to be gone", func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		return gone(err), nil
	})
}

func expansionIsRepaired(t *testing.T) {
	namespace := newNamespace(t)
	made := withSubPathExpr(pod("repaired", "sleep 3600"), "$(ANNOTATION)")
	made.Annotations = map[string]string{"mysubpath": "/absolute"}
	create(t, namespace, made)
	awaitPod(t, namespace, "repaired", "refused", waitingToStart)
	cluster.MustKubectl(t, "-n", namespace, "annotate", "pod", "repaired", "--overwrite", "mysubpath=mypath")
	awaitRunning(t, namespace, "repaired")
}

// lifecycleHooks are what runs after a container's start and before its end.
var lifecycleHooks = map[string]func(*testing.T){
	"when create a pod with lifecycle hook should execute poststart exec hook properly [NodeConformance]": hookRuns(true, false),
	"when create a pod with lifecycle hook should execute poststart http hook properly [NodeConformance]": hookRuns(true, true),
	"when create a pod with lifecycle hook should execute prestop exec hook properly [NodeConformance]":   hookRuns(false, false),
	"when create a pod with lifecycle hook should execute prestop http hook properly [NodeConformance]":   hookRuns(false, true),
}

var preStop = map[string]func(*testing.T){
	"should call prestop when killing a pod": hookRuns(false, false),
}

// hookRuns starts a pod that logs requests, and one with a hook that sends it one.
func hookRuns(start, http bool) func(*testing.T) {
	return func(t *testing.T) {
		namespace := newNamespace(t)
		server := pod("handler", webServer)
		server.Spec.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intPort(8080)}}}
		create(t, namespace, server)
		handler := awaitReady(t, namespace, "handler").Status.PodIP
		hook := &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"/bin/sh", "-c", "wget -q -O - http://" + handler + ":8080/echo?msg=hook"}}}
		if http {
			hook = &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/echo?msg=hook", Host: handler, Port: intPort(8080)}}
		}
		made := pod("hooked", "sleep 3600")
		made.Spec.TerminationGracePeriodSeconds = new(int64(15))
		made.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{}
		if start {
			made.Spec.Containers[0].Lifecycle.PostStart = hook
		} else {
			made.Spec.Containers[0].Lifecycle.PreStop = hook
		}
		create(t, namespace, made)
		awaitReady(t, namespace, "hooked")
		if !start {
			must(t, client.CoreV1().Pods(namespace).Delete(t.Context(), "hooked", metav1.DeleteOptions{}))
		}
		eventuallyHas(t, func() string { return logs(t, namespace, "handler", "c") }, "url:/echo")
	}
}

var initContainers = map[string]func(*testing.T){
	"should invoke init containers on a RestartNever pod": func(t *testing.T) {
		namespace := newNamespace(t)
		made := withInit(pod("init", "true"), "true", "true")
		made.Spec.RestartPolicy = corev1.RestartPolicyNever
		create(t, namespace, made)
		assertInitialized(t, awaitSucceeded(t, namespace, "init"))
	},
	"should invoke init containers on a RestartAlways pod": func(t *testing.T) {
		namespace := newNamespace(t)
		create(t, namespace, withInit(pod("init", "sleep 3600"), "true", "true"))
		assertInitialized(t, awaitReady(t, namespace, "init"))
	},
	"should not start app containers if init containers fail on a RestartAlways pod": func(t *testing.T) {
		namespace := newNamespace(t)
		create(t, namespace, withInit(pod("init", "sleep 3600"), "false", "true"))
		failing := awaitPod(t, namespace, "init", "restarting its first init container", func(pod *corev1.Pod) bool {
			return len(pod.Status.InitContainerStatuses) == 2 && pod.Status.InitContainerStatuses[0].RestartCount >= 2
		})
		assertNotStarted(t, failing, corev1.PodPending)
	},
	"should not start app containers and fail the pod if init containers fail on a RestartNever pod": func(t *testing.T) {
		namespace := newNamespace(t)
		made := withInit(pod("init", "sleep 3600"), "true", "false")
		made.Spec.RestartPolicy = corev1.RestartPolicyNever
		create(t, namespace, made)
		failed := awaitPod(t, namespace, "init", "failed", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodFailed })
		assertNotStarted(t, failed, corev1.PodFailed)
	},
}

func withInit(made *corev1.Pod, scripts ...string) *corev1.Pod {
	for i, script := range scripts {
		made.Spec.InitContainers = append(made.Spec.InitContainers, corev1.Container{
			Name: fmt.Sprint("init", i+1), Image: image, Command: []string{"/bin/sh", "-c", script},
		})
	}
	return made
}

func assertInitialized(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	for _, status := range pod.Status.InitContainerStatuses {
		if !status.Ready || status.State.Terminated == nil || status.State.Terminated.ExitCode != 0 {
			t.Errorf("init container %s: %+v", status.Name, status)
		}
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodInitialized && condition.Status == corev1.ConditionTrue {
			return
		}
	}
	t.Errorf("the pod is not initialized: %+v", pod.Status.Conditions)
}

func assertNotStarted(t *testing.T, pod *corev1.Pod, phase corev1.PodPhase) {
	t.Helper()
	if waiting := pod.Status.ContainerStatuses[0].State.Waiting; pod.Status.Phase != phase || waiting == nil || waiting.Reason != "PodInitializing" {
		t.Errorf("the pod is %s, its container %+v", pod.Status.Phase, pod.Status.ContainerStatuses[0].State)
	}
}

var ephemeralContainers = map[string]func(*testing.T){
	"will start an ephemeral container in an existing pod":      ephemeralContainer,
	"should update the ephemeral containers in an existing pod": ephemeralContainer,
}

func ephemeralContainer(t *testing.T) {
	namespace := newNamespace(t)
	create(t, namespace, pod("target", "sleep 3600"))
	read := awaitRunning(t, namespace, "target")
	api := client.CoreV1().Pods(namespace)
	for i, name := range []string{"debugger", "second"} {
		read.Spec.EphemeralContainers = append(read.Spec.EphemeralContainers, corev1.EphemeralContainer{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: name, Image: image, Command: []string{"/bin/sh", "-c", "echo polo; sleep 3600"}},
		})
		read = got(api.UpdateEphemeralContainers(t.Context(), "target", read, metav1.UpdateOptions{}))(t)
		if len(read.Spec.EphemeralContainers) != i+1 {
			t.Fatalf("the pod has %d ephemeral containers", len(read.Spec.EphemeralContainers))
		}
		read = awaitPod(t, namespace, "target", "running "+name, func(pod *corev1.Pod) bool {
			return len(pod.Status.EphemeralContainerStatuses) == i+1 && pod.Status.EphemeralContainerStatuses[i].State.Running != nil
		})
		eventuallyHas(t, func() string { return logs(t, namespace, "target", name) }, "polo")
	}
}

// restartsSeen are the pod's restarts at the time of the call.
func restartsSeen(t *testing.T, namespace, name string) int32 {
	t.Helper()
	read := got(client.CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{}))(t)
	if len(read.Status.ContainerStatuses) == 0 {
		return 0
	}
	return read.Status.ContainerStatuses[0].RestartCount
}

// observe looks at the pod again and again for a while.
func observe(t *testing.T, namespace, name string, span time.Duration, check func(*corev1.Pod)) {
	t.Helper()
	for deadline := time.Now().Add(span); time.Now().Before(deadline); {
		check(got(client.CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{}))(t))
		select {
		case <-t.Context().Done():
			return
		case <-time.After(250 * time.Millisecond):
		}
	}
}
