package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/internal/testenv"
)

// agents are the node agents' processes, as the supervisor knows them.
func agents() (map[string]int, error) {
	data, err := os.ReadFile(filepath.Join(cluster.Dir, "processes.json"))
	if err != nil {
		return nil, err
	}
	var all []struct {
		Name string `json:"name"`
		PID  int    `json:"pid"`
	}
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, err
	}
	out := map[string]int{}
	for _, p := range all {
		if strings.HasPrefix(p.Name, "node-agent") {
			out[p.Name] = p.PID
		}
	}
	return out, nil
}

// killAgents ends all with SIGKILL. The returned function waits for their successors.
func killAgents(t *testing.T) (await func()) {
	t.Helper()
	before, err := agents()
	if err != nil || len(before) != 2 {
		t.Fatalf("agents %v, %v", before, err)
	}
	for _, pid := range before {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		t.Helper()
		testenv.Eventually(t, 60*time.Second, "the agents to be started again", func(context.Context) error {
			now, err := agents()
			if err != nil {
				return err
			}
			for name, pid := range before {
				if now[name] == 0 || now[name] == pid {
					return fmt.Errorf("agents %v", now)
				}
			}
			return nil
		})
	}
}

func TestKilledAgentsLoseNothing(t *testing.T) {
	namespace := newNamespace(t)
	before := map[string]string{}
	for _, node := range []string{"node-1", "node-2"} {
		counts := newPod("counts-"+node, "i=0; while true; do echo $i; i=$((i+1)); sleep 0.1; done")
		counts.Spec.NodeName = node
		ends := newPod("ends-"+node, "until [ -e /tmp/go ]; do sleep 0.1; done; exit 7")
		ends.Spec.NodeName, ends.Spec.RestartPolicy = node, corev1.RestartPolicyNever
		mustCreatePod(t, namespace, counts)
		mustCreatePod(t, namespace, ends)
	}
	for _, node := range []string{"node-1", "node-2"} {
		before[node] = first(awaitReady(t, namespace, "counts-"+node)).ContainerID
		awaitReady(t, namespace, "ends-"+node)
		// It ends in a moment, with or without an agent to see it.
		cluster.MustKubectl(t, "-n", namespace, "exec", "ends-"+node, "--", "sh", "-c", "(sleep 1; touch /tmp/go) >/dev/null 2>&1 &")
	}
	await := killAgents(t)
	late := newPod("late", "exec sleep 3600") // made while there is no agent
	late.Spec.NodeName = "node-2"
	mustCreatePod(t, namespace, late)
	await()
	awaitReady(t, namespace, "late")
	for _, node := range []string{"node-1", "node-2"} {
		ended := awaitPod(t, namespace, "ends-"+node, "to have failed", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
		if end := first(ended).State.Terminated; end == nil || end.ExitCode != 7 {
			t.Errorf("%s: %+v", ended.Name, first(ended).State)
		}
		now := first(awaitReady(t, namespace, "counts-"+node))
		if now.ContainerID != before[node] || now.RestartCount != 0 {
			t.Errorf("counts-%s: container %s with %d restarts, was %s", node, now.ContainerID, now.RestartCount, before[node])
		}
		for i, line := range strings.Fields(cluster.MustKubectl(t, "-n", namespace, "logs", "counts-"+node)) {
			if line != fmt.Sprint(i) {
				t.Errorf("counts-%s: line %d of its log is %q", node, i, line)
				break
			}
		}
	}
}
