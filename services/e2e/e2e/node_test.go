package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/internal/testenv"
)

func TestNodesTellWhatTheyAre(t *testing.T) {
	for _, name := range []string{"node-1", "node-2"} {
		node, err := cluster.Client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, resource := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourcePods, corev1.ResourceEphemeralStorage} {
			has, gives := node.Status.Capacity[resource], node.Status.Allocatable[resource]
			if has.IsZero() || gives.IsZero() || gives.Cmp(has) > 0 {
				t.Errorf("%s has %s of %s and gives %s", name, has.String(), resource, gives.String())
			}
		}
		if memory := node.Status.Allocatable.Memory(); memory.Cmp(*node.Status.Capacity.Memory()) >= 0 {
			t.Errorf("%s keeps no memory for its eviction threshold", name)
		}
		info := node.Status.NodeInfo
		for what, text := range map[string]string{
			"machine": info.MachineID, "boot": info.BootID, "kernel": info.KernelVersion, "image": info.OSImage, "runtime": info.ContainerRuntimeVersion,
			"version": info.KubeletVersion, "system": info.OperatingSystem, "architecture": info.Architecture,
		} {
			if text == "" {
				t.Errorf("%s does not tell its %s", name, what)
			}
		}
		for kind, want := range map[corev1.NodeConditionType]corev1.ConditionStatus{
			corev1.NodeReady: corev1.ConditionTrue, corev1.NodeMemoryPressure: corev1.ConditionFalse, corev1.NodeDiskPressure: corev1.ConditionFalse, corev1.NodePIDPressure: corev1.ConditionFalse,
		} {
			found := false
			for _, condition := range node.Status.Conditions {
				found = found || (condition.Type == kind && condition.Status == want)
			}
			if !found {
				t.Errorf("%s: condition %s is not %s: %+v", name, kind, want, node.Status.Conditions)
			}
		}
		testenv.Eventually(t, 30*time.Second, name+" to tell its images", func(ctx context.Context) error {
			now, err := cluster.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			if err == nil && len(now.Status.Images) == 0 {
				err = errors.New("it has none")
			}
			return err
		})
		if len(node.Status.Addresses) < 2 || node.Status.DaemonEndpoints.KubeletEndpoint.Port == 0 || len(node.Status.RuntimeHandlers) == 0 {
			t.Errorf("%s: images %v, addresses %v, handlers %v", name, node.Status.Images, node.Status.Addresses, node.Status.RuntimeHandlers)
		}
		lease, err := cluster.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || lease.Spec.RenewTime == nil || time.Since(lease.Spec.RenewTime.Time) > 40*time.Second {
			t.Errorf("%s: lease %+v, %v", name, lease, err)
		}
	}
}

func TestNodesMeasureTheirPods(t *testing.T) {
	namespace := newNamespace(t)
	pod := newPod("measured", "while :; do :; done")
	pod.Spec.NodeName = "node-2"
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("32Mi")}
	mustCreatePod(t, namespace, pod)
	awaitReady(t, namespace, "measured")
	raw := func(path string) string {
		return cluster.MustKubectl(t, "get", "--raw", "/api/v1/nodes/node-2/proxy"+path)
	}
	testenv.Eventually(t, 30*time.Second, "the pod in stats/summary", func(context.Context) error {
		var summary struct {
			Pods []struct {
				PodRef struct{ Name, Namespace string }
				CPU    struct{ UsageCoreNanoSeconds uint64 }
				Memory struct{ WorkingSetBytes uint64 }
			}
		}
		if err := json.Unmarshal([]byte(raw("/stats/summary")), &summary); err != nil {
			return err
		}
		for _, p := range summary.Pods {
			if p.PodRef.Name == "measured" && p.PodRef.Namespace == namespace && p.CPU.UsageCoreNanoSeconds > 0 && p.Memory.WorkingSetBytes > 0 {
				return nil
			}
		}
		return errors.New("it is missing")
	})
	labels := fmt.Sprintf(`container="main",namespace="%s",pod="measured"`, namespace)
	if out := raw("/metrics/resource"); !strings.Contains(out, "container_cpu_usage_seconds_total{"+labels+"}") {
		t.Error("/metrics/resource does not have the pod")
	}
	advisor := raw("/metrics/cadvisor")
	for _, name := range []string{"container_cpu_cfs_throttled_periods_total", "container_memory_cache", "container_fs_writes_bytes_total"} {
		if !strings.Contains(advisor, name+`{container="main"`) || !strings.Contains(advisor, `namespace="`+namespace+`"`) {
			t.Errorf("/metrics/cadvisor has no %s of the pod", name)
		}
	}
	if out := raw("/metrics"); !strings.Contains(out, `kubelet_node_name{node="node-2"} 1`) || !strings.Contains(out, "kubelet_running_pods") {
		t.Error("/metrics lacks the kubelet's names")
	}
}

func TestPodOverItsEphemeralStorageIsEvicted(t *testing.T) {
	namespace := newNamespace(t)
	pod := newPod("writer", "head -c 4000000 /dev/zero > /file; exec sleep 3600")
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("1Mi")}
	mustCreatePod(t, namespace, pod)
	got := awaitPod(t, namespace, "writer", "is evicted", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if got.Status.Reason != "Evicted" || !strings.HasPrefix(got.Status.Message, "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi") || !hasCondition(got, corev1.DisruptionTarget, corev1.ConditionTrue) {
		t.Errorf("status is %+v", got.Status)
	}
	awaitEvent(t, namespace, "writer", "Evicted", "Pod ephemeral local storage")
}

func TestChildOutOfMemoryIsReported(t *testing.T) {
	namespace := newNamespace(t)
	pod := newPod("parent", "sh -c 'x=a; while :; do x=$x$x; done'; exit 0")
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("32Mi")}
	mustCreatePod(t, namespace, pod)
	got := awaitPod(t, namespace, "parent", "ended", func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded
	})
	if end := first(got).State.Terminated; end == nil || end.Reason != "OOMKilled" {
		t.Errorf("state is %+v", first(got).State)
	}
}
