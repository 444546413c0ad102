package robustness

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/internal/testenv"
)

// process is what the supervisor tells of a service.
type process struct {
	Name string `json:"name"`
	PID  int    `json:"pid"`
}

func processes(c *testenv.Cluster) (map[string]int, error) {
	data, err := os.ReadFile(filepath.Join(c.Dir, "processes.json"))
	if err != nil {
		return nil, err
	}
	var all []process
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, err
	}
	out := map[string]int{}
	for _, p := range all {
		out[p.Name] = p.PID
	}
	return out, nil
}

// mustKill ends a service with SIGKILL and waits until the supervisor has
// started it again.
func mustKill(t *testing.T, c *testenv.Cluster, name string) {
	t.Helper()
	before, err := processes(c)
	if err != nil || before[name] == 0 {
		t.Fatalf("%s does not run: %v, %v", name, before, err)
	}
	if err := syscall.Kill(before[name], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 30*time.Second, name+" is started again", func(context.Context) error {
		now, err := processes(c)
		if err != nil {
			return err
		}
		if now[name] == 0 || now[name] == before[name] {
			return fmt.Errorf("process is %d", now[name])
		}
		return nil
	})
}

// containers are the ids and restart counts of all containers of a namespace.
func containers(ctx context.Context, c *testenv.Cluster, namespace string) ([]string, error) {
	pods, err := c.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var out []string
	for _, pod := range pods.Items {
		for _, s := range pod.Status.ContainerStatuses {
			if s.State.Running == nil {
				return nil, fmt.Errorf("container of %s does not run: %+v", pod.Name, s.State)
			}
			out = append(out, fmt.Sprintf("%s %s %d", pod.Name, s.ContainerID, s.RestartCount))
		}
	}
	slices.Sort(out)
	return out, nil
}

// rules are the service rules of a node, without counters.
func rules(node string) ([]string, error) {
	out, err := exec.Command("ip", "netns", "exec", "sampan-"+node, "iptables-save").Output()
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, line := range strings.Split(string(out), "\n") {
		if strings.HasPrefix(line, "-A") {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines, nil
}

const webManifest = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: NS}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: localhost/sampan/demo:1
        command: [/demo, serve]
        readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1, failureThreshold: 5}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: NS}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
`

func TestKilledServicesLoseNothing(t *testing.T) {
	requireBin(t)
	c, err := testenv.Start(1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			t.Log(c.Logs(30))
		}
		if err := c.Purge(); err != nil {
			t.Error(err)
		}
	}()
	namespace := mustNamespace(t, c.Client)
	c.MustApply(t, strings.ReplaceAll(webManifest, "NS", namespace))
	c.MustKubectl(t, "-n", namespace, "rollout", "status", "deployment/web", "--timeout=60s")
	service, err := c.Client.CoreV1().Services(namespace).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	address := "http://" + service.Spec.ClusterIP + "/"
	testenv.Eventually(t, 20*time.Second, "the Service answers", func(context.Context) error { return ask(address) })
	wantContainers, err := containers(t.Context(), c, namespace)
	if err != nil || len(wantContainers) != 3 {
		t.Fatalf("containers are %v, %v", wantContainers, err)
	}
	wantRules, err := rules("node-1")
	if err != nil {
		t.Fatal(err)
	}
	f, err := startFollower(t.Context(), c.Client, namespace)
	if err != nil {
		t.Fatal(err)
	}
	l := startLoad(t.Context(), c.Client, namespace, 4)

	for _, name := range []string{"apiserver", "scheduler", "controller-manager", "node-agent-node-1", "proxy-node-1"} {
		for cycle := range cycles(t) {
			mustKill(t, c, name)
			if err := ask(address); err != nil {
				t.Errorf("%s, cycle %d: the Service does not answer: %v", name, cycle, err)
			}
		}
		testenv.Eventually(t, 60*time.Second, "containers and rules are as before "+name+" was killed", func(ctx context.Context) error {
			got, err := containers(ctx, c, namespace)
			if err != nil {
				return err
			}
			if !slices.Equal(got, wantContainers) {
				return fmt.Errorf("containers are %v, were %v", got, wantContainers)
			}
			now, err := rules("node-1")
			if err != nil {
				return err
			}
			if !slices.Equal(now, wantRules) {
				return fmt.Errorf("rules are\n%s\nwere\n%s", strings.Join(now, "\n"), strings.Join(wantRules, "\n"))
			}
			return nil
		})
	}
	c.MustKubectl(t, "-n", namespace, "scale", "deployment/web", "--replicas=4")
	c.MustKubectl(t, "-n", namespace, "rollout", "status", "deployment/web", "--timeout=90s")

	l.stop()
	lost, err := l.check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d acknowledged writes, %d failed", l.writes.Load(), l.failures.Load())
	if lost > 0 {
		t.Errorf("%d acknowledged writes are lost", lost)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if faults := f.finish(ctx); len(faults) > 0 {
		t.Errorf("the watch had %d faults, the first: %v", len(faults), faults[:min(5, len(faults))])
	}
	adoptsServices(t, c)
}

// adoptsServices kills the supervisor: the services go on, and the next up
// adopts them.
func adoptsServices(t *testing.T, c *testenv.Cluster) {
	t.Helper()
	before, err := processes(c)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(c.Dir, "supervisor.lock"))
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(string(text), &pid); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 10*time.Second, "status tells that the supervisor is gone", func(context.Context) error {
		if out, err := c.Sampan("status"); err == nil {
			return fmt.Errorf("status says %s", out)
		}
		return nil
	})
	if out, err := c.Sampan("up"); err != nil {
		t.Fatalf("up: %v\n%s", err, out)
	}
	after, err := processes(c)
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("processes are %v, were %v", after, before)
	}
	if out, err := c.Sampan("up"); err == nil || !strings.Contains(out, "already running") {
		t.Errorf("a second up: %v, %s", err, out)
	}
}

func ask(address string) error {
	client := &http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get(address)
	if err != nil {
		return err
	}
	return answer.Body.Close()
}
