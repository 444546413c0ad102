package app_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func (s *site) mustEvent(pod, text string) {
	s.t.Helper()
	s.eventually("the event "+text+" of pod "+pod, func() error {
		events := s.events(pod)
		if slices.ContainsFunc(events, func(event string) bool { return strings.Contains(event, text) }) {
			return nil
		}
		return fmt.Errorf("events %q", events)
	})
}

func TestPodLives(t *testing.T) {
	s := newSite(t)
	for _, c := range []struct {
		name string
		test func(s *site)
	}{
		{"a pod runs, logs, and goes", podRunsAndGoes},
		{"init containers run in order", initContainers},
		{"a crash-looping container is held back", crashLoop},
		{"a pod that ends well has succeeded", succeeds},
		{"a pod that fails and never restarts has failed", failsForGood},
		{"its environment comes from all sources", environment},
		{"its volumes have what they should, also after changes", volumeContent},
		{"probes decide on readiness and restarts", probing},
		{"an image that is not there is told of", missingImage},
		{"a config map that is missing is waited for", missingConfigMap},
		{"a hog is killed and told of", outOfMemory},
		{"a pod past its deadline is ended", deadline},
		{"a pod that does not fit is rejected", doesNotFit},
		{"sidecars start first and stop last", sidecars},
		{"its termination message is read", terminationMessage},
		{"hooks run", hooks},
		{"logs are rotated and followed", logRotation},
		{"sub paths stay in their volume", subPaths},
		{"processes are shared where they should be", sharedProcesses},
	} {
		s.t = t
		if !t.Run(c.name, func(t *testing.T) {
			s.t = t
			c.test(s)
		}) {
			s.t = t
			t.Logf("the agent's log:\n%s", s.log())
		}
		s.t = t
	}
}

func podRunsAndGoes(s *site) {
	start := time.Now()
	s.apply(`
metadata: {name: simple}
spec:
  containers:
  - {name: main, image: registry.test/tool:v1, args: [graceful]}
`)
	pod := s.until("simple", "to run", running)
	s.t.Logf("running after %v", time.Since(start))
	if !ready(pod) || pod.Status.PodIP == "" || pod.Status.HostIP != "127.0.0.1" || pod.Status.QOSClass != corev1.PodQOSBestEffort {
		s.t.Errorf("status %+v", pod.Status)
	}
	s.logged("simple", corev1.PodLogOptions{}, func(log string) bool { return log == "ready\n" })
	for _, event := range []string{"Pulled: Container image", "Created: Container created", "Started: Container started"} {
		s.mustEvent("simple", event)
	}
	start = time.Now()
	s.remove("simple")
	s.gone("simple")
	s.t.Logf("gone after %v", time.Since(start))
	s.mustEvent("simple", "Killing: Stopping container main")
}

func initContainers(s *site) {
	s.apply(`
metadata: {name: inits}
spec:
  initContainers:
  - {name: first, image: registry.test/tool:v1, args: [write, /shared/a, one], volumeMounts: [{name: shared, mountPath: /shared}]}
  - {name: second, image: registry.test/tool:v1, args: [read, /shared/a], volumeMounts: [{name: shared, mountPath: /shared}]}
  containers:
  - {name: main, image: registry.test/tool:v1}
  volumes: [{name: shared, emptyDir: {}}]
`)
	pod := s.until("inits", "to be ready", ready)
	for _, status := range pod.Status.InitContainerStatuses {
		if end := status.State.Terminated; end == nil || end.Reason != "Completed" || !status.Ready {
			s.t.Errorf("init container %+v", status)
		}
	}
	if got := s.logs("inits", corev1.PodLogOptions{Container: "second"}); got != "one" && got != "one\n" {
		s.t.Errorf("the second init container read %q", got)
	}
	s.remove("inits")
}

func crashLoop(s *site) {
	s.apply(`
metadata: {name: crashes}
spec:
  containers:
  - {name: main, image: registry.test/tool:v1, args: [exit, "3"]}
`)
	pod := s.until("crashes", "to be held back", func(pod *corev1.Pod) bool {
		return len(pod.Status.ContainerStatuses) == 1 && pod.Status.ContainerStatuses[0].State.Waiting != nil &&
			pod.Status.ContainerStatuses[0].State.Waiting.Reason == "CrashLoopBackOff"
	})
	status := pod.Status.ContainerStatuses[0]
	if status.RestartCount != 1 || !strings.HasPrefix(status.State.Waiting.Message, "back-off 10s restarting failed container=main pod=crashes_default(") {
		s.t.Errorf("container %+v", status)
	}
	if last := status.LastTerminationState.Terminated; last == nil || last.ExitCode != 3 || last.Reason != "Error" {
		s.t.Errorf("last state %+v", status.LastTerminationState)
	}
	if pod.Status.Phase != corev1.PodRunning || ready(pod) {
		s.t.Errorf("phase %s", pod.Status.Phase)
	}
	s.mustEvent("crashes", "BackOff: Back-off restarting failed container main in pod crashes_default(")
	s.remove("crashes")
	s.gone("crashes")
}

func succeeds(s *site) {
	s.apply(`
metadata: {name: succeeds}
spec:
  restartPolicy: OnFailure
  containers:
  - {name: main, image: registry.test/tool:v1, args: [echo, done]}
`)
	pod := s.until("succeeds", "to succeed", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodSucceeded })
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady && condition.Reason != "PodCompleted" {
			s.t.Errorf("condition %+v", condition)
		}
	}
	if got := s.logs("succeeds", corev1.PodLogOptions{}); got != "done\n" {
		s.t.Errorf("log %q", got)
	}
	s.remove("succeeds")
	s.gone("succeeds")
}

func failsForGood(s *site) {
	s.apply(`
metadata: {name: fails}
spec:
  restartPolicy: Never
  containers:
  - {name: bad, image: registry.test/tool:v1, args: [exit, "5"]}
  - {name: good, image: registry.test/tool:v1, args: [exit, "0"]}
`)
	pod := s.until("fails", "to fail", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodFailed })
	if end := pod.Status.ContainerStatuses[0].State.Terminated; end == nil || end.ExitCode != 5 {
		s.t.Errorf("container %+v", pod.Status.ContainerStatuses[0])
	}
	s.remove("fails")
	s.gone("fails")
}

func (s *site) configMap(name string, data map[string]string) {
	s.t.Helper()
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}
	if _, err := s.client.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(s.t.Context(), object, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) secret(name string, data map[string]string) {
	s.t.Helper()
	object := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: data}
	if _, err := s.client.CoreV1().Secrets(metav1.NamespaceDefault).Create(s.t.Context(), object, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

func environment(s *site) {
	s.configMap("settings", map[string]string{"COLOR": "green", "size": "9"})
	s.secret("keys", map[string]string{"token": "s3cret"})
	s.apply(`
metadata: {name: envs, labels: {tier: web}}
spec:
  restartPolicy: Never
  containers:
  - name: main
    image: registry.test/tool:v1
    args: [env]
    resources: {limits: {memory: 64Mi, cpu: 500m}}
    envFrom: [{prefix: CFG_, configMapRef: {name: settings}}]
    env:
    - {name: A, value: one}
    - {name: B, value: "$(A)-$(CFG_COLOR)-$(MISSING)-$$(A)"}
    - {name: TOKEN, valueFrom: {secretKeyRef: {name: keys, key: token}}}
    - {name: SIZE, valueFrom: {configMapKeyRef: {name: settings, key: size}}}
    - {name: NONE, valueFrom: {configMapKeyRef: {name: absent, key: x, optional: true}}}
    - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    - {name: TIER, valueFrom: {fieldRef: {fieldPath: "metadata.labels['tier']"}}}
    - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: MEM, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}}
    - {name: CPUS, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
`)
	pod := s.until("envs", "to succeed", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodSucceeded })
	lines := strings.Split(s.logs("envs", corev1.PodLogOptions{}), "\n")
	for _, want := range []string{
		"A=one", "B=one-green-$(MISSING)-$(A)", "CFG_size=9", "TOKEN=s3cret", "SIZE=9", "NODE=" + nodeName, "TIER=web", "IP=" + pod.Status.PodIP, "MEM=64", "CPUS=1",
		"KUBERNETES_SERVICE_HOST=10.96.0.1", "HOSTNAME=envs",
	} {
		if !slices.Contains(lines, want) {
			s.t.Errorf("the environment has no %s: %q", want, lines)
		}
	}
	if slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, "NONE=") }) {
		s.t.Error("a variable from a missing optional key is set")
	}
	s.remove("envs")
}

// read runs a program in a container through the agent's API and returns what it says.
func (s *site) read(pod, path string) string {
	s.t.Helper()
	out, err := s.exec(pod, "/tool", "read", path)
	if err != nil {
		return "error: " + err.Error()
	}
	return out
}

func volumeContent(s *site) {
	s.configMap("page", map[string]string{"index": "first", "deep": "down"})
	s.secret("cert", map[string]string{"key": "private"})
	s.apply(`
metadata: {name: volumes, labels: {app: v}, annotations: {note: before}}
spec:
  securityContext: {runAsUser: 1000, fsGroup: 2000}
  containers:
  - name: main
    image: registry.test/tool:v1
    volumeMounts:
    - {name: page, mountPath: /page}
    - {name: cert, mountPath: /cert, readOnly: true}
    - {name: about, mountPath: /about}
    - {name: scratch, mountPath: /scratch}
    - {name: memory, mountPath: /memory}
    - {name: all, mountPath: /all}
  volumes:
  - {name: page, configMap: {name: page, items: [{key: index, path: index}, {key: deep, path: a/b/deep}]}}
  - {name: cert, secret: {secretName: cert, defaultMode: 0400}}
  - {name: about, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}, {path: note, fieldRef: {fieldPath: "metadata.annotations['note']"}}]}}
  - {name: scratch, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  - name: all
    projected:
      sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3600}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
      - secret: {name: cert, items: [{key: key, path: sub/key}]}
`)
	s.until("volumes", "to be ready", ready)
	for path, want := range map[string]string{
		"/page/index": "first", "/page/a/b/deep": "down", "/cert/key": "private", "/about/labels": "app=\"v\"", "/about/note": "before",
		"/all/ca.crt": "authority", "/all/sub/key": "private",
	} {
		if got := s.read("volumes", path); got != want {
			s.t.Errorf("%s holds %q, want %q", path, got, want)
		}
	}
	if got := s.read("volumes", "/all/token"); strings.Count(got, ".") != 2 {
		s.t.Errorf("the token is %q", got)
	}
	for _, path := range []string{"/scratch/x", "/memory/x"} {
		if out, err := s.exec("volumes", "/tool", "write", path, "mine"); err != nil {
			s.t.Errorf("writing %s: %v %s", path, err, out)
		}
	}
	if _, err := s.exec("volumes", "/tool", "write", "/page/x", "no"); err == nil {
		s.t.Error("a config map volume can be written to")
	}
	ctx := s.t.Context()
	start := time.Now()
	if _, err := s.client.CoreV1().ConfigMaps("default").Patch(ctx, "page", types.MergePatchType, []byte(`{"data":{"index":"second"}}`), metav1.PatchOptions{}); err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.client.CoreV1().Pods("default").Patch(ctx, "volumes", types.MergePatchType, []byte(`{"metadata":{"annotations":{"note":"after"}}}`), metav1.PatchOptions{}); err != nil {
		s.t.Fatal(err)
	}
	for path, want := range map[string]string{"/page/index": "second", "/about/note": "after"} {
		s.eventually("the change of "+path, func() error {
			if got := s.read("volumes", path); got != want {
				return fmt.Errorf("it holds %q", got)
			}
			return nil
		})
	}
	s.t.Logf("changes seen after %v", time.Since(start))
	s.remove("volumes")
	s.gone("volumes")
}

func probing(s *site) {
	s.apply(`
metadata: {name: probed}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: http
    image: registry.test/tool:v1
    args: [listen, ":8080"]
    readinessProbe: {httpGet: {port: 8080, path: /}, periodSeconds: 1}
    livenessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
    startupProbe: {exec: {command: [/tool, exit, "0"]}, periodSeconds: 1}
  - name: never
    image: registry.test/tool:v1
    readinessProbe: {exec: {command: [/tool, exit, "1"]}, periodSeconds: 1, failureThreshold: 1}
  - name: dead
    image: registry.test/tool:v1
    livenessProbe: {exec: {command: [/tool, exit, "1"]}, periodSeconds: 1, failureThreshold: 1, initialDelaySeconds: 1}
`)
	pod := s.until("probed", "to have its first container ready and its third restarted", func(pod *corev1.Pod) bool {
		statuses := pod.Status.ContainerStatuses
		return len(statuses) == 3 && statuses[0].Ready && statuses[2].RestartCount >= 1
	})
	if pod.Status.ContainerStatuses[1].Ready || ready(pod) {
		s.t.Errorf("ready with a failing probe: %+v", pod.Status.ContainerStatuses[1])
	}
	s.mustEvent("probed", "Unhealthy: Readiness probe failed")
	s.mustEvent("probed", "Killing: Container dead failed liveness probe, will be restarted")
	s.remove("probed")
	s.gone("probed")
}

func waitingFor(reason string) func(pod *corev1.Pod) bool {
	return func(pod *corev1.Pod) bool {
		return len(pod.Status.ContainerStatuses) > 0 && pod.Status.ContainerStatuses[0].State.Waiting != nil && pod.Status.ContainerStatuses[0].State.Waiting.Reason == reason
	}
}

func missingImage(s *site) {
	s.apply(`
metadata: {name: no-image}
spec:
  containers:
  - {name: main, image: "127.0.0.1:1/absent:v1"}
`)
	s.until("no-image", "to tell of the pull", waitingFor("ErrImagePull"))
	s.until("no-image", "to back off", waitingFor("ImagePullBackOff"))
	s.mustEvent("no-image", "BackOff: Back-off pulling image")
	s.remove("no-image")
	s.gone("no-image")
	s.apply(`
metadata: {name: never-pull}
spec:
  containers:
  - {name: main, image: "127.0.0.1:1/absent:v1", imagePullPolicy: Never}
`)
	s.until("never-pull", "to refuse", waitingFor("ErrImageNeverPull"))
	s.remove("never-pull")
	s.gone("never-pull")
}

func missingConfigMap(s *site) {
	s.apply(`
metadata: {name: waits}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: registry.test/tool:v1
    env: [{name: A, valueFrom: {configMapKeyRef: {name: later, key: a}}}]
    volumeMounts: [{name: v, mountPath: /v}]
  volumes: [{name: v, configMap: {name: later-too}}]
`)
	s.mustEvent("waits", `FailedMount: MountVolume.SetUp failed for volume "v" : configmap "later-too" not found`)
	s.configMap("later-too", map[string]string{"x": "y"})
	s.until("waits", "to lack its variable", waitingFor("CreateContainerConfigError"))
	start := time.Now()
	s.configMap("later", map[string]string{"a": "b"})
	s.until("waits", "to run", running)
	if took := time.Since(start); took > 5*time.Second {
		s.t.Errorf("it ran %v after its config map was there", took)
	}
	s.remove("waits")
	s.gone("waits")
}

func outOfMemory(s *site) {
	s.apply(`
metadata: {name: hog}
spec:
  restartPolicy: Never
  containers:
  - {name: main, image: registry.test/tool:v1, args: [hog], resources: {limits: {memory: 32Mi}}}
`)
	pod := s.until("hog", "to fail", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodFailed })
	if end := pod.Status.ContainerStatuses[0].State.Terminated; end == nil || end.Reason != "OOMKilled" || end.ExitCode != 137 {
		s.t.Errorf("container %+v", pod.Status.ContainerStatuses[0].State)
	}
	s.remove("hog")
	s.gone("hog")
}

func deadline(s *site) {
	s.apply(`
metadata: {name: late}
spec:
  activeDeadlineSeconds: 2
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: registry.test/tool:v1}
`)
	pod := s.until("late", "to be ended", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodFailed })
	if pod.Status.Reason != "DeadlineExceeded" || pod.Status.Message != "Pod was active on the node longer than the specified deadline" {
		s.t.Errorf("reason %q, message %q", pod.Status.Reason, pod.Status.Message)
	}
	s.remove("late")
	s.gone("late")
}

func doesNotFit(s *site) {
	s.apply(`
metadata: {name: huge}
spec:
  containers:
  - {name: main, image: registry.test/tool:v1, resources: {requests: {cpu: "1000"}}}
`)
	pod := s.until("huge", "to be rejected", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodFailed })
	if pod.Status.Reason != "OutOfcpu" {
		s.t.Errorf("reason %q, message %q", pod.Status.Reason, pod.Status.Message)
	}
	s.remove("huge")
	s.gone("huge")
}

func sidecars(s *site) {
	s.apply(`
metadata: {name: sidecar}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 5
  initContainers:
  - name: proxy
    image: registry.test/tool:v1
    args: [graceful]
    restartPolicy: Always
    startupProbe: {exec: {command: [/tool, exit, "0"]}, periodSeconds: 1}
  - {name: check, image: registry.test/tool:v1, args: [echo, checked]}
  containers:
  - {name: main, image: registry.test/tool:v1, args: [echo, done]}
`)
	pod := s.until("sidecar", "to succeed", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodSucceeded })
	proxy, main := pod.Status.InitContainerStatuses[0], pod.Status.ContainerStatuses[0]
	if proxy.State.Terminated == nil || main.State.Terminated == nil || proxy.State.Terminated.FinishedAt.Before(&main.State.Terminated.FinishedAt) {
		s.t.Errorf("sidecar %+v, container %+v", proxy.State, main.State)
	}
	s.remove("sidecar")
	s.gone("sidecar")
}

func terminationMessage(s *site) {
	s.apply(`
metadata: {name: messages}
spec:
  restartPolicy: Never
  containers:
  - {name: file, image: registry.test/tool:v1, args: [write, /dev/termination-log, goodbye]}
  - {name: logs, image: registry.test/tool:v1, args: [unknown], terminationMessagePolicy: FallbackToLogsOnError}
`)
	pod := s.until("messages", "to fail", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodFailed })
	if end := pod.Status.ContainerStatuses[0].State.Terminated; end.Message != "goodbye" {
		s.t.Errorf("message %q", end.Message)
	}
	if end := pod.Status.ContainerStatuses[1].State.Terminated; end.Message != "unknown subcommand unknown\n" {
		s.t.Errorf("message from the log %q", end.Message)
	}
	s.remove("messages")
	s.gone("messages")
}

func hooks(s *site) {
	dir := s.t.TempDir()
	s.apply(fmt.Sprintf(`
metadata: {name: hooked}
spec:
  terminationGracePeriodSeconds: 10
  containers:
  - name: main
    image: registry.test/tool:v1
    args: [graceful]
    volumeMounts: [{name: host, mountPath: /host}]
    lifecycle:
      postStart: {exec: {command: [/tool, write, /host/started, "yes"]}}
      preStop: {exec: {command: [/tool, write, /host/stopped, "yes"]}}
  volumes: [{name: host, hostPath: {path: %s, type: Directory}}]
`, dir))
	s.until("hooked", "to be ready", ready)
	s.remove("hooked")
	s.gone("hooked")
	for _, file := range []string{"started", "stopped"} {
		if got := readFile(dir, file); got != "yes" {
			s.t.Errorf("the hook has left %q in %s", got, file)
		}
	}
}

func logRotation(s *site) {
	s.apply(`
metadata: {name: chatty}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: registry.test/tool:v1, args: [tick]}
`)
	s.until("chatty", "to run", running)
	lines := int64(2)
	s.eventually("two lines of log", func() error {
		if got := s.logs("chatty", corev1.PodLogOptions{TailLines: &lines}); strings.Count(got, "\n") != 2 {
			return fmt.Errorf("log %q", got)
		}
		return nil
	})
	limit := int64(5)
	if got := s.logs("chatty", corev1.PodLogOptions{LimitBytes: &limit}); got != "tick " {
		s.t.Errorf("five bytes of log are %q", got)
	}
	zero := int64(0)
	if err := s.client.CoreV1().Pods("default").Delete(s.t.Context(), "chatty", metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
		s.t.Fatal(err)
	}
	s.gone("chatty")
}

func subPaths(s *site) {
	s.configMap("files", map[string]string{"a": "alpha"})
	dir := s.t.TempDir()
	s.apply(fmt.Sprintf(`
metadata: {name: subs}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: registry.test/tool:v1
    env: [{name: WHO, value: me}]
    volumeMounts:
    - {name: files, mountPath: /etc/a, subPath: a}
    - {name: host, mountPath: /own, subPathExpr: "pods/$(WHO)"}
  volumes:
  - {name: files, configMap: {name: files}}
  - {name: host, hostPath: {path: %s}}
`, dir))
	s.until("subs", "to be ready", ready)
	if got := s.read("subs", "/etc/a"); got != "alpha" {
		s.t.Errorf("/etc/a holds %q", got)
	}
	if out, err := s.exec("subs", "/tool", "write", "/own/x", "mine"); err != nil || readFile(dir, "pods/me/x") != "mine" {
		s.t.Errorf("writing below a sub path: %q %v", out, err)
	}
	s.remove("subs")
	s.gone("subs")
}

func sharedProcesses(s *site) {
	s.apply(`
metadata: {name: shared}
spec:
  shareProcessNamespace: true
  hostname: web
  subdomain: sites
  hostAliases: [{ip: 10.1.2.3, hostnames: [friend]}]
  terminationGracePeriodSeconds: 1
  containers:
  - {name: one, image: registry.test/tool:v1}
  - {name: two, image: registry.test/tool:v1, args: [forever, two]}
`)
	s.until("shared", "to be ready", ready)
	out, err := s.exec("shared", "/tool", "processes")
	if err != nil || !strings.Contains(out, "forever two") || !strings.Contains(out, "/pause") {
		s.t.Errorf("processes %q %v", out, err)
	}
	hosts := s.read("shared", "/etc/hosts")
	for _, want := range []string{"\tweb.sites.default.svc.cluster.local\tweb\n", "10.1.2.3\tfriend\n"} {
		if !strings.Contains(hosts, want) {
			s.t.Errorf("/etc/hosts has no %q:\n%s", want, hosts)
		}
	}
	if resolv := s.read("shared", "/etc/resolv.conf"); !strings.Contains(resolv, "search default.svc.cluster.local svc.cluster.local cluster.local") || !strings.Contains(resolv, "nameserver 10.96.0.10\noptions ndots:5\n") {
		s.t.Errorf("/etc/resolv.conf:\n%s", resolv)
	}
	before := s.until("shared", "to be ready", ready)
	s.killPause()
	after := s.until("shared", "to run in a new sandbox", func(pod *corev1.Pod) bool {
		return ready(pod) && statusOf(pod, "one").RestartCount > 0 && statusOf(pod, "two").RestartCount > 0
	})
	if last := statusOf(after, "one").LastTerminationState.Terminated; last == nil || last.ExitCode != 137 || last.ContainerID != containerID(before) {
		s.t.Errorf("the container before ended with %+v", last)
	}
	s.mustEvent("shared", "SandboxChanged: Pod sandbox changed, it will be killed and re-created.")
	s.remove("shared")
	s.gone("shared")
}

// killPause kills the only process that keeps a PID namespace of the site's pods alive.
func (s *site) killPause() {
	s.t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, path := range names {
		name, _ := os.ReadFile(path)
		groups, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cgroup"))
		if string(name) != "pause\n" || !strings.Contains(string(groups), s.cgroup+"/") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			s.t.Fatal(err)
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			s.t.Fatal(err)
		}
		return
	}
	s.t.Fatal("no pause process")
}
