// Package envtest has the programs of a KUBEBUILDER_ASSETS folder, and tests
// that start them as controller-runtime's envtest does.
package envtest

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// assets builds the programs into a folder beside the API server of SAMPAN_BIN.
func assets(t *testing.T) string {
	t.Helper()
	bin := os.Getenv("SAMPAN_BIN")
	if bin == "" {
		bin = "../../bin"
	}
	server, err := filepath.Abs(filepath.Join(bin, "apiserver"))
	if err == nil {
		_, err = os.Stat(server)
	}
	if err != nil {
		t.Skipf("the API server is not built: %v", err)
	}
	dir := t.TempDir()
	for _, name := range []string{"kube-apiserver", "etcd"} {
		if out, err := exec.Command("go", "build", "-o", filepath.Join(dir, name), "./"+name).CombinedOutput(); err != nil {
			t.Fatalf("building %s: %v\n%s", name, err, out)
		}
	}
	if err := os.Symlink(server, filepath.Join(dir, "sampan-apiserver")); err != nil {
		t.Fatal(err)
	}
	return dir
}

func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return fmt.Sprint(listener.Addr().(*net.TCPAddr).Port)
}

func client() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
}

// start runs a program until the test ends and returns how long it took until
// url answered 200, and how much of a processor it had until then.
func start(t *testing.T, url, path string, args ...string) (took, processor time.Duration) {
	t.Helper()
	var output strings.Builder
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s ended with %v:\n%s", filepath.Base(path), err, output.String())
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		if code, _ := get(ctx, url); code == http.StatusOK {
			return time.Since(began), processorTime(t, cmd.Process.Pid)
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s is not ready:\n%s", filepath.Base(path), output.String())
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// processorTime is what a process has used, which /proc tells in hundredths of a
// second.
func processorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(data), ") ") // behind the name
	fields := strings.Fields(after)
	var user, system int64
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		t.Fatal(err)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}

func get(ctx context.Context, url string) (code int, body string) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err.Error()
	}
	answer, err := client().Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = answer.Body.Close() }()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, string(data)
}

func startServer(t *testing.T, dir string) (took, processor time.Duration) {
	t.Helper()
	certs, port := t.TempDir(), freePort(t)
	return start(t, "https://127.0.0.1:"+port+"/healthz", filepath.Join(dir, "kube-apiserver"),
		"--allow-privileged=true", "--authorization-mode=RBAC", "--bind-address=127.0.0.1", "--cert-dir="+certs,
		"--disable-admission-plugins=ServiceAccount", "--etcd-servers=http://127.0.0.1:2379", "--secure-port="+port,
		"--service-account-issuer=https://127.0.0.1:"+port+"/", "--service-cluster-ip-range=10.0.0.0/24")
}

func TestAssetsAnswerWhatEnvtestAsks(t *testing.T) {
	dir := assets(t)
	for _, name := range []string{"kube-apiserver", "etcd"} {
		out, err := exec.Command(filepath.Join(dir, name), "--help").CombinedOutput()
		if err != nil || strings.Contains(string(out), "--insecure-port") {
			t.Errorf("%s --help: %v\n%s", name, err, out)
		}
	}
	url := "http://127.0.0.1:" + freePort(t)
	start(t, url+"/health", filepath.Join(dir, "etcd"), "--data-dir="+t.TempDir(), "--listen-client-urls="+url, "--advertise-client-urls="+url,
		"--listen-peer-urls=http://127.0.0.1:0", "--unsafe-no-fsync=true")
	code, body := get(t.Context(), url+"/health")
	var health struct{ Health string }
	if err := json.Unmarshal([]byte(body), &health); err != nil || code != http.StatusOK || health.Health != "true" {
		t.Errorf("health is %d %s", code, body)
	}
	if code, body := get(t.Context(), url+"/v3/kv/range"); code != http.StatusNotImplemented || !strings.Contains(body, "stores nothing") {
		t.Errorf("a request for data is answered with %d %s", code, body)
	}
}

// TestServerIsReady tells how long a server takes from exec to an answer of /healthz.
func TestServerIsReady(t *testing.T) {
	took, processor := startServer(t, assets(t))
	t.Logf("ready after %s, %s of them on a processor", took.Round(time.Millisecond), processor)
}
