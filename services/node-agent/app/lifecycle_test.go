package app_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPodsLiveByLessUsualRules(t *testing.T) {
	s := newSite(t, "--pod-max-pids=64")
	for _, c := range []struct {
		name string
		test func(s *site)
	}{
		{"ephemeral containers look into a running pod", ephemeralContainers},
		{"a container's own rules restart it", restartRules},
		{"a rule restarts all containers", restartAll},
		{"its name is fully qualified where it wants that", fullyQualified},
		{"host aliases are in its hosts file", hostAliases},
		{"safe sysctls are set, others refused", sysctls},
		{"gRPC probes decide", grpcProbes},
		{"a fork bomb meets the pod's limit", forkBomb},
		{"a child that takes too much memory is told of", childOutOfMemory},
		{"log files cannot be links to elsewhere", logLinks},
		{"pod-level resources limit the whole pod", podLevelResources},
		{"seccomp profiles must be there and not empty", seccompProfiles},
		{"a gitRepo volume is refused", gitRepo},
		{"overhead counts for admission and the pod's group", overhead},
	} {
		s.t = t
		t.Run(c.name, func(t *testing.T) {
			s.t = t
			c.test(s)
		})
		s.t = t
	}
}

func ephemeralContainers(s *site) {
	s.apply(`
metadata: {name: debugged}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: registry.test/tool:v1}
`)
	pod := s.until("debugged", "to run", running)
	pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, corev1.EphemeralContainer{
		TargetContainerName:      "main",
		EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debugger", Image: toolImage, Args: []string{"processes"}},
	})
	if _, err := s.client.CoreV1().Pods(metav1.NamespaceDefault).UpdateEphemeralContainers(s.t.Context(), "debugged", pod, metav1.UpdateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	pod = s.until("debugged", "to have been looked into", func(pod *corev1.Pod) bool {
		list := pod.Status.EphemeralContainerStatuses
		return len(list) == 1 && list[0].State.Terminated != nil
	})
	if end := pod.Status.EphemeralContainerStatuses[0].State.Terminated; end.ExitCode != 0 || !running(pod) || pod.Status.ContainerStatuses[0].RestartCount != 0 {
		s.t.Errorf("status %+v", pod.Status)
	}
	if log := s.logs("debugged", corev1.PodLogOptions{Container: "debugger"}); !strings.Contains(log, "1 /tool forever") || !strings.Contains(log, "/tool processes") {
		s.t.Errorf("it saw %q", log)
	}
	s.remove("debugged")
}

func restartRules(s *site) {
	s.apply(`
metadata: {name: ruled}
spec:
  restartPolicy: Never
  containers:
  - name: main
    image: registry.test/tool:v1
    args: [exit, "42"]
    restartPolicy: Never
    restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [42]}}]
`)
	s.apply(`
metadata: {name: unruled}
spec:
  restartPolicy: Never
  containers:
  - name: main
    image: registry.test/tool:v1
    args: [exit, "43"]
    restartPolicy: Never
    restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [42]}}]
`)
	s.until("ruled", "to be restarted", func(pod *corev1.Pod) bool {
		return len(pod.Status.ContainerStatuses) == 1 && pod.Status.ContainerStatuses[0].RestartCount > 0
	})
	pod := s.until("unruled", "to have failed", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodFailed })
	if n := pod.Status.ContainerStatuses[0].RestartCount; n != 0 {
		s.t.Errorf("it was restarted %d times", n)
	}
	s.remove("ruled")
	s.remove("unruled")
}

func restartAll(s *site) {
	s.apply(`
metadata: {name: together}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  initContainers:
  - {name: first, image: registry.test/tool:v1, args: [echo, hello]}
  containers:
  - {name: bystander, image: registry.test/tool:v1}
  - name: main
    image: registry.test/tool:v1
    args: [graceful]
    restartPolicy: Never
    restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [7]}}]
`)
	before := s.until("together", "to be ready", ready)
	s.logged("together", corev1.PodLogOptions{Container: "main"}, func(log string) bool { return log == "ready\n" }) // or the signal is lost
	_, id, _ := strings.Cut(statusOf(before, "main").ContainerID, "://")
	if !s.signal(id) {
		s.t.Fatal("the container to be ended was not found")
	}
	after := s.until("together", "to have begun anew", func(pod *corev1.Pod) bool {
		return ready(pod) && statusOf(pod, "main").RestartCount == 1 && statusOf(pod, "bystander").RestartCount == 1
	})
	if after.Status.PodIP != before.Status.PodIP || after.Status.InitContainerStatuses[0].RestartCount != 1 {
		s.t.Errorf("before %s, after %s, init container %+v", before.Status.PodIP, after.Status.PodIP, after.Status.InitContainerStatuses[0])
	}
	s.until("together", "to be done with it", func(pod *corev1.Pod) bool { return condition(pod, corev1.AllContainersRestarting) == nil })
	s.remove("together")
}

func statusOf(pod *corev1.Pod, name string) corev1.ContainerStatus {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == name {
			return status
		}
	}
	return corev1.ContainerStatus{}
}

func fullyQualified(s *site) {
	s.apply(`
metadata: {name: named}
spec:
  hostname: web
  subdomain: group
  setHostnameAsFQDN: true
  restartPolicy: Never
  containers:
  - {name: main, image: registry.test/tool:v1, args: [hostname]}
`)
	s.until("named", "to have ended", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodSucceeded })
	if log := s.logs("named", corev1.PodLogOptions{}); log != "web.group.default.svc.cluster.local\n" {
		s.t.Errorf("its name is %q", log)
	}
	long := strings.Repeat("long", 13)
	s.apply(fmt.Sprintf(`
metadata: {name: overlong}
spec:
  hostname: %s
  subdomain: group
  setHostnameAsFQDN: true
  restartPolicy: Never
  containers:
  - {name: main, image: registry.test/tool:v1, args: [hostname]}
`, long))
	s.mustEvent("overlong", "FailedCreatePodSandBox: ")
	s.remove("overlong")
}

func hostAliases(s *site) {
	s.apply(`
metadata: {name: aliased}
spec:
  restartPolicy: Never
  hostAliases: [{ip: 10.1.2.3, hostnames: [one.example, two.example]}]
  containers:
  - {name: main, image: registry.test/tool:v1, args: [read, /etc/hosts]}
`)
	s.until("aliased", "to have ended", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodSucceeded })
	if log := s.logs("aliased", corev1.PodLogOptions{}); !strings.Contains(log, "10.1.2.3\tone.example\ttwo.example") {
		s.t.Errorf("the file is %q", log)
	}
}

func sysctls(s *site) {
	s.apply(`
metadata: {name: tuned}
spec:
  restartPolicy: Never
  securityContext: {sysctls: [{name: net.ipv4.ip_unprivileged_port_start, value: "77"}]}
  containers:
  - {name: main, image: registry.test/tool:v1, args: [read, /proc/sys/net/ipv4/ip_unprivileged_port_start]}
`)
	s.until("tuned", "to have ended", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodSucceeded })
	if log := s.logs("tuned", corev1.PodLogOptions{}); log != "77\n" {
		s.t.Errorf("the value is %q", log)
	}
	s.apply(`
metadata: {name: greedy}
spec:
  securityContext: {sysctls: [{name: kernel.msgmax, value: "65536"}]}
  containers:
  - {name: main, image: registry.test/tool:v1}
`)
	pod := s.until("greedy", "to be refused", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodFailed })
	if pod.Status.Reason != "SysctlForbidden" || !strings.Contains(pod.Status.Message, `forbidden sysctl: "kernel.msgmax" not allowlisted`) {
		s.t.Errorf("it says %s: %s", pod.Status.Reason, pod.Status.Message)
	}
}

func grpcProbes(s *site) {
	for name, args := range map[string]string{"well": `[health, ":9000", SERVING]`, "ill": `[health, ":9000", NOT_SERVING]`} {
		s.apply(fmt.Sprintf(`
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: registry.test/tool:v1
    args: %s
    readinessProbe: {grpc: {port: 9000, service: checked}, periodSeconds: 1}
`, name, args))
	}
	s.until("well", "to be ready", ready)
	s.mustEvent("ill", `Unhealthy: Readiness probe failed: service unhealthy (responded with "NOT_SERVING")`)
	if pod, err := s.pod("ill"); err != nil || ready(pod) {
		s.t.Errorf("status %+v, %v", pod.Status, err)
	}
	s.remove("well")
	s.remove("ill")
}

func forkBomb(s *site) {
	s.apply(`
metadata: {name: bomb}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: registry.test/tool:v1, args: [bomb]}
`)
	s.until("bomb", "to run", running)
	s.logged("bomb", corev1.PodLogOptions{}, func(log string) bool { return strings.Contains(log, "could not fork:") })
	pod, err := s.pod("bomb")
	if err != nil {
		s.t.Fatal(err)
	}
	if most := s.limit(pod, true, "pids/pids.max", "pids.max"); most != "64" {
		s.t.Errorf("the limit is %s", most)
	}
	s.remove("bomb")
	s.gone("bomb")
}

func childOutOfMemory(s *site) {
	s.apply(`
metadata: {name: parent}
spec:
  restartPolicy: Never
  containers:
  - {name: main, image: registry.test/tool:v1, args: [child-hog], resources: {limits: {memory: 32Mi}}}
`)
	pod := s.until("parent", "to have failed", func(pod *corev1.Pod) bool {
		return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
	})
	if end := pod.Status.ContainerStatuses[0].State.Terminated; end.Reason != "OOMKilled" {
		s.t.Errorf("it ended with %+v", end)
	}
}

// A container that can write to the node's log directory makes links there.
func logLinks(s *site) {
	secret := filepath.Join(s.dir, "secret")
	if err := os.WriteFile(secret, []byte("2026-01-01T00:00:00.000000000Z stdout F the secret\n"), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.apply(`
metadata: {name: linker}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: registry.test/tool:v1, args: [graceful]}
`)
	pod := s.until("linker", "to run", running)
	dir := filepath.Join(s.root, "logs", "default_linker_"+string(pod.UID), "main")
	for _, link := range []func() error{
		func() error { return os.Symlink(secret, filepath.Join(dir, "0.log")) },
		func() error {
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
			evil := filepath.Join(s.dir, "evil")
			if err := os.MkdirAll(evil, 0o755); err != nil {
				return err
			}
			if err := os.Link(secret, filepath.Join(evil, "0.log")); err != nil {
				return err
			}
			return os.Symlink(evil, dir)
		},
	} {
		if err := os.Remove(filepath.Join(dir, "0.log")); err != nil {
			s.t.Fatal(err)
		}
		if err := link(); err != nil {
			s.t.Fatal(err)
		}
		code, body := s.get("/containerLogs/default/linker/main")
		if strings.Contains(body, "secret\n") || strings.Contains(body, "the secret") || code == 200 && body != "" {
			s.t.Errorf("through a link: %d %q", code, body)
		}
	}
	s.remove("linker")
	s.gone("linker")
	if _, err := os.Stat(secret); err != nil {
		s.t.Errorf("the file that a link led to: %v", err)
	}
}

func podLevelResources(s *site) {
	s.apply(`
metadata: {name: whole}
spec:
  terminationGracePeriodSeconds: 1
  resources: {requests: {cpu: 50m, memory: 40Mi}, limits: {cpu: 100m, memory: 64Mi}}
  containers:
  - {name: a, image: registry.test/tool:v1}
  - {name: b, image: registry.test/tool:v1}
`)
	pod := s.until("whole", "to be ready", ready)
	if pod.Status.QOSClass != corev1.PodQOSBurstable {
		s.t.Errorf("its class is %s", pod.Status.QOSClass)
	}
	if got := s.limit(pod, true, "memory/memory.limit_in_bytes", "memory.max"); got != "67108864" {
		s.t.Errorf("the pod's memory limit is %s", got)
	}
	if got := s.limit(pod, true, "cpu/cpu.cfs_quota_us", "cpu.max"); !strings.HasPrefix(got, "10000") {
		s.t.Errorf("the pod's CPU quota is %s", got)
	}
	s.remove("whole")
}

func seccompProfiles(s *site) {
	for name, profile := range map[string]string{"missing": "absent.json", "empty": "empty.json", "outside": "../../../etc/passwd"} {
		if name == "empty" {
			if err := os.MkdirAll(filepath.Join(s.root, "seccomp"), 0o755); err != nil {
				s.t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(s.root, "seccomp", profile), nil, 0o644); err != nil {
				s.t.Fatal(err)
			}
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "profile-" + name}, Spec: corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{{
			Name: "main", Image: toolImage, SecurityContext: &corev1.SecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: &profile}},
		}}}}
		if _, err := s.client.CoreV1().Pods(metav1.NamespaceDefault).Create(s.t.Context(), pod, metav1.CreateOptions{}); err != nil {
			if name != "outside" {
				s.t.Error(err)
			}
			continue // refused by the API server already
		}
		s.until(pod.Name, "not to start", func(pod *corev1.Pod) bool {
			return waitingFor("CreateContainerConfigError")(pod) || waitingFor("CreateContainerError")(pod) || waitingFor("RunContainerError")(pod)
		})
		s.remove(pod.Name)
	}
}

func gitRepo(s *site) {
	_, err := s.client.CoreV1().Pods(metav1.NamespaceDefault).Create(s.t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "cloner"}, Spec: corev1.PodSpec{
		NodeName: nodeName, Containers: []corev1.Container{{Name: "main", Image: toolImage, VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}}},
		Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{GitRepo: &corev1.GitRepoVolumeSource{Repository: "https://example.invalid/x.git"}}}},
	}}, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	s.mustEvent("cloner", "FailedMount: ")
	if pod, err := s.pod("cloner"); err != nil || pod.Status.Phase != corev1.PodPending {
		s.t.Errorf("status %+v, %v", pod.Status, err)
	}
	s.remove("cloner")
}

func overhead(s *site) {
	if _, err := s.kubectl("create", "-f", s.file("class.yaml", `
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: heavy}
handler: runc
overhead: {podFixed: {cpu: 100m, memory: 16Mi}}
`)); err != nil {
		s.t.Fatal(err)
	}
	s.apply(`
metadata: {name: heavy}
spec:
  terminationGracePeriodSeconds: 1
  runtimeClassName: heavy
  containers:
  - {name: main, image: registry.test/tool:v1, resources: {limits: {cpu: 100m, memory: 32Mi}}}
`)
	pod := s.until("heavy", "to run", running)
	if got := s.limit(pod, true, "memory/memory.limit_in_bytes", "memory.max"); got != fmt.Sprint(48<<20) {
		s.t.Errorf("the pod's memory limit is %s", got)
	}
	if got := s.limit(pod, false, "memory/memory.limit_in_bytes", "memory.max"); got != fmt.Sprint(32<<20) {
		s.t.Errorf("the container's memory limit is %s", got)
	}
	s.remove("heavy")
}

func (s *site) file(name, content string) string {
	s.t.Helper()
	path := filepath.Join(s.t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}
