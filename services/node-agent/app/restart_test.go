package app_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// containerID is the id of the pod's first container.
func containerID(pod *corev1.Pod) string {
	if len(pod.Status.ContainerStatuses) == 0 {
		return ""
	}
	return pod.Status.ContainerStatuses[0].ContainerID
}

func TestKilledAgentGoesOnWhereItWas(t *testing.T) {
	s := newSite(t)
	s.apply(`
metadata: {name: stays}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: registry.test/tool:v1
    args: [listen, ":8080"]
    readinessProbe: {httpGet: {port: 8080}, periodSeconds: 1}
    volumeMounts: [{name: v, mountPath: /v}]
  volumes: [{name: v, emptyDir: {}}]
`)
	s.apply(`
metadata: {name: leaves}
spec:
  containers:
  - {name: main, image: registry.test/tool:v1, args: [graceful]}
`)
	s.apply(`
metadata: {name: ends}
spec:
  restartPolicy: Never
  containers:
  - {name: main, image: registry.test/tool:v1, args: [graceful]}
`)
	before := s.until("stays", "to be ready", ready)
	s.until("leaves", "to run", running)
	ends := s.until("ends", "to run", running)
	s.kill()

	// Meanwhile one pod is deleted for good, and the container of another one ends.
	zero := int64(0)
	if err := s.client.CoreV1().Pods("default").Delete(t.Context(), "leaves", metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
		t.Fatal(err)
	}
	s.gone("leaves")
	if _, id, _ := strings.Cut(containerID(ends), "://"); !s.signal(id) {
		t.Fatal("the container to be ended was not found")
	}
	s.startAgent()

	ended := s.until("ends", "to have failed", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodFailed })
	if end := ended.Status.ContainerStatuses[0].State.Terminated; end == nil || end.ExitCode != 7 {
		t.Errorf("the exit code of the container that ended meanwhile: %+v", end)
	}
	s.eventually("the deleted pod's sandbox to be removed", func() error {
		left, err := filepath.Glob(filepath.Join(s.root, "sandboxes", "*"))
		if err != nil || len(left) > 2 {
			return errors.Join(err, fmt.Errorf("%d sandboxes are left", len(left)))
		}
		return nil
	})
	after, err := s.pod("stays")
	if err != nil {
		t.Fatal(err)
	}
	if containerID(after) != containerID(before) || after.Status.ContainerStatuses[0].RestartCount != 0 || !ready(after) {
		t.Errorf("before:\n%+v\nafter:\n%+v", before.Status, after.Status)
	}
	for _, condition := range after.Status.Conditions {
		for _, old := range before.Status.Conditions {
			if condition.Type == old.Type && !condition.LastTransitionTime.Equal(&old.LastTransitionTime) {
				t.Errorf("condition %s has changed at the restart: %+v, was %+v", condition.Type, condition, old)
			}
		}
	}
	s.remove("stays")
	s.gone("stays")
}

// signal sends SIGTERM to the first process of a container.
func (s *site) signal(id string) bool {
	s.t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(data), id) {
			continue
		}
		if comm, err := os.ReadFile(filepath.Join(filepath.Dir(file), "comm")); err != nil || strings.TrimSpace(string(comm)) != "tool" {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(filepath.Base(filepath.Dir(file)), "%d", &pid); err != nil {
			continue
		}
		process, err := os.FindProcess(pid)
		if err != nil {
			continue
		}
		return process.Signal(syscall.SIGTERM) == nil
	}
	return false
}
