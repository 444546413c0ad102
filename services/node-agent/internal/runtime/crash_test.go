package runtime_test

import (
	"context"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/runtime"
)

// crashAfter names the step after which a test process kills itself.
const crashAfter = "SAMPAN_TEST_CRASH_AFTER"

// crash is how a runtime ends that is killed at just this moment.
func crash(at string) func(string, time.Duration) {
	return func(step string, _ time.Duration) {
		if step == at {
			_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
			select {} // the signal takes a moment, in which nothing more may happen here
		}
	}
}

func TestRuntimeKilledAfterAnyStepFinishesOrUndoesIt(t *testing.T) {
	n := newNode(t)
	n.stop()
	for _, step := range runtime.Steps() {
		t.Run(step, func(t *testing.T) {
			if step == "sandbox_pause" && n.cfg.Pause == "" {
				t.Skip("needs the pause program: run scripts/build-pause.sh")
			}
			if !crashOnce(t, n, step) {
				t.Errorf("no pod's life has come to %s", step)
			}
			n.start()
			defer n.stop()
			n.assertConsistent(t, step)
			n.clear(t)
			assertNothingLeft(t, n.cfg)
		})
	}
	n.start()
}

// crashOnce leads a pod through its life until the runtime is killed.
func crashOnce(t *testing.T, n *node, step string) (crashed bool) {
	t.Helper()
	cfg := n.cfg
	cfg.Socket = filepath.Join(filepath.Dir(cfg.Root), "cri.sock")
	t.Setenv(crashAfter, step)
	server := startServer(t, cfg)
	conn, err := grpc.NewClient("unix://"+cfg.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	client := runtimeapi.NewRuntimeServiceClient(conn)
	if _, err := client.Version(ctx, &runtimeapi.VersionRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	churner{runtime: client, logs: filepath.Join(filepath.Dir(cfg.Root), "logs"), sharePIDs: cfg.Pause != ""}.pod(ctx, "victim")
	_, err = client.Version(ctx, &runtimeapi.VersionRequest{})
	_ = server.Process.Kill() // one that has not come to the step
	_ = server.Wait()
	return err != nil
}

// assertConsistent checks what a runtime tells that has found what another left.
func (n *node) assertConsistent(t *testing.T, step string) {
	t.Helper()
	sandboxes, err := n.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	containers, err := n.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, sandbox := range sandboxes.GetItems() {
		known[sandbox.GetId()] = true
	}
	for _, container := range containers.GetContainers() {
		if !known[container.GetPodSandboxId()] {
			t.Errorf("container %v is in no sandbox", container)
		}
		status, err := n.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: container.GetId()})
		if err != nil {
			t.Fatal(err)
		}
		if step == "container_start" && status.GetStatus().GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("the started container is %v", status.GetStatus())
		}
	}
	// A name that a half-made sandbox had is free, or the sandbox is there to be removed.
	if len(known) > 1 {
		t.Errorf("sandboxes %v", sandboxes.GetItems())
	}
}

// clear removes all sandboxes as a client does that finds them.
func (n *node) clear(t *testing.T) {
	t.Helper()
	list, err := n.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, sandbox := range list.GetItems() {
		if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox.GetId()}); err != nil {
			t.Errorf("removing sandbox %s: %v", sandbox.GetId(), err)
		}
	}
}
