package runtime_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func namespaces(fn func(*runtimeapi.NamespaceOption)) func(*runtimeapi.PodSandboxConfig) {
	return func(config *runtimeapi.PodSandboxConfig) {
		fn(config.GetLinux().GetSecurityContext().GetNamespaceOptions())
	}
}

func TestContainersOfAPodShareNetworkAndIPCNotPIDs(t *testing.T) {
	n := newNode(t)
	p := n.runPod("shared")
	one := p.run([]string{"listen", "127.0.0.1:9000"})
	one.logged("listening")
	two := p.run([]string{"pid"}, func(config *runtimeapi.ContainerConfig) { config.Metadata.Name, config.LogPath = "two", "two/0.log" })
	two.exited()
	assertContains(t, two.logText(), "stdout F 1\n")
	three := p.run([]string{"fetch", "http://127.0.0.1:9000/"}, func(config *runtimeapi.ContainerConfig) {
		config.Metadata.Name, config.LogPath = "three", "three/0.log"
	})
	three.exited()
	assertContains(t, three.logText(), "hello from shared")
}

func TestSharedPIDNamespaceOutlivesEachContainer(t *testing.T) {
	n := newNode(t)
	if n.cfg.Pause == "" {
		t.Skip("needs the pause program: run scripts/build-pause.sh")
	}
	p := n.runPod("pids", namespaces(func(o *runtimeapi.NamespaceOption) { o.Pid = runtimeapi.NamespaceMode_POD }))
	one := p.run([]string{"fork-forever"})
	one.logged("forked")
	two := p.run([]string{"pid"}, func(config *runtimeapi.ContainerConfig) { config.Metadata.Name, config.LogPath = "two", "two/0.log" })
	two.exited()
	if strings.Contains(two.logText(), "stdout F 1\n") {
		t.Errorf("the second container is process 1: %s", two.logText())
	}
	if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: one.id}); err != nil {
		t.Fatal(err)
	}
	n.stop()
	n.start()
	three := p.run([]string{"processes"}, func(config *runtimeapi.ContainerConfig) {
		config.Metadata.Name, config.LogPath = "three", "three/0.log"
	})
	three.exited()
	assertContains(t, three.logText(), "/pause")
	if strings.Contains(three.logText(), "forever") {
		t.Errorf("the child of a stopped container lives: %s", three.logText())
	}
}

// Upstream's sandboxes end with their first process, and so do those that have one here.
func TestDeathOfTheFirstProcessEndsItsSandbox(t *testing.T) {
	n := newNode(t)
	if n.cfg.Pause == "" {
		t.Skip("needs the pause program: run scripts/build-pause.sh")
	}
	share := namespaces(func(o *runtimeapi.NamespaceOption) { o.Pid = runtimeapi.NamespaceMode_POD })
	killPause := func(p *pod) {
		t.Helper()
		resp, err := n.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.id, Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		var record struct{ Pause struct{ PID int } }
		if err := json.Unmarshal([]byte(resp.GetInfo()["info"]), &record); err != nil || record.Pause.PID == 0 {
			t.Fatalf("%v %v", resp.GetInfo(), err)
		}
		if err := unix.Kill(record.Pause.PID, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	state := func(p *pod) runtimeapi.PodSandboxState {
		resp, err := n.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.id})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetStatus().GetState()
	}
	watched, unwatched, alive := n.runPod("watched", share), n.runPod("unwatched", share), n.runPod("alive", share)
	c := watched.run([]string{"forever"})
	unwatched.run([]string{"forever"})
	killPause(watched)
	eventually(t, "the sandbox not to be ready", func() bool { return state(watched) == runtimeapi.PodSandboxState_SANDBOX_NOTREADY })
	if code := c.exited().GetExitCode(); code != 137 {
		t.Errorf("the container ended with %d", code)
	}
	_, err := n.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: watched.id, Config: &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "late"}, Image: &runtimeapi.ImageSpec{Image: image},
	}})
	if err == nil {
		t.Error("a container was made in a sandbox that has ended")
	}
	n.stop()
	killPause(unwatched)
	n.start()
	for p, want := range map[*pod]runtimeapi.PodSandboxState{
		watched: runtimeapi.PodSandboxState_SANDBOX_NOTREADY, unwatched: runtimeapi.PodSandboxState_SANDBOX_NOTREADY, alive: runtimeapi.PodSandboxState_SANDBOX_READY,
	} {
		if got := state(p); got != want {
			t.Errorf("after a restart sandbox %s is %s", p.id, got)
		}
	}
	killPause(alive)
	eventually(t, "a sandbox that was found to end too", func() bool { return state(alive) == runtimeapi.PodSandboxState_SANDBOX_NOTREADY })
}

func TestHostNetworkSharesTheNodes(t *testing.T) {
	n := newNode(t)
	p := n.runPod("host", namespaces(func(o *runtimeapi.NamespaceOption) { o.Network = runtimeapi.NamespaceMode_NODE }))
	c := p.run([]string{"listen", "127.0.0.1:18234"})
	c.logged("listening")
	resp, err := http.Get("http://127.0.0.1:18234/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	assertContains(t, string(body), "hello from host")
}

func TestPodsReachEachOtherAndHostPortsForward(t *testing.T) {
	n := newNode(t)
	server := n.runPod("server", func(config *runtimeapi.PodSandboxConfig) {
		config.PortMappings = []*runtimeapi.PortMapping{{ContainerPort: 8080, HostPort: 18080, Protocol: runtimeapi.Protocol_TCP}}
	})
	server.run([]string{"listen", ":8080"}).logged("listening")
	status, err := n.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: server.id})
	if err != nil {
		t.Fatal(err)
	}
	address := status.GetStatus().GetNetwork().GetIp()
	client := n.runPod("client").run([]string{"fetch", fmt.Sprintf("http://%s:8080/", address)})
	client.exited()
	assertContains(t, client.logText(), "hello from server")
	resp, err := http.Get("http://10.77.0.1:18080/")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
}

func TestSysctlsOfThePodAreSetAndOthersRefused(t *testing.T) {
	n := newNode(t)
	p := n.runPod("sysctl", func(config *runtimeapi.PodSandboxConfig) {
		config.Linux.Sysctls = map[string]string{"net.ipv4.ip_unprivileged_port_start": "80", "kernel.shm_rmid_forced": "1"}
	})
	c := p.run([]string{"forever"})
	if got := c.mustExec("/tool", "read", "/proc/sys/net/ipv4/ip_unprivileged_port_start"); got != "80\n" {
		t.Errorf("sysctl %q", got)
	}
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "bad", Namespace: "default", Uid: "bad"},
		Linux:    &runtimeapi.LinuxPodSandboxConfig{Sysctls: map[string]string{"kernel.panic": "1"}},
	}
	if _, err := n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config}); err == nil {
		t.Error("a sysctl of the host was accepted")
	}
}

func TestImageServesAsAReadOnlyVolume(t *testing.T) {
	n := newNode(t)
	p := n.runPod("volume")
	c := p.run([]string{"forever"}, func(config *runtimeapi.ContainerConfig) {
		config.Mounts = []*runtimeapi.Mount{{ContainerPath: "/image", Image: &runtimeapi.ImageSpec{Image: image}, ImageSubPath: "etc", Readonly: true}}
	})
	assertContains(t, c.mustExec("/tool", "read", "/image/passwd"), "alice")
	if resp, err := c.exec(10, "/tool", "write", "/image/passwd", "x"); err != nil || resp.GetExitCode() == 0 {
		t.Errorf("the volume could be written: %v", err)
	}
	if _, err := n.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: image}}); err == nil {
		t.Error("an image in use was removed")
	}
	_, err := p.tryCreate([]string{"forever"}, func(config *runtimeapi.ContainerConfig) {
		config.Metadata.Name = "climber"
		config.Mounts = []*runtimeapi.Mount{{ContainerPath: "/image", Image: &runtimeapi.ImageSpec{Image: image}, ImageSubPath: "../../.."}}
	})
	if err == nil {
		t.Error("a sub path left the image")
	}
}

func TestFailedSandboxIsKeptInSightUntilItCanBeUndone(t *testing.T) {
	n := newNode(t)
	conf, err := filepath.Glob(filepath.Join(n.cfg.Network.ConfDir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	broken := strings.ReplaceAll(mustRead(t, conf[0]), "host-local", "no-such-plugin")
	if err := os.WriteFile(conf[0], []byte(broken), 0o600); err != nil {
		t.Fatal(err)
	}
	config := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "x", Namespace: "default", Uid: "x"}}
	_, err = n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config})
	if err == nil || !strings.Contains(err.Error(), "no-such-plugin") {
		t.Errorf("error %v", err)
	}
	// The network cannot be asked to give back what it may have given, so that the
	// sandbox stays in sight until it can.
	list, err := n.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.GetItems()) != 1 || list.GetItems()[0].GetState() != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
		t.Errorf("sandboxes %v", list.GetItems())
	}
	if err := os.WriteFile(conf[0], []byte(strings.ReplaceAll(broken, "no-such-plugin", "host-local")), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestFailedContainerLeavesNothingAndItsNameFree(t *testing.T) {
	n := newNode(t)
	p := n.runPod("failing")
	for range 2 {
		_, err := p.tryCreate([]string{"x"}, func(config *runtimeapi.ContainerConfig) { config.Command = []string{"/nowhere"} })
		if err == nil || !strings.Contains(err.Error(), "/nowhere") {
			t.Errorf("error %v", err)
		}
	}
	p.run([]string{"echo", "ok"}).exited()
}
