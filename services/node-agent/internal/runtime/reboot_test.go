package runtime_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/cgroups"
	"github.com/sampan-io/sampan/services/node-agent/internal/monitor"
)

// powerCycle takes away all that a reboot does: processes, mounts, the run directory and
// the boot id.
func (n *node) powerCycle(c *ctr) {
	t := n.t
	t.Helper()
	n.stop()
	monitors, err := (monitor.Conmon{}).FindMonitors(c.id)
	if err != nil {
		t.Fatal(err)
	}
	for _, process := range monitors {
		if err := process.Signal(unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	h := cgroups.Detect()
	if err := h.Kill(n.cfg.CgroupParent); err != nil {
		t.Fatal(err)
	}
	if err := h.Remove(n.cfg.CgroupParent); err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"sandboxes/*/ns/*", "sandboxes/*/shm", "containers/*/rootfs"} {
		mounts, err := filepath.Glob(filepath.Join(n.cfg.Run, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, mount := range mounts {
			_ = unix.Unmount(mount, unix.MNT_DETACH)
		}
	}
	if err := os.RemoveAll(n.cfg.Run); err != nil {
		t.Fatal(err)
	}
	records, err := filepath.Glob(filepath.Join(n.cfg.Root, "*", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	boot := regexp.MustCompile(`"bootID":"[^"]*"`)
	for _, record := range records {
		changed := boot.ReplaceAllString(mustRead(t, record), `"bootID":"another"`)
		if err := os.WriteFile(record, []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRebootEndsContainersAndSandboxes(t *testing.T) {
	n := newNode(t)
	p := n.runPod("before")
	c := p.run([]string{"forever"})
	n.powerCycle(c)
	n.start()
	if status := c.status(); status.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || status.GetExitCode() != 255 || status.GetReason() != "Unknown" {
		t.Errorf("status %v", status)
	}
	resp, err := n.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.id})
	if err != nil || resp.GetStatus().GetState() != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
		t.Errorf("sandbox %v, %v", resp.GetStatus(), err)
	}
	n.runPod("after").run([]string{"echo"}).exited()
}

func TestTornRecordIsUndone(t *testing.T) {
	n := newNode(t)
	c := n.runPod("torn").run([]string{"forever"})
	n.stop()
	record := filepath.Join(n.cfg.Root, "containers", c.id+".json")
	if err := os.WriteFile(record, []byte(mustRead(t, record)[:100]), 0o600); err != nil {
		t.Fatal(err)
	}
	n.start()
	list, err := n.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
	if err != nil || len(list.GetContainers()) != 0 {
		t.Errorf("containers %v, %v", list.GetContainers(), err)
	}
	if _, err := n.ImageFsInfo(t.Context(), &runtimeapi.ImageFsInfoRequest{}); err != nil {
		t.Error(err)
	}
}

func TestPowerCutThatTookSandboxRecordsLeaksNoAddress(t *testing.T) {
	n := newNode(t)
	for name, take := range map[string]func(path string) error{
		"torn": func(path string) error { return os.Truncate(path, 50) },
		"gone": os.Remove,
	} {
		p := n.runPod(name)
		c := p.run([]string{"forever"})
		n.powerCycle(c)
		if err := take(filepath.Join(n.cfg.Root, "sandboxes", p.id+".json")); err != nil {
			t.Fatal(err)
		}
		n.start()
		if addresses, err := filepath.Glob(filepath.Join(filepath.Dir(n.cfg.Root), "cni-data", "*", "10.*")); err != nil || len(addresses) > 0 {
			t.Errorf("%s: addresses are left: %v %v", name, addresses, err)
		}
		after := n.runPod(name)
		after.run([]string{"echo"}).exited()
		if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: after.id}); err != nil {
			t.Fatal(err)
		}
	}
}
