package qos

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func list(cpu, memory string) corev1.ResourceList {
	out := corev1.ResourceList{}
	if cpu != "" {
		out[corev1.ResourceCPU] = resource.MustParse(cpu)
	}
	if memory != "" {
		out[corev1.ResourceMemory] = resource.MustParse(memory)
	}
	return out
}

func podOf(sets ...corev1.ResourceRequirements) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	for _, set := range sets {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Resources: set})
	}
	return pod
}

func TestClassesAndGroups(t *testing.T) {
	tree := Tree{Root: "/r", CFSQuota: true, PIDsLimit: 100}
	full := corev1.ResourceRequirements{Requests: list("500m", "64Mi"), Limits: list("500m", "64Mi")}
	for _, c := range []struct {
		name  string
		pod   *corev1.Pod
		class corev1.PodQOSClass
		group string
		want  limits
	}{
		{"nothing", podOf(corev1.ResourceRequirements{}), corev1.PodQOSBestEffort, "/r/kubepods/besteffort/podu", limits{shares: 2, pids: 100}},
		{"all", podOf(full, full), corev1.PodQOSGuaranteed, "/r/kubepods/podu", limits{shares: 1024, quota: 100000, memory: 128 << 20, pids: 100}},
		{"some", podOf(full, corev1.ResourceRequirements{}), corev1.PodQOSBurstable, "/r/kubepods/burstable/podu", limits{shares: 512, pids: 100}},
		{"less than its limit", podOf(corev1.ResourceRequirements{Requests: list("100m", "32Mi"), Limits: list("", "64Mi")}), corev1.PodQOSBurstable, "/r/kubepods/burstable/podu",
			limits{shares: 102, memory: 64 << 20, pids: 100}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Class(c.pod); got != c.class {
				t.Errorf("class %s, want %s", got, c.class)
			}
			if got := tree.Pod(c.pod); got != c.group {
				t.Errorf("group %s, want %s", got, c.group)
			}
			if got := tree.podLimits(c.pod); got != c.want {
				t.Errorf("limits %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestConversionsStayInTheKernelsRange(t *testing.T) {
	if Shares(0) != 2 || Shares(1000) != 1024 || Shares(1<<40) != MaxShares {
		t.Errorf("shares %d %d %d", Shares(0), Shares(1000), Shares(1<<40))
	}
	if Quota(0) != 0 || Quota(1) != 1000 || Quota(1500) != 150000 {
		t.Errorf("quota %d %d %d", Quota(0), Quota(1), Quota(1500))
	}
	if Weight(2) != 1 || Weight(1024) != 39 || Weight(MaxShares) != 10000 {
		t.Errorf("weight %d %d %d", Weight(2), Weight(1024), Weight(MaxShares))
	}
}
