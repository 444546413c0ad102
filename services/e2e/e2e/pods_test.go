package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/internal/testenv"
)

func newNamespaceObject() *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"}}
}

// newPod is a pod of one container that runs a shell script.
func newPod(name, script string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To(int64(1)),
			Containers:                    []corev1.Container{{Name: "main", Image: image, Command: []string{"sh", "-c", script}}},
		},
	}
}

func mustCreatePod(t *testing.T, namespace string, pod *corev1.Pod) {
	t.Helper()
	if _, err := cluster.Client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// awaitPod waits until the pod fulfils a condition and returns it.
func awaitPod(t *testing.T, namespace, name string, what string, condition func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	testenv.Eventually(t, 60*time.Second, "pod "+name+" "+what, func(ctx context.Context) error {
		var err error
		pod, err = cluster.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !condition(pod) {
			return fmt.Errorf("status is %+v", pod.Status)
		}
		return nil
	})
	return pod
}

func awaitReady(t *testing.T, namespace, name string) *corev1.Pod {
	t.Helper()
	return awaitPod(t, namespace, name, "is ready", isReady)
}

func isReady(pod *corev1.Pod) bool { return hasCondition(pod, corev1.PodReady, corev1.ConditionTrue) }

func hasCondition(pod *corev1.Pod, kind corev1.PodConditionType, status corev1.ConditionStatus) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == kind {
			return c.Status == status
		}
	}
	return false
}

// first is the status of the pod's first container.
func first(pod *corev1.Pod) corev1.ContainerStatus {
	if len(pod.Status.ContainerStatuses) == 0 {
		return corev1.ContainerStatus{}
	}
	return pod.Status.ContainerStatuses[0]
}

func TestPodRunsToItsEnd(t *testing.T) {
	namespace := newNamespace(t)
	pod := newPod("once", "echo out; echo err >&2; exit 3")
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	mustCreatePod(t, namespace, pod)
	got := awaitPod(t, namespace, "once", "failed", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if end := first(got).State.Terminated; end == nil || end.ExitCode != 3 || end.Reason != "Error" {
		t.Errorf("container state is %+v", first(got).State)
	}
	if out := cluster.MustKubectl(t, "-n", namespace, "logs", "once"); out != "out\nerr\n" && out != "err\nout\n" {
		t.Errorf("log is %q", out)
	}
}

func TestInitContainersRunInOrder(t *testing.T) {
	namespace := newNamespace(t)
	pod := newPod("ordered", "cat /work/log; sleep 3600")
	pod.Spec.Volumes = []corev1.Volume{{Name: "work", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	mount := []corev1.VolumeMount{{Name: "work", MountPath: "/work"}}
	pod.Spec.Containers[0].VolumeMounts = mount
	for _, name := range []string{"one", "two"} {
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, corev1.Container{Name: name, Image: image, Command: []string{"sh", "-c", "echo " + name + " >> /work/log"}, VolumeMounts: mount})
	}
	mustCreatePod(t, namespace, pod)
	awaitReady(t, namespace, "ordered")
	testenv.Eventually(t, 10*time.Second, "the init containers' words in order", func(context.Context) error {
		if out := cluster.MustKubectl(t, "-n", namespace, "logs", "ordered", "-c", "main"); out != "one\ntwo\n" {
			return fmt.Errorf("log is %q", out)
		}
		return nil
	})
}

func TestConfigurationReachesThePod(t *testing.T) {
	namespace := newNamespace(t)
	cluster.MustApply(t, strings.ReplaceAll(`
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: NS}
data: {colour: blue, file.txt: "from config map"}
---
apiVersion: v1
kind: Secret
metadata: {name: hidden, namespace: NS}
stringData: {word: sesame}
---
apiVersion: v1
kind: Pod
metadata: {name: configured, namespace: NS, labels: {tier: back}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: localhost/sampan/demo:1
    command: [sh, -c, "sleep 3600"]
    resources: {limits: {memory: 32Mi, cpu: 500m}}
    env:
    - {name: PLAIN, value: "a $(COLOUR) b"}
    - {name: COLOUR, valueFrom: {configMapKeyRef: {name: settings, key: colour}}}
    - {name: WORD, valueFrom: {secretKeyRef: {name: hidden, key: word}}}
    - {name: MYNAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: LIMIT, valueFrom: {resourceFieldRef: {resource: limits.memory}}}
    envFrom: [{configMapRef: {name: settings}, prefix: CM_}]
    volumeMounts:
    - {name: cm, mountPath: /cm}
    - {name: secret, mountPath: /secret}
    - {name: info, mountPath: /info}
    - {name: cm, mountPath: /one/file.txt, subPath: file.txt}
  volumes:
  - {name: cm, configMap: {name: settings}}
  - {name: secret, secret: {secretName: hidden, defaultMode: 0400}}
  - {name: info, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}
`, "NS", namespace))
	awaitReady(t, namespace, "configured")
	inside := func(script string) string {
		return strings.TrimSpace(cluster.MustKubectl(t, "-n", namespace, "exec", "configured", "--", "sh", "-c", script))
	}
	for script, want := range map[string]string{
		"echo $COLOUR,$WORD,$MYNAME,$LIMIT,$CM_colour": "blue,sesame,configured,33554432,blue",
		"cat /cm/file.txt":           "from config map",
		"cat /one/file.txt":          "from config map",
		"cat /secret/word":           "sesame",
		"stat -L -c %a /secret/word": "400",
		"cat /info/labels":           `tier="back"`,
		"cat /var/run/secrets/kubernetes.io/serviceaccount/namespace": namespace,
	} {
		if got := inside(script); got != want {
			t.Errorf("%s: %q, want %q", script, got, want)
		}
	}
	cluster.MustKubectl(t, "-n", namespace, "patch", "configmap", "settings", "-p", `{"data":{"file.txt":"changed"}}`)
	testenv.Eventually(t, 30*time.Second, "changed config map in the volume", func(context.Context) error {
		if got := inside("cat /cm/file.txt"); got != "changed" {
			return fmt.Errorf("file says %q", got)
		}
		return nil
	})
}

func TestInClusterClientListsPods(t *testing.T) {
	namespace := newNamespace(t)
	buildImage(t, "localhost/sampan/incluster:1", "incluster")
	cluster.MustKubectl(t, "-n", namespace, "create", "role", "reader", "--verb=list", "--resource=pods")
	cluster.MustKubectl(t, "-n", namespace, "create", "rolebinding", "reader", "--role=reader", "--serviceaccount="+namespace+":default")
	pod := newPod("lister", "")
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	pod.Spec.Containers[0] = corev1.Container{Name: "main", Image: "localhost/sampan/incluster:1", ImagePullPolicy: corev1.PullNever}
	mustCreatePod(t, namespace, pod)
	awaitPod(t, namespace, "lister", "ended", func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	})
	if out := cluster.MustKubectl(t, "-n", namespace, "logs", "lister"); out != "pod lister\n" {
		t.Errorf("program printed %q", out)
	}
}
