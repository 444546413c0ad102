package conformance

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var kubectlClient = map[string]func(*testing.T){
	"Kubectl api-versions should check if v1 is in available api versions": func(t *testing.T) {
		versions := strings.Fields(cluster.MustKubectl(t, "api-versions"))
		for _, version := range versions {
			if version == "v1" {
				return
			}
		}
		t.Errorf("v1 is not among %v", versions)
	},
	"Kubectl cluster-info should check if Kubernetes control plane services is included in cluster-info": func(t *testing.T) {
		contains(t, cluster.MustKubectl(t, "cluster-info"), "Kubernetes control plane", "is running at", cluster.Config.Host)
	},
	"Kubectl version should check is all data is printed": func(t *testing.T) {
		out := cluster.MustKubectl(t, "version")
		for _, want := range []string{`Client Version: v\d`, `Server Version: v\d`} {
			if !regexp.MustCompile(want).MatchString(out) {
				t.Errorf("%q does not match %s", out, want)
			}
		}
	},
	"Kubectl diff should check if kubectl diff finds a difference for Deployments": kubectlDiff,
	"Kubectl run pod should create a pod from an image when restart is Never": func(t *testing.T) {
		namespace := newNamespace(t)
		cluster.MustKubectl(t, "-n", namespace, "run", "never", "--restart=Never", "--image="+image, "--pod-running-timeout=2m0s")
		made := got(client.CoreV1().Pods(namespace).Get(t.Context(), "never", metav1.GetOptions{}))(t)
		if made.Spec.Containers[0].Image != image || made.Spec.RestartPolicy != corev1.RestartPolicyNever {
			t.Errorf("the pod runs %s and restarts %s", made.Spec.Containers[0].Image, made.Spec.RestartPolicy)
		}
	},
	"Proxy server should support proxy with --port 0": proxyOnPort,
	"Proxy server should support --unix-socket=/path": proxyOnSocket,
}

func kubectlDiff(t *testing.T) {
	namespace := newNamespace(t)
	manifest := func(image string) string {
		made := deployment("httpd", 1)
		made.TypeMeta = kind("apps", "v1", "Deployment")
		made.Spec.Template.Spec.Containers[0].Image = image
		out, err := json.Marshal(made)
		must(t, err)
		return string(out)
	}
	_, err := cluster.KubectlInput(manifest(image), "-n", namespace, "create", "-f", "-")
	must(t, err)
	out, err := cluster.KubectlInput(manifest("localhost/other:2"), "-n", namespace, "diff", "-f", "-")
	if err == nil {
		t.Error("diff ends with 0 though there is a difference")
	}
	for _, line := range []string{`(?m)^-\s*(- )?image: ` + regexp.QuoteMeta(image), `(?m)^\+\s*(- )?image: localhost/other:2`} {
		if !regexp.MustCompile(line).MatchString(out) {
			t.Errorf("no line %s in\n%s", line, out)
		}
	}
}

// startProxy runs kubectl proxy and returns the first line that it prints.
func startProxy(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, filepath.Join(cluster.Bin, "kubectl"), append([]string{"--kubeconfig=" + cluster.Kubeconfig(), "proxy"}, args...)...)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { cancel(); _ = cmd.Wait() })
	return got(bufio.NewReader(out).ReadString('\n'))(t)
}

func assertServesAPI(t *testing.T, client *http.Client, url string) {
	t.Helper()
	response := got(client.Get(url))(t)
	defer func() { _ = response.Body.Close() }()
	contains(t, string(got(io.ReadAll(response.Body))(t)), "APIVersions")
}

func proxyOnPort(t *testing.T) {
	line := startProxy(t, "-p", "0", "--disable-filter")
	address := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(line)
	if address == "" {
		t.Fatalf("kubectl proxy says %q", line)
	}
	assertServesAPI(t, http.DefaultClient, "http://"+address+"/api/")
}

func proxyOnSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "socket")
	startProxy(t, "--unix-socket="+socket)
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	assertServesAPI(t, client, "http://localhost/api/")
}
