package runtime_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/cgroups"
)

func TestExecSyncTimeoutKillsTheWholeTree(t *testing.T) {
	n := newNode(t)
	p := n.runPod("timeout")
	c := p.run([]string{"forever"})
	_, err := c.exec(1, "/tool", "fork-forever")
	if status.Code(err) != codes.DeadlineExceeded {
		t.Fatalf("error %v", err)
	}
	group := filepath.Join(n.cfg.CgroupParent, c.id)
	eventually(t, "the end of the command and its child", func() bool {
		pids, err := cgroups.Detect().PIDs(group)
		if err != nil {
			t.Fatal(err)
		}
		return len(pids) == 1
	})
	if c.status().GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Error("the container itself was ended")
	}
}

func TestMemoryHogIsReportedAsOOMKilled(t *testing.T) {
	n := newNode(t)
	for _, command := range []string{"hog", "child-hog"} {
		t.Run(command, func(t *testing.T) {
			p := n.runPod(command)
			c := p.run([]string{command}, func(config *runtimeapi.ContainerConfig) {
				config.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 48 << 20}
			})
			if status := c.exited(); status.GetReason() != "OOMKilled" {
				t.Errorf("reason %q, code %d", status.GetReason(), status.GetExitCode())
			}
		})
	}
}

func TestLimitsReachTheKernelAndCanBeUpdated(t *testing.T) {
	n := newNode(t)
	c := n.runPod("limits").run([]string{"forever"}, func(config *runtimeapi.ContainerConfig) {
		config.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 64 << 20, CpuQuota: 20000, CpuPeriod: 100000, CpuShares: 512}
	})
	if got := memoryLimit(t, n, c); got != 64<<20 {
		t.Errorf("memory limit %d", got)
	}
	_, err := n.UpdateContainerResources(t.Context(), &runtimeapi.UpdateContainerResourcesRequest{
		ContainerId: c.id, Linux: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 128 << 20},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := memoryLimit(t, n, c); got != 128<<20 {
		t.Errorf("memory limit after the update %d", got)
	}
	resources := c.status().GetResources().GetLinux()
	if resources.GetMemoryLimitInBytes() != 128<<20 || resources.GetCpuQuota() != 20000 {
		t.Errorf("reported resources %v", resources)
	}
	stats, err := n.ContainerStats(t.Context(), &runtimeapi.ContainerStatsRequest{ContainerId: c.id})
	if err != nil {
		t.Fatal(err)
	}
	if stats.GetStats().GetMemory().GetWorkingSetBytes().GetValue() == 0 || stats.GetStats().GetCpu().GetUsageCoreNanoSeconds().GetValue() == 0 {
		t.Errorf("stats %v", stats)
	}
}

func memoryLimit(t *testing.T, n *node, c *ctr) int64 {
	t.Helper()
	h := cgroups.Detect()
	name := "memory.limit_in_bytes"
	if h.Unified() {
		name = "memory.max"
	}
	data, err := os.ReadFile(filepath.Join(h.Path("memory", filepath.Join(n.cfg.CgroupParent, c.id)), name))
	if err != nil {
		t.Fatal(err)
	}
	limit, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return limit
}
