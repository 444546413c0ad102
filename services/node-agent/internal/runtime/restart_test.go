package runtime_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/monitor"
	"github.com/sampan-io/sampan/services/node-agent/internal/runtime"
)

func TestRestartedRuntimeFindsRunningContainers(t *testing.T) {
	n := newNode(t)
	p := n.runPod("survivor")
	c := p.run([]string{"graceful"})
	c.logged("ready")
	before := c.status()

	n.stop()
	n.start()
	after := c.status()
	if after.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING || after.GetStartedAt() != before.GetStartedAt() {
		t.Fatalf("status after the restart: %v", after)
	}
	c.mustExec("/tool", "echo", "still here")
	if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: c.id, Timeout: 10}); err != nil {
		t.Fatal(err)
	}
	if status := c.status(); status.GetExitCode() != 7 {
		t.Errorf("exit code %d", status.GetExitCode())
	}
}

func TestExitDuringDowntimeIsFoundAfterwards(t *testing.T) {
	n := newNode(t)
	p := n.runPod("missed")
	c := p.run([]string{"graceful"})
	c.logged("ready")
	verbose, err := n.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: c.id, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	init := initProcess(t, verbose)
	n.stop()
	if err := init.Signal(unix.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	if err := init.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	n.start()
	if status := c.exited(); status.GetExitCode() != 7 {
		t.Errorf("exit code %d, reason %s", status.GetExitCode(), status.GetReason())
	}
	assertContains(t, c.logText(), "signal user defined signal 1")
}

func TestContainerWhoseMonitorIsKilledIsEnded(t *testing.T) {
	n := newNode(t)
	c := n.runPod("orphan").run([]string{"forever"})
	found, err := (monitor.Conmon{}).FindMonitors(c.id)
	if err != nil || len(found) != 1 {
		t.Fatalf("monitors %v, error %v", found, err)
	}
	if err := found[0].Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	status := c.exited()
	if status.GetExitCode() != 137 {
		t.Errorf("exit code %d", status.GetExitCode())
	}
	assertContains(t, status.GetMessage(), "monitor")
}

func TestRestartedRuntimeKeepsNamesAndAddresses(t *testing.T) {
	n := newNode(t)
	p := n.runPod("named")
	n.stop()
	n.start()
	if _, err := n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: p.config}); err == nil {
		t.Error("a second sandbox took the name")
	}
	resp, err := n.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.id})
	if err != nil {
		t.Fatal(err)
	}
	if resp.GetStatus().GetState() != runtimeapi.PodSandboxState_SANDBOX_READY || resp.GetStatus().GetNetwork().GetIp() == "" {
		t.Errorf("status after the restart: %v", resp.GetStatus())
	}
}

func TestSecondRuntimeIsKeptOffTheDirectories(t *testing.T) {
	n := newNode(t)
	if _, err := runtime.New(n.cfg); err == nil || !strings.Contains(err.Error(), "another runtime") {
		t.Errorf("error %v", err)
	}
}

func TestStoppingOnePodDoesNotWaitForAnother(t *testing.T) {
	n := newNode(t)
	slow := n.runPod("slow").run([]string{"deaf"})
	slow.logged("ready")
	quick := n.runPod("quick").run([]string{"forever"})
	stopped := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, err := n.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: slow.id, Timeout: 3600})
		stopped <- err
	}()
	ctx2, cancel2 := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel2()
	if _, err := n.StopContainer(ctx2, &runtimeapi.StopContainerRequest{ContainerId: quick.id, Timeout: 5}); err != nil {
		t.Errorf("the other pod: %v", err)
	}
	// The same container can be killed while a graceful stop waits.
	if _, err := n.StopContainer(ctx2, &runtimeapi.StopContainerRequest{ContainerId: slow.id}); err != nil {
		t.Errorf("the same container: %v", err)
	}
	if err := <-stopped; err != nil {
		t.Errorf("the waiting stop: %v", err)
	}
	cancel()
}
