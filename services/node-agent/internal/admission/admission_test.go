package admission_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/admission"
)

func pod(change func(spec *corev1.PodSpec)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c"}}}}
	if change != nil {
		change(&p.Spec)
	}
	return p
}

func request(cpu string) func(spec *corev1.PodSpec) {
	return func(spec *corev1.PodSpec) {
		spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	}
}

func hostPort(port int32, ip string) func(spec *corev1.PodSpec) {
	return func(spec *corev1.PodSpec) {
		spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: port, HostIP: ip, ContainerPort: 80}}
	}
}

func sysctl(name string) func(spec *corev1.PodSpec) {
	return func(spec *corev1.PodSpec) {
		spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: name, Value: "1"}}}
	}
}

func TestAdmit(t *testing.T) {
	node := admission.Node{
		Name: "n", UnsafeSysctls: []string{"net.core.*"}, Labels: func() map[string]string { return map[string]string{"zone": "a"} },
		Allocatable: func() corev1.ResourceList {
			return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourcePods: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("1Gi")}
		},
	}
	for _, c := range []struct {
		name   string
		pod    *corev1.Pod
		others []*corev1.Pod
		want   string // reason
	}{
		{"fits", pod(request("1")), nil, ""},
		{"fits exactly", pod(request("1")), []*corev1.Pod{pod(request("1"))}, ""},
		{"too much", pod(request("1001m")), []*corev1.Pod{pod(request("1"))}, "OutOfcpu"},
		{"what has ended does not count", pod(request("2")), []*corev1.Pod{{Spec: pod(request("1")).Spec, Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}}, ""},
		{"too many", pod(nil), []*corev1.Pod{pod(nil), pod(nil)}, "OutOfpods"},
		{"another node's", pod(func(spec *corev1.PodSpec) { spec.NodeName = "m" }), nil, "NodeName"},
		{"another zone's", pod(func(spec *corev1.PodSpec) { spec.NodeSelector = map[string]string{"zone": "b"} }), nil, "NodeAffinity"},
		{"its zone's", pod(func(spec *corev1.PodSpec) { spec.NodeSelector = map[string]string{"zone": "a"} }), nil, ""},
		{"a port that is taken", pod(hostPort(80, "")), []*corev1.Pod{pod(hostPort(80, "127.0.0.1"))}, "NodePorts"},
		{"a port of another address", pod(hostPort(80, "127.0.0.2")), []*corev1.Pod{pod(hostPort(80, "127.0.0.1"))}, ""},
		{"a safe sysctl", pod(sysctl("net.ipv4.ip_unprivileged_port_start")), nil, ""},
		{"a sysctl that is allowed", pod(sysctl("net.core.somaxconn")), nil, ""},
		{"a sysctl that is not", pod(sysctl("kernel.msgmax")), nil, "SysctlForbidden"},
		{"another system's", pod(func(spec *corev1.PodSpec) { spec.OS = &corev1.PodOS{Name: corev1.Windows} }), nil, "PodOSNotSupported"},
	} {
		t.Run(c.name, func(t *testing.T) {
			end, got := node.Admit(c.pod, c.others), ""
			if end != nil {
				got = end.Reason
			}
			if got != c.want {
				t.Errorf("%+v, want %q", end, c.want)
			}
		})
	}
}

func TestResizableTellsNeverFromNotNow(t *testing.T) {
	list := func(cpu string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	}
	asks := func(cpu string) *corev1.Pod {
		return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: list(cpu)}}}}}
	}
	node := admission.Node{Allocatable: func() corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourcePods: resource.MustParse("10")}
	}}
	others := []*corev1.Pod{asks("1500m"), asks("100m")}
	others[1].Status.Phase = corev1.PodSucceeded // what it had is free
	for cpu, want := range map[string]string{
		"500m": "", "600m": "Deferred: Node didn't have enough resource: cpu, requested: 600, used: 1500, capacity: 2000",
		"3": "Infeasible: Node didn't have enough capacity: cpu, requested: 3000, capacity: 2000",
	} {
		got := ""
		if end := node.Resizable(asks(cpu), others); end != nil {
			got = end.Reason + ": " + end.Message
		}
		if got != want {
			t.Errorf("%s: %q, want %q", cpu, got, want)
		}
	}
}

func TestPreemptEndsAsFewOfTheBetterAsItCan(t *testing.T) {
	sized := func(name string, class corev1.PodQOSClass, cpu, memory string, change func(*corev1.Pod)) *corev1.Pod {
		p := pod(request(cpu))
		p.Name, p.Status.QOSClass = name, class
		p.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse(memory)
		if change != nil {
			change(p)
		}
		return p
	}
	priority := func(n int32) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.Priority = &n } }
	const system = 2000000000
	best, middle, least := corev1.PodQOSGuaranteed, corev1.PodQOSBurstable, corev1.PodQOSBestEffort
	node := admission.Node{
		Name: "n", Labels: func() map[string]string { return nil },
		Allocatable: func() corev1.ResourceList {
			return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourcePods: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("4Gi")}
		},
	}
	for _, c := range []struct {
		name   string
		pod    *corev1.Pod
		others []*corev1.Pod
		want   string
	}{
		{"one that is not critical", sized("new", best, "4", "1Gi", nil), []*corev1.Pod{sized("a", middle, "1", "1Gi", nil)}, ""},
		{"the one that is just enough", sized("new", best, "1", "1Gi", priority(system)),
			[]*corev1.Pod{sized("a", middle, "2", "1Gi", nil), sized("b", middle, "1", "2Gi", nil), sized("c", middle, "1", "1Gi", nil)}, "c"},
		{"burstable ones before guaranteed ones", sized("new", best, "3", "1Gi", priority(system)),
			[]*corev1.Pod{sized("a", best, "2", "1Gi", nil), sized("b", middle, "2", "1Gi", nil)}, "b a"},
		{"the number of pods", sized("new", least, "0", "0", priority(system)),
			[]*corev1.Pod{sized("a", best, "1", "0", nil), sized("b", least, "0", "0", nil), sized("c", middle, "1", "0", nil), sized("d", best, "1", "0", nil)}, "b"},
		{"not enough in all", sized("new", best, "5", "1Gi", priority(system)), []*corev1.Pod{sized("a", middle, "2", "1Gi", nil)}, ""},
		{"critical ones stay", sized("new", best, "4", "1Gi", priority(system)), []*corev1.Pod{sized("a", middle, "1", "1Gi", priority(system))}, ""},
		{"less critical ones do not", sized("new", best, "4", "1Gi", priority(system+1000)), []*corev1.Pod{sized("a", middle, "1", "1Gi", priority(system))}, "a"},
		{"something else is in the way", sized("new", best, "4", "1Gi", func(p *corev1.Pod) { priority(system)(p); p.Spec.NodeName = "other" }),
			[]*corev1.Pod{sized("a", middle, "1", "1Gi", nil)}, ""},
		{"a static pod is critical", sized("new", best, "4", "1Gi", func(p *corev1.Pod) { p.Annotations = map[string]string{"kubernetes.io/config.source": "file"} }),
			[]*corev1.Pod{sized("a", middle, "1", "1Gi", nil)}, "a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var names []string
			for _, victim := range node.Preempt(c.pod, c.others) {
				names = append(names, victim.Name)
			}
			if got := strings.Join(names, " "); got != c.want {
				t.Errorf("ends %q, want %q", got, c.want)
			}
		})
	}
}
