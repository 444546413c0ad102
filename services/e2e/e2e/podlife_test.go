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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/internal/testenv"
)

func newContainer(name, script string) corev1.Container {
	return corev1.Container{Name: name, Image: image, Command: []string{"sh", "-c", script}}
}

func TestSidecarStartsFirstAndStopsLast(t *testing.T) {
	namespace := newNamespace(t)
	pod := newPod("helped", "echo main up >> /work/log; trap 'echo main down >> /work/log; exit 0' TERM; while :; do sleep 0.1; done")
	pod.Spec.TerminationGracePeriodSeconds = ptr.To(int64(10))
	pod.Spec.Volumes = []corev1.Volume{{Name: "work", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{
		Path: "/tmp/" + namespace, Type: ptr.To(corev1.HostPathDirectoryOrCreate),
	}}}}
	mount := []corev1.VolumeMount{{Name: "work", MountPath: "/work"}}
	pod.Spec.Containers[0].VolumeMounts = mount
	sidecar := newContainer("sidecar", "echo sidecar up >> /work/log; trap 'echo sidecar down >> /work/log; exit 0' TERM; touch /tmp/up; while :; do sleep 0.1; done")
	sidecar.RestartPolicy, sidecar.VolumeMounts = ptr.To(corev1.ContainerRestartPolicyAlways), mount
	sidecar.StartupProbe = probe(corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"cat", "/tmp/up"}}})
	sidecar.StartupProbe.FailureThreshold = 30
	pod.Spec.InitContainers = []corev1.Container{sidecar}
	pod.Spec.NodeName = "node-1"
	mustCreatePod(t, namespace, pod)
	awaitReady(t, namespace, "helped")
	cluster.MustKubectl(t, "-n", namespace, "delete", "pod", "helped")
	reader := newPod("reader", "cat /work/log; rm -r /work/*")
	reader.Spec.RestartPolicy, reader.Spec.NodeName = corev1.RestartPolicyNever, "node-1"
	reader.Spec.Volumes, reader.Spec.Containers[0].VolumeMounts = pod.Spec.Volumes, mount
	mustCreatePod(t, namespace, reader)
	awaitPod(t, namespace, "reader", "ended", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
	if log := cluster.MustKubectl(t, "-n", namespace, "logs", "reader"); log != "sidecar up\nmain up\nmain down\nsidecar down\n" {
		t.Errorf("the order was:\n%s", log)
	}
}

func TestKubectlDebugLooksIntoAPod(t *testing.T) {
	namespace := newNamespace(t)
	mustCreatePod(t, namespace, newPod("sick", "exec sleep 3600"))
	awaitReady(t, namespace, "sick")
	cluster.MustKubectl(t, "-n", namespace, "debug", "sick", "--image="+image, "--target=main", "--container=doctor", "--profile=general", "--", "sh", "-c", "ps; echo seen")
	testenv.Eventually(t, 30*time.Second, "the debugger's words", func(context.Context) error {
		out, err := cluster.Kubectl("-n", namespace, "logs", "sick", "-c", "doctor")
		if err != nil {
			return err
		}
		if !strings.Contains(out, "sleep 3600") || !strings.Contains(out, "seen") {
			return fmt.Errorf("it printed %q", out)
		}
		return nil
	})
	pod := awaitReady(t, namespace, "sick")
	if first(pod).RestartCount != 0 || len(pod.Status.EphemeralContainerStatuses) != 1 {
		t.Errorf("status is %+v", pod.Status)
	}
}

func TestHooksGatesAndDeadlines(t *testing.T) {
	namespace := newNamespace(t)
	hooked := newPod("hooked", "while :; do [ -e /tmp/stop ] && exit 0; sleep 0.1; done")
	hooked.Spec.TerminationGracePeriodSeconds = ptr.To(int64(20))
	hooked.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{
		PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"touch", "/tmp/started"}}},
		PreStop:   &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"touch", "/tmp/stop"}}},
	}
	mustCreatePod(t, namespace, hooked)
	awaitReady(t, namespace, "hooked")
	cluster.MustKubectl(t, "-n", namespace, "exec", "hooked", "--", "test", "-e", "/tmp/started")
	began := time.Now()
	cluster.MustKubectl(t, "-n", namespace, "delete", "pod", "hooked")
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("it took %s to end, as if its hook had not run", took)
	}

	gated := newPod("gated", "exec sleep 3600")
	gated.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.com/open"}}
	mustCreatePod(t, namespace, gated)
	awaitPod(t, namespace, "gated", "runs unready", func(p *corev1.Pod) bool {
		return hasCondition(p, corev1.ContainersReady, corev1.ConditionTrue) && hasCondition(p, corev1.PodReady, corev1.ConditionFalse)
	})
	patch := []byte(`{"status":{"conditions":[{"type":"example.com/open","status":"True"}]}}`)
	if _, err := cluster.Client.CoreV1().Pods(namespace).Patch(t.Context(), "gated", types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, namespace, "gated")

	late := newPod("late", "exec sleep 3600")
	late.Spec.ActiveDeadlineSeconds = ptr.To(int64(2))
	mustCreatePod(t, namespace, late)
	got := awaitPod(t, namespace, "late", "failed", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if got.Status.Reason != "DeadlineExceeded" {
		t.Errorf("status is %+v", got.Status)
	}
}

func TestNamesAndSharedNamespaces(t *testing.T) {
	namespace := newNamespace(t)
	cluster.MustApply(t, strings.ReplaceAll(`
apiVersion: v1
kind: Service
metadata: {name: group, namespace: NS}
spec: {clusterIP: None, selector: {app: member}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: member, namespace: NS, labels: {app: member}}
spec:
  hostname: first
  subdomain: group
  setHostnameAsFQDN: true
  shareProcessNamespace: true
  terminationGracePeriodSeconds: 0
  hostAliases: [{ip: 10.1.2.3, hostnames: [alias.example]}]
  dnsConfig: {options: [{name: ndots, value: "3"}], searches: [more.example]}
  containers:
  - {name: main, image: localhost/sampan/demo:1, command: [sh, -c, "exec sleep 3601"]}
  - {name: other, image: localhost/sampan/demo:1, command: [sh, -c, "exec sleep 3602"]}
---
apiVersion: v1
kind: Pod
metadata: {name: host, namespace: NS}
spec:
  hostNetwork: true
  hostPID: true
  hostIPC: true
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: localhost/sampan/demo:1, command: [sh, -c, "exec sleep 3603"]}]
`, "NS", namespace))
	awaitReady(t, namespace, "member")
	host := awaitReady(t, namespace, "host")
	inside := func(script string) string {
		out, err := cluster.Kubectl("-n", namespace, "exec", "member", "-c", "main", "--", "sh", "-c", script)
		if err != nil {
			return err.Error()
		}
		return strings.TrimSpace(out)
	}
	full := "first.group." + namespace + ".svc.cluster.local"
	if got := inside("cat /proc/sys/kernel/hostname"); got != full {
		t.Errorf("its name is %q", got)
	}
	for script, want := range map[string]string{
		"cat /etc/hosts": "alias.example", "cat /etc/resolv.conf": "ndots:3", "grep search /etc/resolv.conf": "more.example", "ps": "sleep 3602",
	} {
		if got := inside(script); !strings.Contains(got, want) {
			t.Errorf("%s: %q has no %q", script, got, want)
		}
	}
	if host.Status.PodIP != host.Status.HostIP {
		t.Errorf("on the host's network its address is %s, the host's %s", host.Status.PodIP, host.Status.HostIP)
	}
	if out := cluster.MustKubectl(t, "-n", namespace, "exec", "host", "--", "ps"); !strings.Contains(out, "node-agent") {
		t.Errorf("with the host's processes it sees:\n%s", out)
	}
}

func TestSecurityContextsHold(t *testing.T) {
	namespace := newNamespace(t)
	pod := newPod("confined", "exec sleep 3600")
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{
		RunAsUser: ptr.To(int64(1234)), RunAsGroup: ptr.To(int64(2345)), FSGroup: ptr.To(int64(3456)), SupplementalGroups: []int64{4567},
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		Sysctls:        []corev1.Sysctl{{Name: "net.ipv4.ip_unprivileged_port_start", Value: "99"}},
	}
	pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{
		ReadOnlyRootFilesystem: ptr.To(true), AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	mustCreatePod(t, namespace, pod)
	awaitReady(t, namespace, "confined")
	for script, want := range map[string]string{
		"id -u; id -g": "1234\n2345", "id -G": "2345 3456 4567", "grep CapEff /proc/self/status": "CapEff:\t0000000000000000",
		"grep NoNewPrivs /proc/self/status": "NoNewPrivs:\t1", "grep Seccomp: /proc/self/status": "Seccomp:\t2",
		"touch /file || echo refused": "refused", "touch /data/x; stat -c %g /data/x": "3456",
		"cat /proc/sys/net/ipv4/ip_unprivileged_port_start": "99", "cat /proc/kcore | head -c 1 | wc -c": "0",
	} {
		out, err := cluster.Kubectl("-n", namespace, "exec", "confined", "--", "sh", "-c", script)
		if got := strings.TrimSpace(out); err != nil || got != want {
			t.Errorf("%s: %q, want %q (%v)", script, got, want, err)
		}
	}
}

func TestKubectlResizesAPodInPlace(t *testing.T) {
	namespace := newNamespace(t)
	pod := newPod("grows", "exec sleep 3600")
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("32Mi")}
	pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list, Limits: list}
	mustCreatePod(t, namespace, pod)
	before := awaitReady(t, namespace, "grows")
	cluster.MustKubectl(t, "-n", namespace, "patch", "pod", "grows", "--subresource=resize", "-p",
		`{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"60m","memory":"48Mi"},"limits":{"cpu":"60m","memory":"48Mi"}}}]}}`)
	after := awaitPod(t, namespace, "grows", "has more", func(p *corev1.Pod) bool {
		r := first(p).Resources
		return r != nil && r.Limits.Memory().String() == "48Mi" && r.Limits.Cpu().String() == "60m" && !hasCondition(p, corev1.PodResizeInProgress, corev1.ConditionTrue)
	})
	if first(after).ContainerID != first(before).ContainerID || first(after).RestartCount != 0 {
		t.Errorf("container %+v, was %+v", first(after), first(before))
	}
	out := cluster.MustKubectl(t, "-n", namespace, "exec", "grows", "--", "sh", "-c", "cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max")
	if strings.TrimSpace(out) != fmt.Sprint(48<<20) {
		t.Errorf("inside the limit is %q", out)
	}
}

func TestTerminationMessages(t *testing.T) {
	namespace := newNamespace(t)
	for name, policy := range map[string]corev1.TerminationMessagePolicy{"file": corev1.TerminationMessageReadFile, "logs": corev1.TerminationMessageFallbackToLogsOnError} {
		script := "echo -n because > /dev/termination-log; exit 1"
		if name == "logs" {
			script = "echo because; exit 1"
		}
		pod := newPod(name, script)
		pod.Spec.RestartPolicy, pod.Spec.Containers[0].TerminationMessagePolicy = corev1.RestartPolicyNever, policy
		mustCreatePod(t, namespace, pod)
		got := awaitPod(t, namespace, name, "failed", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
		if end := first(got).State.Terminated; end == nil || strings.TrimSpace(end.Message) != "because" {
			t.Errorf("%s: %+v", name, first(got).State)
		}
	}
}
