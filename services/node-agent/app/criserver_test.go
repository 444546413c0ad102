package app_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/internal/testenv"
)

// startRuntime runs the runtime as a program of its own, and returns it and its socket.
func startRuntime(s *site, flags ...string) (*exec.Cmd, string) {
	s.t.Helper()
	bin, err := testenv.Bin()
	if err != nil {
		s.t.Skip(err)
	}
	program := filepath.Join(bin, "criserver")
	if _, err := os.Stat(program); err != nil {
		s.t.Skip("needs bin/criserver: run make build")
	}
	log, err := os.OpenFile(filepath.Join(s.dir, "runtime.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	socket := filepath.Join(s.run, "own.sock")
	cmd := exec.Command(program, append([]string{
		"--root-dir=" + s.root, "--run-dir=" + s.run, "--socket=" + socket, "--cgroup-root=" + s.cgroup, "--pod-cidr=10.99.0.0/24",
	}, flags...)...)
	cmd.Stdout, cmd.Stderr = log, log
	s.inside(cmd.Start)
	s.others = append(s.others, cmd)
	s.eventually("the runtime's socket", func() error {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
	s.eventually("the image to be imported", func() error {
		data, err := os.ReadFile(filepath.Join(s.dir, "runtime.log"))
		if err == nil && !strings.Contains(string(data), toolImage) {
			err = fmt.Errorf("the runtime has not told of it: %s", data)
		}
		return err
	})
	return cmd, socket
}

func TestPodsOfAnotherRuntimeOutliveAgentAndRuntime(t *testing.T) {
	s := newIdleSite(t, "")
	handler := filepath.Join(s.dir, "other-runc")
	bin, _ := testenv.Bin()
	if err := os.Symlink(filepath.Join(bin, "runc"), handler); err != nil {
		t.Fatal(err)
	}
	flag := "--runtime-handler=other=" + handler
	server, socket := startRuntime(s, flag)
	s.flags = append(s.flags, "--container-runtime-endpoint=unix://"+socket)
	s.startAgent()
	s.waitNode()

	_, err := s.client.NodeV1().RuntimeClasses().Create(t.Context(), &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Handler: "other"}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.client.NodeV1().RuntimeClasses().Create(t.Context(), &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "absent"}, Handler: "absent"}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod := func(name, class string) {
		s.apply(fmt.Sprintf("metadata: {name: %s}\nspec:\n  terminationGracePeriodSeconds: 0\n  containers: [{name: main, image: 'registry.test/tool:v1', args: [tick]}]\n%s", name, class))
	}
	pod("plain", "")
	pod("classed", "  runtimeClassName: other\n")
	pod("refused", "  runtimeClassName: absent\n")
	plain, classed := s.until("plain", "to run", running), s.until("classed", "to run", running)
	s.mustEvent("refused", `FailedCreatePodSandBox: Failed to create pod sandbox: invalid request: no runtime handler "absent" is configured`)
	if states, err := filepath.Glob(filepath.Join(s.run, "handlers", "other", "*")); err != nil || len(states) != 1 {
		t.Errorf("containers of the handler: %v, %v", states, err)
	}

	if err := server.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = server.Wait()
	s.kill()
	startRuntime(s, flag)
	s.startAgent()
	pod("later", "")
	s.until("later", "to run", running)
	for _, before := range []*corev1.Pod{plain, classed} {
		now, err := s.pod(before.Name)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := now.Status.ContainerStatuses[0], before.Status.ContainerStatuses[0]; got.ContainerID != want.ContainerID || got.RestartCount != 0 || got.State.Running == nil {
			t.Errorf("%s: %+v, before %+v", before.Name, got, want)
		}
	}
	node, err := s.client.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var handlers []string
	for _, h := range node.Status.RuntimeHandlers {
		handlers = append(handlers, h.Name)
	}
	if strings.Join(handlers, ",") != ",other,runc" || !strings.HasPrefix(node.Status.NodeInfo.ContainerRuntimeVersion, "sampan://") {
		t.Errorf("handlers %q, runtime %s", handlers, node.Status.NodeInfo.ContainerRuntimeVersion)
	}
	s.remove("refused")
	importImages(s)
}

// importImages brings images to the node with the operator's command.
func importImages(s *site) {
	bin, _ := testenv.Bin()
	run := func(archive string) (string, error) {
		out, err := exec.Command(filepath.Join(bin, "sampan"), "image", "import", "--root-dir="+s.root, archive).CombinedOutput()
		return string(out), err
	}
	tag, err := name.NewTag("offline.test/team/app:v3")
	if err != nil {
		s.t.Fatal(err)
	}
	archive := filepath.Join(s.dir, "app.tar")
	if err := tarball.WriteToFile(archive, tag, newToolImage(s.t)); err != nil {
		s.t.Fatal(err)
	}
	if out, err := run(archive); err != nil || !strings.Contains(out, "offline.test/team/app:v3") {
		s.t.Errorf("importing: %v: %s", err, out)
	}
	writeFile(s.t, filepath.Join(s.dir, "broken.tar"), "no archive", 0o600)
	if out, err := run(filepath.Join(s.dir, "broken.tar")); err == nil || !strings.Contains(out, "importing") {
		s.t.Errorf("importing what is no archive: %v: %s", err, out)
	}
	s.apply("metadata: {name: offline}\nspec:\n  terminationGracePeriodSeconds: 0\n  containers: [{name: main, image: 'offline.test/team/app:v3', imagePullPolicy: Never}]\n")
	s.until("offline", "to run", running)
}
