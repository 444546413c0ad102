package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// helm runs Helm on the cluster.
func helm(t *testing.T, program, namespace string, args ...string) string {
	t.Helper()
	home := t.TempDir()
	cmd := exec.Command(program, append(args, "--namespace="+namespace, "--kubeconfig="+cluster.Kubeconfig())...)
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestChartLivesItsLife installs a chart with hooks, upgrades it, rolls it back,
// runs its test and uninstalls it.
func TestChartLivesItsLife(t *testing.T) {
	for _, version := range []string{"helm", "helm3"} {
		t.Run(version, func(t *testing.T) {
			program := filepath.Join(cluster.Bin, version)
			if _, err := os.Stat(program); err != nil {
				t.Skipf("%s is not built (make helm does)", version)
			}
			chartLife(t, program)
		})
	}
}

func chartLife(t *testing.T, program string) {
	t.Helper()
	namespace := newNamespace(t)
	greeting := func() string {
		t.Helper()
		return cluster.MustKubectl(t, "-n", namespace, "get", "configmap", "web-greeting", "-o", "jsonpath={.data.greeting}")
	}
	helm(t, program, namespace, "install", "web", "testdata/chart", "--wait", "--timeout=60s")
	if said := cluster.MustKubectl(t, "-n", namespace, "logs", "web-before"); said != "preparing hello\n" {
		t.Errorf("the hook says %q", said)
	}
	helm(t, program, namespace, "test", "web", "--timeout=60s")
	helm(t, program, namespace, "upgrade", "web", "testdata/chart", "--set=replicas=2,greeting=ahoy", "--wait", "--timeout=60s")
	if ready := cluster.MustKubectl(t, "-n", namespace, "get", "deployment", "web", "-o", "jsonpath={.status.readyReplicas}"); ready != "2" || greeting() != "ahoy" {
		t.Errorf("after the upgrade %s replicas are ready and the greeting is %q", ready, greeting())
	}
	helm(t, program, namespace, "rollback", "web", "1", "--wait", "--timeout=60s")
	if greeting() != "hello" {
		t.Errorf("after the rollback the greeting is %q", greeting())
	}
	history := helm(t, program, namespace, "history", "web")
	for _, part := range []string{"superseded", "Rollback to 1", "deployed"} {
		if !strings.Contains(history, part) {
			t.Errorf("the history lacks %q:\n%s", part, history)
		}
	}
	helm(t, program, namespace, "uninstall", "web", "--wait", "--timeout=60s")
	if left := cluster.MustKubectl(t, "-n", namespace, "get", "deployments,services,configmaps", "-o", "name"); strings.TrimSpace(left) != "configmap/kube-root-ca.crt" {
		t.Errorf("left behind: %s", left)
	}
}
