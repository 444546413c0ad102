package e2e

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// newRuntimeClass makes one of the test's own.
func newRuntimeClass(t *testing.T, name, handler string, overhead corev1.ResourceList) {
	t.Helper()
	class := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Handler: handler}
	if overhead != nil {
		class.Overhead = &nodev1.Overhead{PodFixed: overhead}
	}
	if _, err := cluster.Client.NodeV1().RuntimeClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = cluster.Kubectl("delete", "runtimeclass", name) })
}

func TestRuntimeClassesChooseHandlers(t *testing.T) {
	namespace := newNamespace(t)
	newRuntimeClass(t, namespace+"-known", "runc", corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3m")})
	newRuntimeClass(t, namespace+"-unknown", "no-such-handler", nil)
	known, unknown := newPod("known", "exec sleep 3600"), newPod("unknown", "exec sleep 3600")
	known.Spec.RuntimeClassName, unknown.Spec.RuntimeClassName = ptr.To(namespace+"-known"), ptr.To(namespace+"-unknown")
	mustCreatePod(t, namespace, known)
	mustCreatePod(t, namespace, unknown)
	if got := awaitReady(t, namespace, "known"); got.Spec.Overhead.Cpu().MilliValue() != 3 {
		t.Errorf("its overhead is %v", got.Spec.Overhead)
	}
	awaitEvent(t, namespace, "unknown", "FailedCreatePodSandBox", `no runtime handler "no-such-handler" is configured`)
}

// Nodes tell whether their runtime can give pods users of their own; both answers are kept
// to.
func TestPodsHaveUsersOfTheirOwnWhereTheNodeCan(t *testing.T) {
	node, err := cluster.Client.CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	can := false
	for _, handler := range node.Status.RuntimeHandlers {
		can = can || (handler.Name == "" && handler.Features != nil && ptr.Deref(handler.Features.UserNamespaces, false))
	}
	namespace := newNamespace(t)
	pod := newPod("own", "exec sleep 3600")
	pod.Spec.NodeName, pod.Spec.HostUsers = "node-1", ptr.To(false)
	mustCreatePod(t, namespace, pod)
	if !can {
		awaitEvent(t, namespace, "own", "FailedCreatePodSandBox", "user namespace")
		return
	}
	awaitReady(t, namespace, "own")
	fields := strings.Fields(cluster.MustKubectl(t, "-n", namespace, "exec", "own", "--", "cat", "/proc/self/uid_map"))
	if len(fields) != 3 || fields[0] != "0" || fields[1] == "0" || fields[2] != "65536" {
		t.Errorf("its users are mapped as %q", fields)
	}
}

func TestLimitsAreTheKernels(t *testing.T) {
	namespace := newNamespace(t)
	pod := newPod("limited", "exec sleep 3600")
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("48Mi"), corev1.ResourceCPU: resource.MustParse("300m")}
	mustCreatePod(t, namespace, pod)
	awaitReady(t, namespace, "limited")
	for script, want := range map[string]string{
		"cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max": "50331648",
		"cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us 2>/dev/null || cut -d' ' -f1 /sys/fs/cgroup/cpu.max":  "30000",
		"d=/sys/fs/cgroup; [ -d $d/memory ] && d=$d/memory; mkdir $d/x 2>/dev/null || echo refused":    "refused",
	} {
		if got := strings.TrimSpace(cluster.MustKubectl(t, "-n", namespace, "exec", "limited", "--", "sh", "-c", script)); got != want {
			t.Errorf("%s: %q, want %q", script, got, want)
		}
	}
}
