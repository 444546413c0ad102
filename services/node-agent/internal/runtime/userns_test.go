package runtime_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const firstOwnID = 200000

func ownUsers(pid runtimeapi.NamespaceMode) func(*runtimeapi.PodSandboxConfig) {
	ids := []*runtimeapi.IDMapping{{HostId: firstOwnID, Length: 65536}}
	return namespaces(func(o *runtimeapi.NamespaceOption) {
		o.Pid, o.UsernsOptions = pid, &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}
	})
}

func needUserNamespaces(t *testing.T, n *node) {
	t.Helper()
	status, err := n.Status(t.Context(), &runtimeapi.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if !status.GetRuntimeHandlers()[0].GetFeatures().GetUserNamespaces() {
		t.Skip("needs a kernel and a file system with id-mapped mounts, and the pause program")
	}
}

func TestRootOfAPodWithItsOwnUsersIsNobodyOnTheHost(t *testing.T) {
	n := newNode(t)
	needUserNamespaces(t, n)
	for name, pid := range map[string]runtimeapi.NamespaceMode{"own-users": runtimeapi.NamespaceMode_CONTAINER, "own-users-one-pid-space": runtimeapi.NamespaceMode_POD} {
		t.Run(name, func(t *testing.T) { checkOwnUsers(t, n.runPod(name, ownUsers(pid))) })
	}
}

func checkOwnUsers(t *testing.T, p *pod) {
	volume := filepath.Join(filepath.Dir(p.n.cfg.Root), "volume-"+p.config.GetMetadata().GetName())
	if err := os.Mkdir(volume, 0o755); err != nil {
		t.Fatal(err)
	}
	mapping := sandboxMapping(p)
	c := p.run([]string{"forever"}, func(config *runtimeapi.ContainerConfig) {
		config.Mounts = []*runtimeapi.Mount{{ContainerPath: "/volume", HostPath: volume, UidMappings: mapping, GidMappings: mapping}}
	})
	if got := strings.Fields(c.mustExec("/tool", "read", "/proc/self/uid_map")); strings.Join(got, " ") != "0 200000 65536" {
		t.Errorf("uid map %q", got)
	}
	// The image's files are root's, and so is what root writes: to its own layer, to
	// /dev/shm, and to a volume, where the host's root owns it.
	c.mustExec("/tool", "write", "/etc/passwd", "changed\n")
	c.mustExec("/tool", "write", "/dev/shm/file", "x")
	c.mustExec("/tool", "write", "/volume/file", "x")
	assertOwner(t, filepath.Join(p.n.cfg.Root, "writable", c.id, "upper", "etc", "passwd"), firstOwnID)
	assertOwner(t, filepath.Join(volume, "file"), 0)
	if got := c.mustExec("/tool", "id"); !strings.HasPrefix(got, "0 0 ") {
		t.Errorf("user %q", got)
	}
	if resp, err := c.exec(10, "/tool", "write", "/proc/sys/kernel/hostname", "other"); err != nil || resp.GetExitCode() == 0 {
		t.Errorf("a read-only sysctl was written: %v %v", resp, err)
	}
	status := c.status()
	if status.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("state %v", status)
	}
}

func sandboxMapping(p *pod) []*runtimeapi.IDMapping {
	return p.config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions().GetUids()
}

func assertOwner(t *testing.T, path string, uid uint32) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Sys().(*syscall.Stat_t).Uid; got != uid {
		t.Errorf("%s belongs to %d, want %d", path, got, uid)
	}
}

func TestMappingsThatMapNoRootOrTooMuchAreRefused(t *testing.T) {
	n := newNode(t)
	needUserNamespaces(t, n)
	one := func(container, host, length uint32) []*runtimeapi.IDMapping {
		return []*runtimeapi.IDMapping{{ContainerId: container, HostId: host, Length: length}}
	}
	pod := runtimeapi.NamespaceMode_POD
	for name, user := range map[string]*runtimeapi.UserNamespace{
		"none":         {Mode: pod},
		"two":          {Mode: pod, Uids: append(one(0, 1000, 10), one(10, 5000, 10)...), Gids: one(0, 1000, 10)},
		"no root":      {Mode: pod, Uids: one(1, 1000, 10), Gids: one(0, 1000, 10)},
		"overflow":     {Mode: pod, Uids: one(0, 1<<32-1, 10), Gids: one(0, 1000, 10)},
		"container":    {Mode: runtimeapi.NamespaceMode_CONTAINER},
		"host, mapped": {Mode: runtimeapi.NamespaceMode_NODE, Uids: one(0, 1000, 10), Gids: one(0, 1000, 10)},
	} {
		config := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "bad", Namespace: "default", Uid: "bad"}}
		config.Linux = &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{UsernsOptions: user}}}
		if _, err := n.RunPodSandbox(context.Background(), &runtimeapi.RunPodSandboxRequest{Config: config}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
