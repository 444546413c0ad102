package app_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// smallDisk mounts a file system of its own for the agent.
func smallDisk(t *testing.T, mebibytes, inodes int) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount a file system")
	}
	if _, err := exec.LookPath("mkfs.ext4"); err != nil {
		t.Skip("needs mkfs.ext4: apt-get install e2fsprogs")
	}
	dir := t.TempDir()
	image, target := filepath.Join(dir, "disk"), filepath.Join(dir, "root")
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Skipf("needs loop devices: %s %v: %v: %s", name, args, err, out)
		}
	}
	if err := os.Mkdir(target, 0o755); err != nil {
		t.Fatal(err)
	}
	run("truncate", "-s", fmt.Sprintf("%dM", mebibytes), image)
	run("mkfs.ext4", "-q", "-m", "0", "-N", fmt.Sprint(inodes), image)
	run("mount", "-o", "loop", image, target)
	t.Cleanup(func() { _ = exec.Command("umount", "-l", target).Run() })
	return target
}

func evicted(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed && pod.Status.Reason == "Evicted"
}

func (s *site) nodeCondition(kind corev1.NodeConditionType) corev1.ConditionStatus {
	s.t.Helper()
	node, err := s.client.CoreV1().Nodes().Get(s.t.Context(), nodeName, metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == kind {
			return condition.Status
		}
	}
	return ""
}

const lodger = `
metadata: {name: lodger}
spec:
  containers:
  - {name: main, image: registry.test/tool:v1, args: [graceful]}
`

func TestFilledDiskEvictsWhoFilledIt(t *testing.T) {
	t.Parallel()
	s := newSiteIn(t, smallDisk(t, 200, 20000), "--eviction-hard=nodefs.available<25%", "--eviction-pressure-transition-period=2s")
	s.apply(lodger)
	s.until("lodger", "to run", running)
	s.apply(`
metadata: {name: filler}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: registry.test/tool:v1, args: [fill, /data/file, "150"], volumeMounts: [{name: data, mountPath: /data}]}
  volumes: [{name: data, emptyDir: {}}]
`)
	s.eventually("disk pressure", func() error {
		if status := s.nodeCondition(corev1.NodeDiskPressure); status != corev1.ConditionTrue {
			return fmt.Errorf("the condition is %s", status)
		}
		return nil
	})
	pod := s.until("filler", "to be evicted", evicted)
	if !strings.HasPrefix(pod.Status.Message, "The node was low on resource: ephemeral-storage. Threshold quantity: ") {
		t.Errorf("message %q", pod.Status.Message)
	}
	if c := condition(pod, corev1.DisruptionTarget); c == nil || c.Reason != corev1.PodReasonTerminationByKubelet {
		t.Errorf("condition %+v", c)
	}
	s.mustEvent("filler", "Evicted: The node was low on resource: ephemeral-storage. ")
	s.eventually("the pressure to go", func() error {
		if status := s.nodeCondition(corev1.NodeDiskPressure); status != corev1.ConditionFalse {
			return fmt.Errorf("the condition is %s", status)
		}
		return nil
	})
	if pod, err := s.pod("lodger"); err != nil || !running(pod) {
		t.Errorf("the other pod: %+v, %v", pod.Status, err)
	}
}

func TestFilledInodeTableEvictsWhoFilledIt(t *testing.T) {
	t.Parallel()
	s := newSiteIn(t, smallDisk(t, 200, 4000), "--eviction-hard=nodefs.inodesFree<25%", "--eviction-pressure-transition-period=2s")
	s.apply(lodger)
	s.until("lodger", "to run", running)
	s.apply(`
metadata: {name: filler}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: registry.test/tool:v1, args: [files, /data, "3800"], volumeMounts: [{name: data, mountPath: /data}]}
  volumes: [{name: data, emptyDir: {}}]
`)
	pod := s.until("filler", "to be evicted", evicted)
	if !strings.HasPrefix(pod.Status.Message, "The node was low on resource: inodes. Threshold quantity: ") {
		t.Errorf("message %q", pod.Status.Message)
	}
	if pod, err := s.pod("lodger"); err != nil || !running(pod) {
		t.Errorf("the other pod: %+v, %v", pod.Status, err)
	}
}

func TestPodsOverTheirEphemeralStorageAreEvicted(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for name, args := range map[string]string{"layer": `[fill, /written, "8"]`, "logs": `[chatter, "8"]`} {
		s.apply(fmt.Sprintf(`
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: registry.test/tool:v1, args: %s, resources: {limits: {ephemeral-storage: 100Ki}}}
`, name, args))
	}
	for _, name := range []string{"layer", "logs"} {
		pod := s.until(name, "to be evicted", evicted)
		if pod.Status.Message != "Pod ephemeral local storage usage exceeds the total limit of containers 100Ki. " {
			t.Errorf("%s: message %q", name, pod.Status.Message)
		}
	}
}

func TestMemoryPressureIsToldOfAndKeepsPodsAway(t *testing.T) {
	t.Parallel()
	s := newSite(t, "--eviction-hard=memory.available<99.9%")
	s.eventually("memory pressure", func() error {
		if status := s.nodeCondition(corev1.NodeMemoryPressure); status != corev1.ConditionTrue {
			return fmt.Errorf("the condition is %s", status)
		}
		return nil
	})
	s.apply(lodger)
	pod := s.until("lodger", "to be rejected", evicted)
	if pod.Status.Message != "Pod was rejected: The node had condition: [MemoryPressure]. " {
		t.Errorf("message %q", pod.Status.Message)
	}
	s.apply(`
metadata: {name: asks}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: registry.test/tool:v1, args: [hold, "20"], resources: {requests: {memory: 1Mi}}}
`)
	pod = s.until("asks", "to be evicted", evicted)
	if !strings.HasPrefix(pod.Status.Message, "The node was low on resource: memory. ") || !strings.Contains(pod.Status.Message, "Container main was using ") {
		t.Errorf("message %q", pod.Status.Message)
	}
	if code, out := s.get("/metrics"); code != http.StatusOK || !strings.Contains(out, `kubelet_evictions{eviction_signal="memory.available"}`) {
		t.Errorf("the metric of evictions is missing: %d", code)
	}
}

func TestACriticalPodMakesRoomForItself(t *testing.T) {
	s := newSite(t)
	node, err := s.client.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	most := node.Status.Allocatable[corev1.ResourceCPU]
	pod := func(name, class string) {
		s.apply(fmt.Sprintf(`
metadata: {name: %s, namespace: default}
spec:
  priorityClassName: %q
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: registry.test/tool:v1, resources: {requests: {cpu: %s}}}
`, name, class, most.String()))
	}
	pod("usual", "")
	s.until("usual", "to run", running)
	pod("another", "")
	if got := s.until("another", "to be rejected", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodFailed }); got.Status.Reason != "OutOfcpu" {
		t.Errorf("status %+v", got.Status)
	}
	pod("critical", "system-cluster-critical")
	s.until("critical", "to run", running)
	usual := s.until("usual", "to be ended", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodFailed })
	if usual.Status.Reason != "Preempting" || usual.Status.Message != "Preempted in order to admit critical pod" {
		t.Errorf("the pod that made room says %+v", usual.Status)
	}
	if c := condition(usual, corev1.DisruptionTarget); c == nil || c.Reason != corev1.PodReasonTerminationByKubelet {
		t.Errorf("its conditions are %+v", usual.Status.Conditions)
	}
	s.mustEvent("usual", "Preempting: Preempted in order to admit critical pod")
}
