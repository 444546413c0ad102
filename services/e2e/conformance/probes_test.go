package conformance

import (
	"context"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// staysUp is how long a container that must not restart is looked at; its
// probes run every second.
const staysUp = 5 * time.Second

var probing = map[string]func(*testing.T){
	"should be restarted with a exec \"cat /tmp/health\" liveness probe [NodeConformance]": func(t *testing.T) {
		restarts(t, "touch /tmp/health; sleep 2; rm /tmp/health; sleep 3600", execProbe("cat", "/tmp/health"), 1)
	},
	"should *not* be restarted with a exec \"cat /tmp/health\" liveness probe [NodeConformance]": func(t *testing.T) {
		neverRestarts(t, "touch /tmp/health; sleep 3600", execProbe("cat", "/tmp/health"))
	},
	"should be restarted with a /healthz http liveness probe [NodeConformance]": func(t *testing.T) {
		restarts(t, "mkdir /tmp/www; touch /tmp/www/healthz; busybox httpd -p 8080 -h /tmp/www; sleep 2; rm /tmp/www/healthz; sleep 3600", httpProbe(), 1)
	},
	"should *not* be restarted with a /healthz http liveness probe [NodeConformance]": func(t *testing.T) {
		neverRestarts(t, "mkdir /tmp/www; touch /tmp/www/healthz; busybox httpd -p 8080 -h /tmp/www; sleep 3600", httpProbe())
	},
	"should *not* be restarted with a tcp:8080 liveness probe [NodeConformance]": func(t *testing.T) {
		neverRestarts(t, "busybox httpd -f -p 8080 -h /tmp", &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intPort(8080)}}})
	},
	"should be restarted with a GRPC liveness probe [NodeConformance]": func(t *testing.T) {
		restartsPod(t, grpcServer(t, "2s"), 1)
	},
	"should *not* be restarted with a GRPC liveness probe [NodeConformance]": func(t *testing.T) {
		neverRestartsPod(t, grpcServer(t, ""))
	},
	"should have monotonically increasing restart count [NodeConformance]": func(t *testing.T) {
		restarts(t, "sleep 3600", execProbe("false"), 3)
	},
	"with readiness probe should not be ready before initial delay and never restart [NodeConformance]": readyAfterDelay,
	"with readiness probe that fails should never be ready and never restart [NodeConformance]":         neverReady,
}

func execProbe(command ...string) *corev1.Probe {
	return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: command}}}
}

func httpProbe() *corev1.Probe {
	return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intPort(8080)}}}
}

func probed(script string, liveness, readiness *corev1.Probe) *corev1.Pod {
	made := pod("probed", script)
	for _, probe := range []*corev1.Probe{liveness, readiness} {
		if probe != nil {
			probe.PeriodSeconds, probe.InitialDelaySeconds = 1, max(probe.InitialDelaySeconds, 1)
		}
	}
	if liveness != nil {
		liveness.FailureThreshold = 1
	}
	made.Spec.Containers[0].LivenessProbe, made.Spec.Containers[0].ReadinessProbe = liveness, readiness
	return made
}

// restarts waits for that many restarts, and asserts that the count never falls.
func restarts(t *testing.T, script string, liveness *corev1.Probe, want int32) {
	t.Helper()
	restartsPod(t, probed(script, liveness, nil), want)
}

func restartsPod(t *testing.T, made *corev1.Pod, want int32) {
	t.Helper()
	namespace := newNamespace(t)
	create(t, namespace, made)
	awaitRunning(t, namespace, "probed")
	var last int32
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, 2*patience, true, func(ctx context.Context) (bool, error) {
		count := restartsSeen(t, namespace, "probed")
		if count < last {
			t.Errorf("the restarts fall from %d to %d", last, count)
		}
		last = count
		return count >= want, nil
	})
	if err != nil {
		t.Errorf("waiting for %d restarts, saw %d: %v", want, last, err)
	}
}

func neverRestarts(t *testing.T, script string, liveness *corev1.Probe) {
	t.Helper()
	neverRestartsPod(t, probed(script, liveness, nil))
}

func neverRestartsPod(t *testing.T, made *corev1.Pod) {
	t.Helper()
	namespace := newNamespace(t)
	create(t, namespace, made)
	awaitRunning(t, namespace, "probed")
	observe(t, namespace, "probed", staysUp, func(pod *corev1.Pod) {
		if count := pod.Status.ContainerStatuses[0].RestartCount; count != 0 {
			t.Fatalf("the container restarted %d times", count)
		}
	})
}

// grpcServer is a pod that says that it serves, for a while or for good.
func grpcServer(t *testing.T, servesFor string) *corev1.Pod {
	t.Helper()
	must(t, buildGRPC())
	made := withEnv(probed("", &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 5000}}}, nil), "SERVES_FOR", servesFor)
	made.Spec.Containers[0].Image, made.Spec.Containers[0].Command = grpcImage, nil
	return made
}

const grpcImage = "localhost/sampan/grpchealth:1"

// buildGRPC makes the image once for all tests.
var buildGRPC = sync.OnceValue(func() error { return cluster.BuildImage(grpcImage, "grpchealth") })

func readyAfterDelay(t *testing.T) {
	namespace := newNamespace(t)
	probe := execProbe("true")
	probe.InitialDelaySeconds = 4
	create(t, namespace, probed("sleep 3600", nil, probe))
	pod := awaitReady(t, namespace, "probed")
	status := pod.Status.ContainerStatuses[0]
	for _, condition := range pod.Status.Conditions {
		if condition.Type != corev1.PodReady {
			continue
		}
		if delay := condition.LastTransitionTime.Sub(status.State.Running.StartedAt.Time); delay < 3*time.Second {
			t.Errorf("ready %s after the start, before the initial delay", delay)
		}
	}
	if status.RestartCount != 0 {
		t.Errorf("the container restarted %d times", status.RestartCount)
	}
}

func neverReady(t *testing.T) {
	namespace := newNamespace(t)
	create(t, namespace, probed("sleep 3600", nil, execProbe("false")))
	awaitRunning(t, namespace, "probed")
	observe(t, namespace, "probed", staysUp, func(pod *corev1.Pod) {
		if ready(pod) || pod.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Fatalf("the container is %+v", pod.Status.ContainerStatuses[0])
		}
	})
}

// taintManager is the eviction of pods that do not tolerate a NoExecute taint.
var taintManager = map[string]func(*testing.T){
	"Multiple Pods [Serial] evicts pods with minTolerationSeconds [Disruptive]": func(t *testing.T) {
		namespace := newNamespace(t)
		node := tolerating(t, namespace, map[string]int64{"early": 2, "late": 3600})
		taint(t, node)
		awaitNoPod(t, namespace, "early")
		if late := got(client.CoreV1().Pods(namespace).Get(t.Context(), "late", metav1.GetOptions{}))(t); late.DeletionTimestamp != nil {
			t.Error("the pod that tolerates the taint for an hour is being deleted")
		}
	},
	"Single Pod [Serial] removing taint cancels eviction [Disruptive]": func(t *testing.T) {
		namespace := newNamespace(t)
		node := tolerating(t, namespace, map[string]int64{"spared": 3})
		untaint := taint(t, node)
		untaint()
		observe(t, namespace, "spared", 5*time.Second, func(pod *corev1.Pod) {
			if pod.DeletionTimestamp != nil {
				t.Fatal("the pod is being deleted though its taint is gone")
			}
		})
	},
}

const evictTaint = "example.com/evict"

// tolerating starts pods on one node that tolerate the taint for so many
// seconds, and returns the node.
func tolerating(t *testing.T, namespace string, pods map[string]int64) string {
	t.Helper()
	node := ""
	for name, seconds := range pods {
		made := pod(name, "sleep 3600")
		made.Spec.Tolerations = []corev1.Toleration{{Key: evictTaint, Value: "yes", Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds}}
		if node != "" {
			made.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": node}
		}
		create(t, namespace, made)
		node = awaitRunning(t, namespace, name).Spec.NodeName
	}
	return node
}

// taint taints the node until the returned function or the test's end.
func taint(t *testing.T, node string) func() {
	t.Helper()
	cluster.MustKubectl(t, "taint", "node", node, evictTaint+"=yes:NoExecute")
	untaint := func() { _, _ = cluster.Kubectl("taint", "node", node, evictTaint+"-") }
	t.Cleanup(untaint)
	return untaint
}
