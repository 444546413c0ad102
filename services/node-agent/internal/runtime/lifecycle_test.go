package runtime_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestContainerRunsAndItsExitCodeAndLogAreKept(t *testing.T) {
	n := newNode(t)
	p := n.runPod("simple")
	c := p.create([]string{"echo", "hello", "world"})
	if state := c.status().GetState(); state != runtimeapi.ContainerState_CONTAINER_CREATED {
		t.Errorf("state before the start: %v", state)
	}
	c.start()
	status := c.exited()
	if status.GetExitCode() != 0 || status.GetReason() != "Completed" {
		t.Errorf("exit code %d, reason %q", status.GetExitCode(), status.GetReason())
	}
	if status.GetStartedAt() < status.GetCreatedAt() || status.GetFinishedAt() < status.GetStartedAt() {
		t.Errorf("times out of order: created %d, started %d, finished %d", status.GetCreatedAt(), status.GetStartedAt(), status.GetFinishedAt())
	}
	line := regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+(Z|[+-]\d\d:\d\d) stdout F hello world\n$`)
	if !line.MatchString(c.logText()) {
		t.Errorf("log %q is not in CRI format", c.logText())
	}
}

func TestContainerThatFailsReportsItsCode(t *testing.T) {
	n := newNode(t)
	status := n.runPod("failing").run([]string{"exit", "42"}).exited()
	if status.GetExitCode() != 42 || status.GetReason() != "Error" {
		t.Errorf("exit code %d, reason %q", status.GetExitCode(), status.GetReason())
	}
}

func TestSandboxGivesAddressHostnameAndResolver(t *testing.T) {
	n := newNode(t)
	p := n.runPod("web")
	resp, err := n.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.id})
	if err != nil {
		t.Fatal(err)
	}
	if ip := resp.GetStatus().GetNetwork().GetIp(); !strings.HasPrefix(ip, "10.77.0.") {
		t.Errorf("address %q", ip)
	}
	c := p.run([]string{"forever"})
	if got := c.mustExec("/tool", "hostname"); got != "web\n" {
		t.Errorf("hostname %q", got)
	}
	want := "search default.svc.cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n"
	if got := c.mustExec("/tool", "read", "/etc/resolv.conf"); got != want {
		t.Errorf("resolv.conf %q", got)
	}
}

func TestStopContainerSendsTheSignalAndWaits(t *testing.T) {
	n := newNode(t)
	c := n.runPod("graceful").run([]string{"graceful"})
	c.logged("ready")
	if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: c.id, Timeout: 10}); err != nil {
		t.Fatal(err)
	}
	if status := c.status(); status.GetExitCode() != 7 {
		t.Errorf("exit code %d", status.GetExitCode())
	}
	assertContains(t, c.logText(), "signal terminated")
}

func TestStopContainerKillsOneThatDoesNotListen(t *testing.T) {
	n := newNode(t)
	c := n.runPod("deaf").run([]string{"deaf"})
	c.logged("ready")
	begin := time.Now()
	if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: c.id, Timeout: 1}); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took < time.Second {
		t.Errorf("it was killed after %v", took)
	}
	if status := c.status(); status.GetExitCode() != 137 {
		t.Errorf("exit code %d", status.GetExitCode())
	}
}

func TestRuntimeClassHandlerIsUsed(t *testing.T) {
	n := &node{t: t, cfg: newConfig(t)}
	n.cfg.Handlers = map[string]string{"other": n.cfg.Runc}
	n.start()
	t.Cleanup(n.destroy)
	if _, err := n.Images().Import(t.Context(), testArchive(t)); err != nil {
		t.Fatal(err)
	}
	config := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "x", Namespace: "default", Uid: "x"}}
	if _, err := n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: "missing"}); err == nil {
		t.Error("an unknown handler was accepted")
	}
	resp, err := n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: "other"})
	if err != nil {
		t.Fatal(err)
	}
	p := &pod{n: n, id: resp.GetPodSandboxId(), config: config}
	c := p.run([]string{"forever"})
	if _, err := os.Stat(filepath.Join(n.cfg.Run, "handlers", "other", c.id)); err != nil {
		t.Error(err)
	}
	c.mustExec("/tool", "echo")
	n.stop()
	n.start()
	if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: c.id}); err != nil {
		t.Fatal(err)
	}
}

func TestExecSyncReturnsOutputAndCode(t *testing.T) {
	n := newNode(t)
	c := n.runPod("exec").run([]string{"forever"})
	resp, err := c.exec(10, "/tool", "stderr", "oops")
	if err != nil {
		t.Fatal(err)
	}
	if string(resp.GetStderr()) != "oops\n" || resp.GetExitCode() != 0 {
		t.Errorf("stderr %q, code %d", resp.GetStderr(), resp.GetExitCode())
	}
	if resp, err = c.exec(10, "/tool", "exit", "3"); err != nil || resp.GetExitCode() != 3 {
		t.Errorf("code %d, error %v", resp.GetExitCode(), err)
	}
	if _, err = c.exec(10, "/nowhere"); err == nil {
		t.Error("a command that does not exist was run")
	} else {
		assertContains(t, err.Error(), "nowhere")
	}
}
