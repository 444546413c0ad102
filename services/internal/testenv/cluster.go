// Package testenv runs the built binaries for black-box tests.
package testenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// T is the part of testing.TB that helpers use.
type T interface {
	Helper()
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
	Context() context.Context
}

// Cluster is a local cluster under test: the programs in Bin with their state
// in Dir.
type Cluster struct {
	Bin    string
	Dir    string
	Config *rest.Config
	Client kubernetes.Interface
}

// ErrUnavailable says that this machine cannot run a cluster; tests are skipped
// with it.
var ErrUnavailable = errors.New("a cluster under test needs root and the programs of make build")

// Bin is the folder of the built programs: SAMPAN_BIN, or bin at the top of the
// repository.
func Bin() (string, error) {
	bin := os.Getenv("SAMPAN_BIN")
	if bin == "" {
		root, err := repositoryRoot()
		if err != nil {
			return "", err
		}
		bin = filepath.Join(root, "bin")
	}
	if _, err := os.Stat(filepath.Join(bin, "sampan")); err != nil || os.Geteuid() != 0 {
		return "", ErrUnavailable
	}
	return bin, nil
}

// repositoryRoot is the top of the repository that the test runs in.
func repositoryRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the repository: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%w: no go.work above the test", ErrUnavailable)
		}
		dir = filepath.Dir(dir)
	}
}

// Start brings up a new cluster with that many nodes. The caller ends it with
// Purge.
func Start(nodes int) (*Cluster, error) {
	bin, err := Bin()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "sampan-test-")
	if err != nil {
		return nil, fmt.Errorf("making folder: %w", err)
	}
	c := &Cluster{Bin: bin, Dir: filepath.Join(dir, "cluster")}
	if out, err := c.Sampan("up", fmt.Sprintf("--nodes=%d", nodes)); err != nil {
		return nil, errors.Join(fmt.Errorf("starting cluster: %w\n%s", err, out), c.Purge())
	}
	if err := c.Connect(); err != nil {
		return nil, errors.Join(err, c.Purge())
	}
	return c, nil
}

// Connect makes the cluster's clients.
func (c *Cluster) Connect() error {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return fmt.Errorf("reading kubeconfig: %w", err)
	}
	config.QPS = -1
	c.Config = config
	c.Client, err = kubernetes.NewForConfig(config)
	return err
}

// Kubeconfig is the path of the operator's kubeconfig.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.Dir, "kubeconfig") }

// Sampan runs the sampan command on the cluster and returns all of its output.
func (c *Cluster) Sampan(command string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(c.Bin, "sampan"), append([]string{command, "--dir=" + c.Dir}, args...)...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Purge ends the cluster and deletes its state.
func (c *Cluster) Purge() error {
	out, err := c.Sampan("down", "--purge")
	if err != nil {
		return fmt.Errorf("ending cluster: %w\n%s", err, out)
	}
	return os.RemoveAll(filepath.Dir(c.Dir))
}

// Logs are the last lines of every service's log.
func (c *Cluster) Logs(lines int) string {
	files, _ := filepath.Glob(filepath.Join(c.Dir, "logs", "*.log"))
	var out strings.Builder
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		all := strings.Split(strings.TrimSpace(string(data)), "\n")
		fmt.Fprintf(&out, "--- %s\n%s\n", filepath.Base(file), strings.Join(all[max(0, len(all)-lines):], "\n"))
	}
	return out.String()
}

// Kubectl runs kubectl and returns its standard output; an error carries its
// standard error.
func (c *Cluster) Kubectl(args ...string) (string, error) {
	return c.KubectlInput("", args...)
}

// KubectlInput is Kubectl with standard input.
func (c *Cluster) KubectlInput(input string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(c.Bin, "kubectl"), append([]string{"--kubeconfig=" + c.Kubeconfig()}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(errOut.String()))
	}
	return out.String(), nil
}

// MustKubectl is Kubectl that ends the test on an error.
func (c *Cluster) MustKubectl(t T, args ...string) string {
	t.Helper()
	out, err := c.Kubectl(args...)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return out
}

// MustApply applies a manifest and ends the test on an error.
func (c *Cluster) MustApply(t T, manifest string) {
	t.Helper()
	if _, err := c.KubectlInput(manifest, "apply", "-f", "-"); err != nil {
		t.Fatalf("%v", err)
	}
}

// Eventually waits until condition returns nil, at most for timeout, and ends
// the test with its last error otherwise.
func Eventually(t T, timeout time.Duration, what string, condition func(ctx context.Context) error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, timeout, true, func(ctx context.Context) (bool, error) {
		last = condition(ctx)
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("%s: %v (waited %s)", what, last, timeout)
	}
}
