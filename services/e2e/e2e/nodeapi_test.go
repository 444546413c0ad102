package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/internal/testenv"
)

func TestLogOptions(t *testing.T) {
	namespace := newNamespace(t)
	mustCreatePod(t, namespace, newPod("talks", "for i in 1 2 3 4 5; do echo out $i; done; echo bad >&2; sleep 2; echo late; exec sleep 3600"))
	awaitReady(t, namespace, "talks")
	logs := func(args ...string) string {
		return cluster.MustKubectl(t, append([]string{"-n", namespace, "logs", "talks"}, args...)...)
	}
	testenv.Eventually(t, 10*time.Second, "the last line", func(context.Context) error {
		if out := logs(); !strings.HasSuffix(out, "late\n") {
			return fmt.Errorf("log is %q", out)
		}
		return nil
	})
	for _, c := range []struct{ args, want string }{
		{"--tail=1", "late\n"}, {"--limit-bytes=5", "out 1"},
	} {
		if got := logs(c.args); got != c.want {
			t.Errorf("%s: %q, want %q", c.args, got, c.want)
		}
	}
	stamp, _, _ := strings.Cut(logs("--timestamps", "--tail=1"), " ")
	if _, err := time.Parse(time.RFC3339Nano, stamp); err != nil {
		t.Errorf("timestamp %q: %v", stamp, err)
	}
	if got := logs("--since-time=" + stamp); got != "late\n" {
		t.Errorf("since the last line: %q", got)
	}
	out := cluster.MustKubectl(t, "get", "--raw", "/api/v1/namespaces/"+namespace+"/pods/talks/log?stream=Stderr")
	if out != "bad\n" {
		t.Errorf("standard error is %q", out)
	}
	if _, err := cluster.Kubectl("-n", namespace, "logs", "talks", "--previous"); err == nil || !strings.Contains(err.Error(), `previous terminated container "main" in pod "talks" not found`) {
		t.Errorf("of a container that never ended: %v", err)
	}

	mustCreatePod(t, namespace, newPod("dies", "echo life; exit 1"))
	awaitPod(t, namespace, "dies", "is restarted", func(p *corev1.Pod) bool { return first(p).RestartCount >= 1 })
	if out := cluster.MustKubectl(t, "-n", namespace, "logs", "dies", "--previous"); out != "life\n" {
		t.Errorf("the previous log is %q", out)
	}
}

func TestNodeAPIKnowsWhoMayAsk(t *testing.T) {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	ask := func(path, token string) int {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://10.89.0.11:10250"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return response.StatusCode
	}
	namespace := newNamespace(t)
	cluster.MustKubectl(t, "-n", namespace, "create", "serviceaccount", "watcher")
	cluster.MustKubectl(t, "create", "clusterrole", namespace, "--verb=get", "--resource=nodes/metrics,nodes/stats")
	cluster.MustKubectl(t, "create", "clusterrolebinding", namespace, "--clusterrole="+namespace, "--serviceaccount="+namespace+":watcher")
	t.Cleanup(func() { _, _ = cluster.Kubectl("delete", "clusterrole,clusterrolebinding", namespace) })
	token := strings.TrimSpace(cluster.MustKubectl(t, "-n", namespace, "create", "token", "watcher"))
	testenv.Eventually(t, 15*time.Second, "the right to read metrics", func(context.Context) error {
		if code := ask("/metrics", token); code != http.StatusOK {
			return fmt.Errorf("the answer is %d", code)
		}
		return nil
	})
	for path, want := range map[string]int{
		"/stats/summary": http.StatusOK, "/metrics/cadvisor": http.StatusOK, "/pods": http.StatusForbidden, "/configz": http.StatusForbidden,
		"/run/kube-system/x/y?cmd=id": http.StatusForbidden, "/containerLogs/a/b/c": http.StatusForbidden, "/checkpoint/a/b/c": http.StatusForbidden,
	} {
		if code := ask(path, token); code != want {
			t.Errorf("%s with a right to metrics and stats: %d, want %d", path, code, want)
		}
		if code := ask(path, ""); code != http.StatusUnauthorized {
			t.Errorf("%s without a token: %d", path, code)
		}
	}
	if code := ask("/metrics", "nonsense"); code != http.StatusUnauthorized {
		t.Errorf("with nonsense for a token: %d", code)
	}
}

func TestCheckpointIsRefusedWithAReason(t *testing.T) {
	namespace := newNamespace(t)
	mustCreatePod(t, namespace, newPod("box", "exec sleep 3600"))
	pod := awaitReady(t, namespace, "box")
	pair, err := adminPair()
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{pair}}, DisableKeepAlives: true}}
	response, err := client.Post(fmt.Sprintf("https://%s:10250/checkpoint/%s/box/main", pod.Status.HostIP, namespace), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if response.StatusCode != http.StatusNotImplemented || !strings.Contains(string(body), "checkpointing containers is not supported by this node") {
		t.Errorf("the answer is %s: %s", response.Status, body)
	}
	if out := cluster.MustKubectl(t, "get", "--raw", "/api/v1/nodes/"+pod.Spec.NodeName+"/proxy/configz"); !strings.Contains(out, `"kubeletconfig":{"kind":"KubeletConfiguration"`) {
		t.Error(errors.New(out))
	}
}

// adminPair is the operator's certificate.
func adminPair() (tls.Certificate, error) {
	if len(cluster.Config.CertData) > 0 {
		return tls.X509KeyPair(cluster.Config.CertData, cluster.Config.KeyData)
	}
	return tls.LoadX509KeyPair(cluster.Config.CertFile, cluster.Config.KeyFile)
}
