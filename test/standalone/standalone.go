// Package standalone runs the built API server, and the controller manager beside
// it, for tests that use them as an outsider does. They need no root.
package standalone

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Cluster is a control plane without nodes.
type Cluster struct {
	Kubeconfig string
	Config     *rest.Config
	Client     kubernetes.Interface

	bin, dir string
}

// Start runs an API server until the test ends, and skips the test where none was
// built.
func Start(t *testing.T) *Cluster {
	t.Helper()
	bin := os.Getenv("SAMPAN_BIN")
	if bin == "" {
		t.Skip("SAMPAN_BIN does not name the folder of the built programs (make test does)")
	}
	c := &Cluster{bin: bin, dir: t.TempDir()}
	c.Kubeconfig = filepath.Join(c.dir, "certs", "admin.kubeconfig")
	c.run(t, "apiserver", "--data-dir="+filepath.Join(c.dir, "data"), "--cert-dir="+filepath.Join(c.dir, "certs"),
		"--bind-address=127.0.0.1", "--secure-port="+freePort(t), "--nats-listen-address=none", "--unsafe-no-fsync")
	Eventually(t, "the API server is ready", func(ctx context.Context) bool {
		if c.Config == nil {
			config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
			if err != nil {
				return false
			}
			config.QPS = -1
			if c.Client, err = kubernetes.NewForConfig(config); err != nil {
				return false
			}
			c.Config = config
		}
		body, err := c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err == nil && string(body) == "ok"
	})
	return c
}

// RunControllers runs the controller manager until the test ends.
func (c *Cluster) RunControllers(t *testing.T) {
	t.Helper()
	c.run(t, "controller-manager", "--kubeconfig="+c.Kubeconfig, "--bind-address=127.0.0.1", "--secure-port="+freePort(t), "--leader-elect=false")
}

// Kubectl is the path of a kubectl; the test is skipped where there is none.
func (c *Cluster) Kubectl(t *testing.T) string {
	t.Helper()
	path := filepath.Join(c.bin, "kubectl")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	path, err := exec.LookPath("kubectl")
	if err != nil {
		t.Skip("there is no kubectl")
	}
	return path
}

// run runs a program until the test ends.
func (c *Cluster) run(t *testing.T, name string, args ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(c.dir, name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(filepath.Join(c.bin, name), args...)
	command.Stdout, command.Stderr = log, log
	// A test that is killed takes its programs with it.
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		_ = command.Wait()
		_ = log.Close()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("the log of %s ends with: %s", name, text[max(0, len(text)-2000):])
		}
	})
}

func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// Eventually waits until a condition holds, for half a minute.
func Eventually(t *testing.T, what string, condition func(ctx context.Context) bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(context.Background(), 10*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		return condition(ctx), nil
	})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}
