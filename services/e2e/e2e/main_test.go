// Package e2e drives a two-node cluster from outside, with kubectl and client-go.
package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/internal/testenv"
)

// image is what pods of the tests run; it has a shell, tar and a web server.
const image = "localhost/sampan/demo:1"

var cluster *testenv.Cluster

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	cluster, err = testenv.Start(2)
	if errors.Is(err, testenv.ErrUnavailable) {
		fmt.Println("SKIP:", err)
		return 0
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	code := m.Run()
	if code != 0 {
		fmt.Println(cluster.Logs(40))
	}
	if err := cluster.Purge(); err != nil {
		fmt.Println(err)
		return 1
	}
	if left := leftovers(); left != "" {
		fmt.Println("left behind after down:\n" + left)
		return 1
	}
	return code
}

// leftovers names what a cluster must not leave behind.
func leftovers() string {
	script := `ip -o link show | grep -E 'sampan'; ip netns list | grep sampan-node; grep -E '` + cluster.Dir + `|/run/sampan/' /proc/self/mountinfo; ` +
		`iptables-save 2>/dev/null | grep -E 'SAMPAN-(NODES|FORWARD)'; ls -d /sys/fs/cgroup/*/sampan /sys/fs/cgroup/sampan 2>/dev/null; true`
	out, _ := exec.Command("sh", "-c", script).CombinedOutput()
	left := string(out)
	commands, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range commands {
		if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), cluster.Dir) {
			left += strings.ReplaceAll(string(text), "\x00", " ") + "\n"
		}
	}
	return left
}

// newNamespace makes a namespace of the test's own and deletes it at its end.
func newNamespace(t *testing.T) string {
	t.Helper()
	namespace, err := cluster.Client.CoreV1().Namespaces().Create(t.Context(), newNamespaceObject(), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := cluster.Kubectl("-n", namespace.Name, "get", "all,events", "-o", "wide")
			t.Log(out)
			out, _ = cluster.Kubectl("-n", namespace.Name, "describe", "pods")
			t.Log(out)
		}
		if _, err := cluster.Kubectl("delete", "namespace", namespace.Name, "--wait=false"); err != nil {
			t.Error(err)
		}
	})
	return namespace.Name
}

// buildImage makes an image of one static program and offers it to all nodes.
func buildImage(t *testing.T, tag, program string) {
	t.Helper()
	if err := cluster.BuildImage(tag, program); err != nil {
		t.Fatal(err)
	}
}
