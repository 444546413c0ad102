package app_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestStaticPodRunsAndIsMirrored(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "static.yaml")
	s := newSite(t, "--pod-manifest-path="+dir)
	write := func(args string) {
		t.Helper()
		text := strings.ReplaceAll(`
apiVersion: v1
kind: Pod
metadata: {name: static}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: registry.test/tool:v1, args: [ARGS]}
`, "ARGS", args)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("graceful")
	const name = "static-" + nodeName
	first := s.until(name, "to be ready", ready)
	s.logged(name, corev1.PodLogOptions{}, func(log string) bool { return log == "ready\n" })
	// Deleting the mirror changes nothing but the mirror.
	s.remove(name)
	second := s.until(name, "to be shown again", func(pod *corev1.Pod) bool { return pod.UID != first.UID && ready(pod) })
	if containerID(second) != containerID(first) {
		t.Errorf("the container is %s, was %s", containerID(second), containerID(first))
	}
	write("forever")
	s.until(name, "to be another", func(pod *corev1.Pod) bool {
		return ready(pod) && containerID(pod) != containerID(first) && pod.Spec.Containers[0].Args[0] == "forever"
	})
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	s.gone(name)
}
