package criconfig

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sampan-io/sampan/services/node-agent/internal/cgroups"
)

// groups is a hierarchy of version 2 that limits swap and huge pages.
func groups(t *testing.T, n *Node) {
	t.Helper()
	root := t.TempDir()
	for name, text := range map[string]string{"cgroup.controllers": "cpu memory hugetlb\n", "root/kubepods/memory.swap.max": "max\n"} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n.Cgroups.Hierarchy = cgroups.Like(root, true)
}

func TestSwapGoesByWhatBurstableContainersAskFor(t *testing.T) {
	n := newNode(t, "")
	groups(t, &n)
	n.SwapCapacity = 512 << 20 // the machine has 1 GiB of memory
	memory := func(request, limit string) func(spec *corev1.Container) {
		return func(spec *corev1.Container) {
			spec.Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(request)}
			if limit != "" {
				spec.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(limit)}
			}
		}
	}
	system := int32(2000000000)
	for _, c := range []struct {
		name   string
		change func(pod *corev1.Pod)
		want   string
		limit  int64 // of memory and swap together
	}{
		{"asks for a quarter", func(p *corev1.Pod) { memory("256Mi", "")(&p.Spec.Containers[0]) }, "134217728", 0},
		{"and has a limit", func(p *corev1.Pod) { memory("256Mi", "512Mi")(&p.Spec.Containers[0]) }, "134217728", 640 << 20},
		{"asks for its limit", func(p *corev1.Pod) { memory("256Mi", "256Mi")(&p.Spec.Containers[0]) }, "0", 256 << 20},
		{"asks for nothing", func(*corev1.Pod) {}, "0", 0},
		{"is critical", func(p *corev1.Pod) { memory("256Mi", "")(&p.Spec.Containers[0]); p.Spec.Priority = &system }, "0", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod := newPod()
			c.change(pod)
			got := n.resources(pod, &pod.Spec.Containers[0])
			if got.GetUnified()["memory.swap.max"] != c.want || got.GetMemorySwapLimitInBytes() != c.limit {
				t.Errorf("its limits are %v", got)
			}
		})
	}
	n.SwapCapacity = 0
	pod := newPod()
	memory("256Mi", "")(&pod.Spec.Containers[0])
	if got := n.resources(pod, &pod.Spec.Containers[0]).GetUnified()["memory.swap.max"]; got != "0" {
		t.Errorf("without swap for containers one has %s", got)
	}
}

func TestContainersAreHeldToTheirHugePages(t *testing.T) {
	n := newNode(t, "")
	n.HugePages = []corev1.ResourceName{"hugepages-1Gi", "hugepages-2Mi"}
	pod := newPod()
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"hugepages-2Mi": resource.MustParse("6Mi")}
	if got := n.resources(pod, &pod.Spec.Containers[0]).GetHugepageLimits(); got != nil {
		t.Errorf("where the kernel cannot limit them: %v", got)
	}
	groups(t, &n)
	got := n.resources(pod, &pod.Spec.Containers[0]).GetHugepageLimits()
	if len(got) != 2 || got[0].GetPageSize() != "1GB" || got[0].GetLimit() != 0 || got[1].GetPageSize() != "2MB" || got[1].GetLimit() != 6<<20 {
		t.Errorf("limits %v", got)
	}
}

func TestProcIsMaskedUnlessThePodAsksForAllOfIt(t *testing.T) {
	unmasked, usual := corev1.UnmaskedProcMount, corev1.DefaultProcMount
	for _, c := range []struct {
		kind *corev1.ProcMountType
		want bool // masked
	}{{nil, true}, {&usual, true}, {&unmasked, false}} {
		pod := newPod()
		pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{ProcMount: c.kind}
		config, err := newNode(t, "").Container(Container{Pod: pod, Spec: &pod.Spec.Containers[0]})
		if err != nil {
			t.Fatal(err)
		}
		security := config.GetLinux().GetSecurityContext()
		if masked := len(security.GetMaskedPaths()) > 0 && len(security.GetReadonlyPaths()) > 0; masked != c.want || (!c.want && len(security.GetMaskedPaths())+len(security.GetReadonlyPaths()) > 0) {
			t.Errorf("with %v masked are %v, read-only %v", c.kind, security.GetMaskedPaths(), security.GetReadonlyPaths())
		}
	}
}
