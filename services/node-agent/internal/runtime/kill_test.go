package runtime_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/runtime"
)

// serverConfig holds the configuration of a test process that is only a runtime, so
// that it can be killed.
const serverConfig = "SAMPAN_TEST_SERVER"

func runServer(config string) int {
	var cfg runtime.Config
	if err := json.Unmarshal([]byte(config), &cfg); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if step := os.Getenv(crashAfter); step != "" {
		cfg.Observe = crash(step)
	}
	server, err := runtime.New(cfg)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := server.Run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func startServer(t *testing.T, cfg runtime.Config) *exec.Cmd {
	t.Helper()
	cfg.Log = nil
	data, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), serverConfig+"="+string(data))
	cmd.Stderr = testWriter{t}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// churner makes, runs and removes pods as long as it may, whatever errors it meets.
type churner struct {
	runtime runtimeapi.RuntimeServiceClient
	logs    string
	// sharePIDs makes pods whose containers share a PID namespace.
	sharePIDs bool
}

func (c churner) pod(ctx context.Context, name string) {
	config := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name},
		LogDirectory: filepath.Join(c.logs, name),
	}
	if c.sharePIDs {
		config.Linux = &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_POD},
		}}
	}
	sandbox, err := c.runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config})
	if err != nil {
		return
	}
	created, err := c.runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: sandbox.GetPodSandboxId(), SandboxConfig: config,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: &runtimeapi.ImageSpec{Image: image}, Args: []string{"graceful"}, LogPath: "main.log",
		},
	})
	if err == nil {
		_, _ = c.runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: created.GetContainerId()})
		_, _ = c.runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: created.GetContainerId(), Timeout: 1})
	}
	_, _ = c.runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox.GetPodSandboxId()})
}

func (c churner) run(ctx context.Context, worker int) {
	for i := 0; ctx.Err() == nil; i++ {
		c.pod(ctx, fmt.Sprintf("churn-%d-%d", worker, i))
	}
}

func TestKilledRuntimeLosesAndLeaksNothing(t *testing.T) {
	n := newNode(t) // it imports the image, and removes what is left at the end
	steady := n.runPod("steady")
	c := steady.run([]string{"tick"})
	started := c.status().GetStartedAt()
	n.stop()

	cfg := n.cfg
	cfg.Socket = filepath.Join(filepath.Dir(cfg.Root), "cri.sock")
	conn, err := grpc.NewClient("unix://"+cfg.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := runtimeapi.NewRuntimeServiceClient(conn)
	const cycles = 6
	for cycle := range cycles {
		server := startServer(t, cfg)
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		if _, err := client.Version(ctx, &runtimeapi.VersionRequest{}, grpc.WaitForReady(true)); err != nil {
			t.Fatal(err)
		}
		cancel()
		ctx, cancel = context.WithCancel(t.Context())
		var workers sync.WaitGroup
		for worker := range 2 {
			workers.Go(func() {
				churner{runtime: client, logs: filepath.Join(filepath.Dir(cfg.Root), "logs")}.run(ctx, cycle*10+worker)
			})
		}
		// Not a wait for an effect: the moment of the kill is what is tested.
		time.Sleep(time.Duration(50+rand.IntN(400)) * time.Millisecond)
		if err := server.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = server.Wait()
		cancel()
		workers.Wait()
	}

	n.start()
	status := c.status()
	if status.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING || status.GetStartedAt() != started {
		t.Errorf("the steady container: %v", status)
	}
	assertEveryTick(t, c)
}

// assertEveryTick checks that no line of the log is missing.
func assertEveryTick(t *testing.T, c *ctr) {
	t.Helper()
	next := 0
	for line := range strings.Lines(c.logText()) {
		if strings.HasSuffix(line, "\n") && !strings.HasSuffix(line, fmt.Sprintf(" F tick %d\n", next)) {
			t.Fatalf("line %d of the log: %q", next, line)
		}
		next++
	}
	if next < 10 {
		t.Errorf("only %d lines", next)
	}
}
