package runtime_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/monitor"
)

// pod is a sandbox of a test.
type pod struct {
	n      *node
	id     string
	config *runtimeapi.PodSandboxConfig
}

// runPod starts a sandbox as the kubelet does for a plain pod; edit may change it.
func (n *node) runPod(name string, edit ...func(*runtimeapi.PodSandboxConfig)) *pod {
	n.t.Helper()
	config := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: "uid-" + name},
		Hostname:     name,
		LogDirectory: filepath.Join(filepath.Dir(n.cfg.Root), "logs", name),
		Labels:       map[string]string{"app": name},
		DnsConfig:    &runtimeapi.DNSConfig{Servers: []string{"10.96.0.10"}, Searches: []string{"default.svc.cluster.local"}, Options: []string{"ndots:5"}},
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
		}},
	}
	for _, fn := range edit {
		fn(config)
	}
	resp, err := n.RunPodSandbox(n.t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config})
	if err != nil {
		n.t.Fatal(err)
	}
	return &pod{n: n, id: resp.GetPodSandboxId(), config: config}
}

// ctr is a container of a test.
type ctr struct {
	n   *node
	id  string
	log string
}

// create makes a container that runs the tool with these arguments.
func (p *pod) create(args []string, edit ...func(*runtimeapi.ContainerConfig)) *ctr {
	p.n.t.Helper()
	c, err := p.tryCreate(args, edit...)
	if err != nil {
		p.n.t.Fatal(err)
	}
	return c
}

func (p *pod) tryCreate(args []string, edit ...func(*runtimeapi.ContainerConfig)) (*ctr, error) {
	config := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"},
		Image:    &runtimeapi.ImageSpec{Image: image},
		Args:     args,
		LogPath:  "main/0.log",
		Labels:   map[string]string{"container": "main"},
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: p.config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetPid()},
			Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
		}},
	}
	for _, fn := range edit {
		fn(config)
	}
	resp, err := p.n.CreateContainer(context.Background(), &runtimeapi.CreateContainerRequest{PodSandboxId: p.id, Config: config, SandboxConfig: p.config})
	if err != nil {
		return nil, err
	}
	return &ctr{n: p.n, id: resp.GetContainerId(), log: filepath.Join(p.config.GetLogDirectory(), config.GetLogPath())}, nil
}

// run creates and starts.
func (p *pod) run(args []string, edit ...func(*runtimeapi.ContainerConfig)) *ctr {
	p.n.t.Helper()
	c := p.create(args, edit...)
	c.start()
	return c
}

func (c *ctr) start() {
	c.n.t.Helper()
	if _, err := c.n.StartContainer(c.n.t.Context(), &runtimeapi.StartContainerRequest{ContainerId: c.id}); err != nil {
		c.n.t.Fatal(err)
	}
}

func (c *ctr) status() *runtimeapi.ContainerStatus {
	c.n.t.Helper()
	resp, err := c.n.ContainerStatus(c.n.t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: c.id})
	if err != nil {
		c.n.t.Fatal(err)
	}
	return resp.GetStatus()
}

// exited waits for the end and returns the last status.
func (c *ctr) exited() *runtimeapi.ContainerStatus {
	c.n.t.Helper()
	eventually(c.n.t, "the end of the container", func() bool { return c.status().GetState() == runtimeapi.ContainerState_CONTAINER_EXITED })
	return c.status()
}

func (c *ctr) exec(timeout int64, cmd ...string) (*runtimeapi.ExecSyncResponse, error) {
	return c.n.ExecSync(context.Background(), &runtimeapi.ExecSyncRequest{ContainerId: c.id, Cmd: cmd, Timeout: timeout})
}

func (c *ctr) mustExec(cmd ...string) string {
	c.n.t.Helper()
	resp, err := c.exec(10, cmd...)
	if err != nil {
		c.n.t.Fatal(err)
	}
	if resp.GetExitCode() != 0 {
		c.n.t.Fatalf("%v: exit code %d: %s%s", cmd, resp.GetExitCode(), resp.GetStdout(), resp.GetStderr())
	}
	return string(resp.GetStdout())
}

// logged waits until the log has the text.
func (c *ctr) logged(text string) {
	c.n.t.Helper()
	eventually(c.n.t, "log of "+text, func() bool { return strings.Contains(c.logText(), text) })
}

func (c *ctr) logText() string {
	data, err := os.ReadFile(c.log)
	if err != nil {
		return ""
	}
	return string(data)
}

func assertContains(t testing.TB, text, want string) {
	t.Helper()
	if !strings.Contains(text, want) {
		t.Errorf("%q does not contain %q", text, want)
	}
}

// initProcess reads the container's first process from a verbose status.
func initProcess(t testing.TB, resp *runtimeapi.ContainerStatusResponse) monitor.Process {
	t.Helper()
	var info struct {
		Record struct {
			Init monitor.Process `json:"init"`
		} `json:"record"`
	}
	if err := json.Unmarshal([]byte(resp.GetInfo()["info"]), &info); err != nil {
		t.Fatal(err)
	}
	return info.Record.Init
}
