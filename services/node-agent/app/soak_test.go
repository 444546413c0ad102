package app_test

import (
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/namespaces"
)

// killCycles is SAMPAN_CYCLES, 5 by default.
func killCycles(t *testing.T) int {
	t.Helper()
	text := os.Getenv("SAMPAN_CYCLES")
	if text == "" {
		const usual = 5
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("SAMPAN_CYCLES: %v", err)
	}
	return n
}

// census counts what pods can leave behind on a node.
type census map[string][]string

// census counts everything that belongs to the site.
func (s *site) census() census {
	s.t.Helper()
	out := census{}
	commands, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, path := range commands {
		if data, err := os.ReadFile(path); err == nil && strings.Contains(string(data), s.cgroup+"/") {
			out["processes"] = append(out["processes"], "one")
		}
		command, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if err == nil && (strings.Contains(string(command), s.root+"/") || strings.Contains(string(command), s.run+"/")) && !strings.Contains(string(command), "node-agent") {
			out["monitors"] = append(out["monitors"], filepath.Base(strings.SplitN(string(command), "\x00", 2)[0]))
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); strings.HasPrefix(fields[4], s.root+"/") || strings.HasPrefix(fields[4], s.run+"/") {
			out["mounts"] = append(out["mounts"], fields[4])
		}
	}
	err = namespaces.Do(s.ns, namespaces.Network, func() error {
		list, err := net.Interfaces()
		for _, device := range list {
			out["interfaces"] = append(out["interfaces"], device.Name)
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	out["addresses"], _ = filepath.Glob(filepath.Join(s.root, "cni-data", "*", "10.*"))
	roots, _ := filepath.Glob("/sys/fs/cgroup/*" + s.cgroup)
	for _, root := range append(roots, filepath.Join("/sys/fs/cgroup", s.cgroup)) {
		_ = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				out["control groups"] = append(out["control groups"], path)
			}
			return nil
		})
	}
	for _, root := range []string{s.root, s.run} {
		_ = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || strings.HasSuffix(path, "/rootfs") || strings.HasPrefix(path, filepath.Join(s.root, "images")) {
				return fs.SkipDir // what the containers have made is theirs
			}
			if !entry.IsDir() && !strings.Contains(filepath.Base(path), ".log.") { // rotated ones come with time
				out["files"] = append(out["files"], path)
			}
			return nil
		})
	}
	return out
}

// left is what there is more of afterwards. There may be less: a process that had
// just ended was counted.
func (c census) left(after census) string {
	var text strings.Builder
	for _, kind := range slices.Sorted(maps.Keys(after)) {
		if len(after[kind]) <= len(c[kind]) {
			continue
		}
		fmt.Fprintf(&text, "%s: %d, were %d\n", kind, len(after[kind]), len(c[kind]))
		for _, one := range after[kind] {
			if !slices.Contains(c[kind], one) {
				fmt.Fprintln(&text, "  +", one)
			}
		}
	}
	return text.String()
}

func (c census) String() string {
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(c)) {
		parts = append(parts, fmt.Sprintf("%d %s", len(c[kind]), kind))
	}
	return strings.Join(parts, ", ")
}

// churn is a pod with most of what has to be made and undone.
const churn = `
metadata: {name: churn-%d-%d}
spec:
  terminationGracePeriodSeconds: 1
  shareProcessNamespace: %v
  initContainers:
  - {name: first, image: registry.test/tool:v1, args: [write, /d/x, y], volumeMounts: [{name: d, mountPath: /d}]}
  containers:
  - {name: main, image: registry.test/tool:v1, volumeMounts: [{name: d, mountPath: /d}, {name: d, mountPath: /s, subPath: sub}, {name: m, mountPath: /m}], resources: {limits: {memory: 32Mi}}}
  volumes: [{name: d, emptyDir: {}}, {name: m, emptyDir: {medium: Memory}}]
`

// However often the agent is killed while pods come and go: none restarts, none
// runs twice, and nothing is left of those that are gone.
func TestAgentKilledUnderChurnLosesNothing(t *testing.T) {
	s := newSite(t)
	s.apply(`
metadata: {name: steady}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: registry.test/tool:v1, args: [tick]}
`)
	steady := s.until("steady", "to run", running)
	// One pod comes and goes first, so that what is made once is there.
	s.apply(fmt.Sprintf(churn, 0, 0, true))
	s.until("churn-0-0", "to run", running)
	s.remove("churn-0-0")
	s.gone("churn-0-0")
	s.settle()
	before := s.census()
	t.Logf("before: %s", before)
	seed := rand.Uint64()
	t.Logf("the seed is %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	const pods = 3
	cycles, kills := killCycles(t), 0
	kill := func() {
		time.Sleep(time.Duration(random.IntN(250)) * time.Millisecond) // the moment is what varies
		s.kill()
		s.startAgent()
		kills++
	}
	for cycle := 1; kills < cycles; cycle++ {
		for i := range pods {
			s.apply(fmt.Sprintf(churn, cycle, i, i == 0))
		}
		kill()
		for i := range pods {
			pod := s.until(fmt.Sprintf("churn-%d-%d", cycle, i), "to run", running)
			if n := statusOf(pod, "main").RestartCount; n != 0 {
				t.Errorf("pod %s was restarted %d times", pod.Name, n)
			}
			s.remove(pod.Name)
		}
		kill()
		for i := range pods {
			s.gone(fmt.Sprintf("churn-%d-%d", cycle, i))
		}
	}
	after := s.until("steady", "to run", running)
	if containerID(after) != containerID(steady) || statusOf(after, "main").RestartCount != 0 {
		t.Errorf("the steady pod's container is %s, was %s", containerID(after), containerID(steady))
	}
	s.wholeLog("steady")
	s.eventually("nothing to be left", func() error {
		if left := before.left(s.census()); left != "" {
			return fmt.Errorf("after %d kills:\n%s", kills, left)
		}
		return nil
	})
	t.Logf("after %d kills: %s", kills, s.census())
}

// settle waits until nothing of pods that are gone is there any more.
func (s *site) settle() {
	s.t.Helper()
	s.eventually("the node to settle", func() error {
		first := s.census()
		time.Sleep(100 * time.Millisecond)
		if second := s.census(); first.left(second)+second.left(first) != "" {
			return fmt.Errorf("it changes: %s", first.left(second)+second.left(first))
		}
		if sandboxes, _ := filepath.Glob(filepath.Join(s.root, "sandboxes", "*")); len(sandboxes) != 1 {
			return fmt.Errorf("%d sandboxes", len(sandboxes))
		}
		return nil
	})
}

// wholeLog checks that no line is missing of what the container has counted, in
// what is left of it after rotation.
func (s *site) wholeLog(pod string) {
	s.t.Helper()
	last := -1
	for line := range strings.Lines(s.logs(pod, corev1.PodLogOptions{})) {
		var n int
		if _, err := fmt.Sscanf(line, "tick %d", &n); err != nil {
			s.t.Errorf("line %q: %v", line, err)
			return
		}
		if last >= 0 && n != last+1 {
			s.t.Errorf("%d follows %d", n, last)
			return
		}
		last = n
	}
	if last < 0 {
		s.t.Error("the log is empty")
	}
}
