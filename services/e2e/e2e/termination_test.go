package e2e

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/internal/testenv"
)

const abruptImage = "localhost/sampan/abrupt:1"

const abruptManifest = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: abrupt, namespace: NS}
spec:
  replicas: 4
  selector: {matchLabels: {app: abrupt}}
  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  template:
    metadata: {labels: {app: abrupt}}
    spec:
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: abrupt}}}
      containers:
      - name: web
        image: localhost/sampan/abrupt:1
        imagePullPolicy: Never
        env: [{name: VERSION, value: "1"}]
        ports: [{name: http, containerPort: 8080}]
        readinessProbe: {httpGet: {path: /, port: http}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: abrupt, namespace: NS}
spec:
  type: NodePort
  selector: {app: abrupt}
  ports: [{name: http, port: 80, targetPort: http}]
`

// load asks all addresses again and again, each request on a connection of its own.
type load struct {
	asked, failed atomic.Int64
	mu            sync.Mutex
	errors        []string
	stop          chan struct{}
	group         sync.WaitGroup
}

func startLoad(addresses ...string) *load {
	const workers = 4 // of each address
	l := &load{stop: make(chan struct{})}
	for _, address := range addresses {
		for range workers {
			l.group.Go(func() { l.ask(address) })
		}
	}
	return l
}

func (l *load) ask(address string) {
	for {
		select {
		case <-l.stop:
			return
		default:
		}
		l.asked.Add(1)
		if _, err := fetch(address); err != nil {
			l.failed.Add(1)
			l.mu.Lock()
			l.errors = append(l.errors, fmt.Sprintf("%s %s: %v", time.Now().Format("15:04:05.000"), address, err))
			l.mu.Unlock()
		}
	}
}

func (l *load) end() {
	close(l.stop)
	l.group.Wait()
}

// A pod is told to end only after the proxies have taken it out, so that even
// programs that end at once drop no request during a rolling update.
func TestRollingUpdateOfAbruptProgramsDropsNoRequest(t *testing.T) {
	namespace := newNamespace(t)
	buildImage(t, abruptImage, "abrupt")
	cluster.MustApply(t, strings.ReplaceAll(abruptManifest, "NS", namespace))
	cluster.MustKubectl(t, "-n", namespace, "rollout", "status", "deployment/abrupt", "--timeout=90s")
	service, err := cluster.Client.CoreV1().Services(namespace).Get(t.Context(), "abrupt", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	port := fmt.Sprint(service.Spec.Ports[0].NodePort)
	l := startLoad(service.Spec.ClusterIP, net.JoinHostPort("10.89.0.11", port), net.JoinHostPort("10.89.0.12", port))
	for _, version := range []string{"2", "3"} {
		cluster.MustKubectl(t, "-n", namespace, "set", "env", "deployment/abrupt", "VERSION="+version)
		cluster.MustKubectl(t, "-n", namespace, "rollout", "status", "deployment/abrupt", "--timeout=90s")
	}
	awaitOneVersion(t, service.Spec.ClusterIP, "3")
	l.end()
	t.Logf("%d requests, %d failed", l.asked.Load(), l.failed.Load())
	if l.failed.Load() > 0 {
		t.Errorf("%d of %d requests failed:\n%s", l.failed.Load(), l.asked.Load(), strings.Join(l.errors[:min(len(l.errors), 20)], "\n"))
	}
}

func awaitOneVersion(t *testing.T, address, version string) {
	t.Helper()
	testenv.Eventually(t, 30*time.Second, "only version "+version+" answers", func(context.Context) error {
		for range 20 {
			answer, err := fetch(address)
			if err != nil {
				return err
			}
			if !strings.HasSuffix(strings.TrimSpace(answer), "version "+version) {
				return fmt.Errorf("the answer is %q", answer)
			}
		}
		return nil
	})
}
