package e2e

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// kubectlStream starts kubectl and returns its output as it comes.
func kubectlStream(t *testing.T, args ...string) *bufio.Reader {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	cmd := exec.CommandContext(ctx, filepath.Join(cluster.Bin, "kubectl"), append([]string{"--kubeconfig=" + cluster.Kubeconfig()}, args...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); _ = cmd.Wait() })
	return bufio.NewReader(out)
}

func mustReadLine(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	line, err := r.ReadString('\n')
	if err != nil {
		t.Fatalf("reading: %v (got %q)", err, line)
	}
	return strings.TrimSpace(line)
}

func TestLogsAreFollowed(t *testing.T) {
	namespace := newNamespace(t)
	mustCreatePod(t, namespace, newPod("talker", "echo one; until [ -e /tmp/go ]; do sleep 0.1; done; echo two; sleep 3600"))
	awaitReady(t, namespace, "talker")
	stream := kubectlStream(t, "-n", namespace, "logs", "-f", "talker")
	if line := mustReadLine(t, stream); line != "one" {
		t.Errorf("first line is %q", line)
	}
	cluster.MustKubectl(t, "-n", namespace, "exec", "talker", "--", "touch", "/tmp/go")
	if line := mustReadLine(t, stream); line != "two" {
		t.Errorf("second line is %q", line)
	}
}

func TestExecCarriesInputOutputAndExitCode(t *testing.T) {
	namespace := newNamespace(t)
	mustCreatePod(t, namespace, newPod("shell", "sleep 3600"))
	awaitReady(t, namespace, "shell")
	out, err := cluster.KubectlInput("hello\n", "-n", namespace, "exec", "-i", "shell", "--", "cat")
	if err != nil || out != "hello\n" {
		t.Errorf("cat printed %q, %v", out, err)
	}
	if _, err := cluster.Kubectl("-n", namespace, "exec", "shell", "--", "sh", "-c", "echo sorry >&2; exit 7"); err == nil || !strings.Contains(err.Error(), "exit status 7") || !strings.Contains(err.Error(), "sorry") {
		t.Errorf("error is %v", err)
	}
	// script gives kubectl a terminal, so that -t is real.
	cmd := exec.Command("script", "-qec", filepath.Join(cluster.Bin, "kubectl")+" --kubeconfig="+cluster.Kubeconfig()+" -n "+namespace+" exec -it shell -- sh -c 'test -t 0 && test -t 1 && echo terminal'", "/dev/null")
	cmd.Stdin = strings.NewReader("")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "terminal") {
		t.Errorf("exec -it printed %q, %v", out, err)
	}
}

func TestCopyBothWays(t *testing.T) {
	namespace := newNamespace(t)
	mustCreatePod(t, namespace, newPod("box", "sleep 3600"))
	awaitReady(t, namespace, "box")
	dir := t.TempDir()
	content := strings.Repeat("0123456789abcdef", 1<<16)
	if err := os.WriteFile(filepath.Join(dir, "in"), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	cluster.MustKubectl(t, "cp", filepath.Join(dir, "in"), namespace+"/box:/tmp/file")
	cluster.MustKubectl(t, "cp", namespace+"/box:/tmp/file", filepath.Join(dir, "out"))
	got, err := os.ReadFile(filepath.Join(dir, "out"))
	if err != nil || string(got) != content {
		t.Errorf("%d bytes came back of %d, %v", len(got), len(content), err)
	}
}

func TestPortForward(t *testing.T) {
	namespace := newNamespace(t)
	mustCreatePod(t, namespace, newPod("web", "exec /demo serve"))
	awaitReady(t, namespace, "web")
	line := mustReadLine(t, kubectlStream(t, "-n", namespace, "port-forward", "pod/web", ":8080"))
	port := regexp.MustCompile(`127\.0\.0\.1:(\d+)`).FindStringSubmatch(line)
	if port == nil {
		t.Fatalf("kubectl said %q", line)
	}
	for range 3 {
		answer, err := http.Get("http://127.0.0.1:" + port[1] + "/")
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if !strings.HasPrefix(string(body), "Hello from pod web") {
			t.Errorf("answer is %q", body)
		}
	}
}

func TestAttachReachesTheMainProcess(t *testing.T) {
	namespace := newNamespace(t)
	pod := newPod("echo", "")
	pod.Spec.Containers[0].Command = []string{"cat"}
	pod.Spec.Containers[0].Stdin = true
	mustCreatePod(t, namespace, pod)
	awaitReady(t, namespace, "echo")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	cmd := exec.CommandContext(ctx, filepath.Join(cluster.Bin, "kubectl"), "--kubeconfig="+cluster.Kubeconfig(), "-n", namespace, "attach", "-i", "echo")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); _ = cmd.Wait() })
	if _, err := io.WriteString(in, "hello\n"); err != nil {
		t.Fatal(err)
	}
	if line := mustReadLine(t, bufio.NewReader(out)); line != "hello" {
		t.Errorf("the process said %q", line)
	}
}
