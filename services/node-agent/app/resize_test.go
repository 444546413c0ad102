package app_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func (s *site) resize(name, cpu, memory string) {
	s.t.Helper()
	pod, err := s.pod(name)
	if err != nil {
		s.t.Fatal(err)
	}
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list, Limits: list.DeepCopy()}
	if _, err := s.client.CoreV1().Pods(metav1.NamespaceDefault).UpdateResize(s.t.Context(), name, pod, metav1.UpdateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// limit reads a value of the control group of the pod's first container, or of the
// pod.
func (s *site) limit(pod *corev1.Pod, whole bool, v1, v2 string) string {
	s.t.Helper()
	_, id, _ := strings.Cut(containerID(pod), "://")
	if whole {
		id = ""
	}
	for _, class := range []string{"", "burstable", "besteffort"} {
		group := filepath.Join(s.cgroup, "kubepods", class, "pod"+string(pod.UID), id)
		for _, path := range []string{filepath.Join("/sys/fs/cgroup", v1[:strings.IndexByte(v1, '/')], group, filepath.Base(v1)), filepath.Join("/sys/fs/cgroup", group, v2)} {
			if data, err := os.ReadFile(path); err == nil {
				return strings.TrimSpace(string(data))
			}
		}
	}
	return "no such group"
}

func condition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// resized tells that the first container has that much memory, that nothing is
// under way, and how often it was restarted.
func resized(cpu, memory string, restarts int32) func(pod *corev1.Pod) bool {
	return func(pod *corev1.Pod) bool {
		if len(pod.Status.ContainerStatuses) == 0 || pod.Status.ContainerStatuses[0].Resources == nil {
			return false
		}
		status := pod.Status.ContainerStatuses[0]
		return status.Resources.Limits.Memory().String() == memory && status.Resources.Requests.Cpu().String() == cpu &&
			status.AllocatedResources.Memory().String() == memory && status.RestartCount == restarts && status.State.Running != nil &&
			condition(pod, corev1.PodResizeInProgress) == nil && condition(pod, corev1.PodResizePending) == nil
	}
}

func TestPodsAreResizedInPlace(t *testing.T) {
	s := newSite(t)
	s.apply(`
metadata: {name: grows}
spec:
  containers:
  - name: main
    image: registry.test/tool:v1
    resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]
    resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 100m, memory: 32Mi}}
`)
	before := s.until("grows", "to run", resized("100m", "32Mi", 0))
	s.resize("grows", "200m", "32Mi")
	after := s.until("grows", "to have more CPU", resized("200m", "32Mi", 0))
	if containerID(after) != containerID(before) {
		t.Error("the container was restarted for CPU")
	}
	for _, whole := range []bool{false, true} {
		if got := s.limit(after, whole, "cpu/cpu.cfs_quota_us", "cpu.max"); !strings.HasPrefix(got, "20000") {
			t.Errorf("CPU quota (of the pod: %v) is %s", whole, got)
		}
	}
	s.mustEvent("grows", "ResizeCompleted")

	s.resize("grows", "200m", "48Mi")
	after = s.until("grows", "to be restarted with more memory", resized("200m", "48Mi", 1))
	if got := s.limit(after, true, "memory/memory.limit_in_bytes", "memory.max"); got != "50331648" {
		t.Errorf("the pod's memory limit is %s", got)
	}
	s.mustEvent("grows", "Killing: Container main resize requires restart")

	s.kill() // a restarted agent remembers
	s.startAgent()
	s.resize("grows", "150m", "48Mi")
	s.until("grows", "to have less CPU", resized("150m", "48Mi", 1))
	s.remove("grows")
}

func TestResizeIsDeferredUntilAnotherPodGoes(t *testing.T) {
	s := newSite(t)
	node, err := s.client.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cpus := node.Status.Allocatable.Cpu().Value()
	for _, pod := range []string{"first", "second"} {
		s.apply(fmt.Sprintf(`
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: registry.test/tool:v1
    resources: {requests: {cpu: 500m, memory: 16Mi}, limits: {cpu: 500m, memory: 16Mi}}
`, pod))
		s.until(pod, "to run", running)
	}
	all := fmt.Sprint(cpus)
	s.resize("first", all, "16Mi")
	pod := s.until("first", "to wait", func(pod *corev1.Pod) bool { return condition(pod, corev1.PodResizePending) != nil })
	if c := condition(pod, corev1.PodResizePending); c.Reason != corev1.PodReasonDeferred || !strings.Contains(c.Message, "Node didn't have enough resource: cpu") {
		t.Errorf("condition %+v", c)
	}
	s.remove("second")
	s.until("first", "to have all CPUs", resized(all, "16Mi", 0))
}
