package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/internal/testenv"
)

const webManifest = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: NS}
spec:
  replicas: 4
  selector: {matchLabels: {app: web}}
  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  template:
    metadata: {labels: {app: web}}
    spec:
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}
      containers:
      - name: web
        image: localhost/sampan/demo:1
        command: [/demo, serve, -drain=2s]
        env: [{name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}, {name: VERSION, value: "1"}]
        ports: [{name: http, containerPort: 8080}]
        readinessProbe: {httpGet: {path: /healthz, port: http}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: NS}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: http}]
---
apiVersion: v1
kind: Service
metadata: {name: web-headless, namespace: NS}
spec:
  clusterIP: None
  selector: {app: web}
  ports: [{name: http, port: 8080}]
`

func startWeb(t *testing.T, namespace string) *corev1.Service {
	t.Helper()
	cluster.MustApply(t, strings.ReplaceAll(webManifest, "NS", namespace))
	cluster.MustKubectl(t, "-n", namespace, "rollout", "status", "deployment/web", "--timeout=60s")
	service, err := cluster.Client.CoreV1().Services(namespace).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return service
}

// fetch asks once, over a connection of its own.
func fetch(address string) (string, error) {
	client := &http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get("http://" + address + "/")
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("answer is %s", answer.Status)
	}
	return string(body), err
}

func TestServiceAnswersFromHostAndFromPodsOnBothNodes(t *testing.T) {
	namespace := newNamespace(t)
	service := startWeb(t, namespace)

	nodes := map[string]bool{}
	testenv.Eventually(t, 30*time.Second, "answers from both nodes by ClusterIP", func(context.Context) error {
		for range 8 {
			answer, err := fetch(service.Spec.ClusterIP)
			if err != nil {
				return err
			}
			for _, node := range []string{"node-1", "node-2"} {
				if strings.Contains(answer, "on "+node) {
					nodes[node] = true
				}
			}
		}
		if len(nodes) != 2 {
			return fmt.Errorf("answers came from %v", nodes)
		}
		return nil
	})
	nodePort := fmt.Sprint(service.Spec.Ports[0].NodePort)
	for _, node := range []string{"10.89.0.11", "10.89.0.12"} {
		if _, err := fetch(net.JoinHostPort(node, nodePort)); err != nil {
			t.Errorf("NodePort on %s: %v", node, err)
		}
	}
	for i, node := range []string{"node-1", "node-2"} {
		pod := newPod(fmt.Sprintf("client-%d", i+1), "sleep 3600")
		pod.Spec.NodeName = node
		mustCreatePod(t, namespace, pod)
		awaitReady(t, namespace, pod.Name)
		for _, target := range []string{service.Spec.ClusterIP, "web", "web." + namespace, "web." + namespace + ".svc.cluster.local", "web-headless:8080"} {
			out, err := cluster.Kubectl("-n", namespace, "exec", pod.Name, "--", "/demo", "fetch", "http://"+target+"/")
			if err != nil || !strings.HasPrefix(out, "Hello from pod web-") {
				t.Errorf("from %s to %s: %q, %v", node, target, out, err)
			}
		}
	}
}

func TestChangesKeepAnswering(t *testing.T) {
	namespace := newNamespace(t)
	service := startWeb(t, namespace)
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	var mu sync.Mutex
	answered := 0
	var failures []error
	for range 4 {
		group.Go(func() {
			for ctx.Err() == nil {
				_, err := fetch(service.Spec.ClusterIP)
				mu.Lock()
				if err != nil {
					failures = append(failures, err)
				} else {
					answered++
				}
				mu.Unlock()
			}
		})
	}
	for _, change := range [][]string{
		{"scale", "deployment/web", "--replicas=6"},
		{"set", "env", "deployment/web", "VERSION=2"},
		{"scale", "deployment/web", "--replicas=2"},
	} {
		cluster.MustKubectl(t, append([]string{"-n", namespace}, change...)...)
		cluster.MustKubectl(t, "-n", namespace, "rollout", "status", "deployment/web", "--timeout=90s")
	}
	cancel()
	group.Wait()
	t.Logf("%d requests answered", answered)
	if len(failures) > 0 || answered < 50 {
		t.Errorf("%d requests of %d failed, the first: %v", len(failures), answered+len(failures), failures[:min(3, len(failures))])
	}
	if answer, err := fetch(service.Spec.ClusterIP); err != nil || !strings.Contains(answer, "version 2") {
		t.Errorf("after the update: %q, %v", answer, err)
	}
}

func TestDeletedPodComesBack(t *testing.T) {
	namespace := newNamespace(t)
	startWeb(t, namespace)
	pods := strings.Fields(cluster.MustKubectl(t, "-n", namespace, "get", "pods", "-l", "app=web", "-o", "name"))
	cluster.MustKubectl(t, "-n", namespace, "delete", pods[0])
	testenv.Eventually(t, 60*time.Second, "four ready pods, the deleted one not among them", func(context.Context) error {
		list, err := cluster.Client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
		if err != nil {
			return err
		}
		ready := 0
		for _, pod := range list.Items {
			if "pod/"+pod.Name == pods[0] {
				return fmt.Errorf("%s is still there", pod.Name)
			}
			if isReady(&pod) {
				ready++
			}
		}
		if ready != 4 {
			return fmt.Errorf("%d pods are ready", ready)
		}
		return nil
	})
}

func TestServiceWithoutEndpointsRefuses(t *testing.T) {
	namespace := newNamespace(t)
	service, err := cluster.Client.CoreV1().Services(namespace).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "nobody"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "nobody"}, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 20*time.Second, "an immediate refusal", func(context.Context) error {
		began := time.Now()
		_, err := fetch(service.Spec.ClusterIP)
		if err == nil || time.Since(began) > time.Second {
			return fmt.Errorf("answer after %s, error: %w", time.Since(began), errors.Join(err))
		}
		return nil
	})
}
