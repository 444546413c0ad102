package core

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// printed is a table's head and rows; columns that only -o wide shows are in
// brackets.
func printed[T registry.Object](r *registry.Resource, objs ...T) string {
	var b strings.Builder
	for i, c := range r.Table.Columns {
		if i > 0 {
			b.WriteString(" | ")
		}
		if c.Priority > 0 {
			fmt.Fprintf(&b, "[%s]", c.Name)
		} else {
			b.WriteString(c.Name)
		}
	}
	for _, obj := range objs {
		b.WriteString("\n")
		for i, cell := range r.Table.Cells(obj, time.Now()) {
			if i > 0 {
				b.WriteString(" | ")
			}
			fmt.Fprint(&b, cell)
		}
	}
	return b.String()
}

func made(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "default", Name: name, CreationTimestamp: metav1.NewTime(time.Now().Add(-5 * time.Minute))}
}

func assertTable(t *testing.T, got, want string) {
	t.Helper()
	if want = strings.TrimSpace(want); got != want {
		t.Errorf("printed\n%s\nwant\n%s", got, want)
	}
}

func TestPodTable(t *testing.T) {
	running := corev1.ContainerStatus{Name: "c", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	pod := func(name string, change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: made(name), Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
		p.Status.Phase = corev1.PodPending
		change(p)
		return p
	}
	always := ptr.To(corev1.ContainerRestartPolicyAlways)
	assertTable(t, printed(Pods(PodDeps{}),
		pod("pending", func(*corev1.Pod) {}),
		pod("running", func(p *corev1.Pod) {
			p.Status.Phase, p.Status.PodIP, p.Spec.NodeName = corev1.PodRunning, "10.244.0.5", "node-1"
			p.Status.PodIPs = []corev1.PodIP{{IP: "10.244.0.5"}}
			p.Status.ContainerStatuses = []corev1.ContainerStatus{running}
		}),
		pod("crashing", func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodRunning
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{
				Name: "c", RestartCount: 3, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
				LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(time.Now().Add(-time.Minute))}},
			}}
		}),
		pod("initializing", func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "a"}, {Name: "b", RestartPolicy: always}}
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "a", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}, {Name: "b"}}
		}),
		pod("init-failed", func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "a"}}
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "a", RestartCount: 2, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 7}}}}
		}),
		pod("sidecar", func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "s", RestartPolicy: always}}
			p.Status.Phase = corev1.PodRunning
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "s", Started: ptr.To(true), Ready: true, State: running.State}}
			p.Status.ContainerStatuses = []corev1.ContainerStatus{running}
		}),
		pod("done", func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodSucceeded
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed"}}}}
		}),
		pod("going", func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodRunning
			p.DeletionTimestamp = ptr.To(metav1.Now())
			p.Status.ContainerStatuses = []corev1.ContainerStatus{running}
		}),
		pod("gated", func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulingGated}}
		}),
		pod("gates", func(p *corev1.Pod) {
			p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "x/a"}, {ConditionType: "x/b"}}
			p.Status.Conditions = []corev1.PodCondition{{Type: "x/a", Status: corev1.ConditionTrue}}
			p.Status.NominatedNodeName = "node-2"
		}),
	), `
Name | Ready | Status | Restarts | Age | [IP] | [Node] | [Nominated Node] | [Readiness Gates]
pending | 0/1 | Pending | 0 | 5m | <none> | <none> | <none> | <none>
running | 1/1 | Running | 0 | 5m | 10.244.0.5 | node-1 | <none> | <none>
crashing | 0/1 | CrashLoopBackOff | 3 (60s ago) | 5m | <none> | <none> | <none> | <none>
initializing | 0/2 | Init:0/2 | 0 | 5m | <none> | <none> | <none> | <none>
init-failed | 0/1 | Init:ExitCode:7 | 2 | 5m | <none> | <none> | <none> | <none>
sidecar | 2/2 | Running | 0 | 5m | <none> | <none> | <none> | <none>
done | 0/1 | Completed | 0 | 5m | <none> | <none> | <none> | <none>
going | 1/1 | Terminating | 0 | 5m | <none> | <none> | <none> | <none>
gated | 0/1 | SchedulingGated | 0 | 5m | <none> | <none> | <none> | <none>
gates | 0/1 | Pending | 0 | 5m | <none> | <none> | node-2 | 1/2`)
}

func TestNodeTable(t *testing.T) {
	ready := &corev1.Node{ObjectMeta: made("node-1")}
	ready.Labels = map[string]string{"node-role.kubernetes.io/control-plane": "", "kubernetes.io/role": "edge"}
	ready.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	ready.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.89.0.11"}}
	ready.Status.NodeInfo = corev1.NodeSystemInfo{KubeletVersion: "v1.37.2", OSImage: "Debian 12", KernelVersion: "6.18", ContainerRuntimeVersion: "sampan://1"}
	cordoned := &corev1.Node{ObjectMeta: made("node-2"), Spec: corev1.NodeSpec{Unschedulable: true}}
	assertTable(t, printed(Nodes(nil), ready, cordoned), `
Name | Status | Roles | Age | Version | [Internal-IP] | [External-IP] | [OS-Image] | [Kernel-Version] | [Container-Runtime]
node-1 | Ready | control-plane,edge | 5m | v1.37.2 | 10.89.0.11 | <none> | Debian 12 | 6.18 | sampan://1
node-2 | Unknown,SchedulingDisabled | <none> | 5m |  | <none> | <none> | <unknown> | <unknown> | <unknown>`)
}

func TestServiceTable(t *testing.T) {
	s := func(name string, spec corev1.ServiceSpec) *corev1.Service {
		return &corev1.Service{ObjectMeta: made(name), Spec: spec}
	}
	port := corev1.ServicePort{Port: 80, Protocol: corev1.ProtocolTCP}
	node := corev1.ServicePort{Port: 80, NodePort: 30080, Protocol: corev1.ProtocolTCP}
	assertTable(t, printed(Services(nil, nil),
		s("web", corev1.ServiceSpec{Type: "ClusterIP", ClusterIPs: []string{"10.96.0.2"}, Ports: []corev1.ServicePort{port}, Selector: map[string]string{"b": "2", "a": "1"}}),
		s("np", corev1.ServiceSpec{Type: "NodePort", ClusterIPs: []string{"10.96.0.3"}, Ports: []corev1.ServicePort{node, port}}),
		s("lb", corev1.ServiceSpec{Type: "LoadBalancer", ClusterIPs: []string{"10.96.0.4"}}),
		s("ext", corev1.ServiceSpec{Type: "ExternalName", ExternalName: "example.com"}),
	), `
Name | Type | Cluster-IP | External-IP | Port(s) | Age | [Selector]
web | ClusterIP | 10.96.0.2 | <none> | 80/TCP | 5m | a=1,b=2
np | NodePort | 10.96.0.3 | <none> | 80:30080/TCP,80/TCP | 5m | <none>
lb | LoadBalancer | 10.96.0.4 | <pending> | <none> | 5m | <none>
ext | ExternalName | <none> | example.com | <none> | 5m | <none>`)
}

func TestEventTable(t *testing.T) {
	ago := metav1.NewTime(time.Now().Add(-2 * time.Minute))
	old := &corev1.Event{
		ObjectMeta: made("web.1"), InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "web"}, Reason: "Killing", Message: "Stopping\n", Type: "Normal",
		FirstTimestamp: ago, LastTimestamp: ago, Count: 3, Source: corev1.EventSource{Component: "kubelet", Host: "node-1"},
	}
	series := &corev1.Event{
		ObjectMeta: made("web.2"), InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "web"}, Reason: "Scheduled", Type: "Normal",
		EventTime: metav1.NewMicroTime(ago.Time), ReportingController: "default-scheduler",
	}
	assertTable(t, printed(Events(time.Hour), old, series), `
Last Seen | Type | Reason | Object | [Subobject] | [Source] | Message | [First Seen] | [Count] | [Name]
2m | Normal | Killing | pod/web |  | kubelet, node-1 | Stopping | 2m | 3 | web.1
2m | Normal | Scheduled | pod/web |  | default-scheduler |  | 2m | 1 | web.2`)
}

func TestSmallTables(t *testing.T) {
	assertTable(t, printed(ConfigMaps(), &corev1.ConfigMap{ObjectMeta: made("c"), Data: map[string]string{"a": ""}, BinaryData: map[string][]byte{"b": nil}}), `
Name | Data | Age
c | 2 | 5m`)
	assertTable(t, printed(Secrets(), &corev1.Secret{ObjectMeta: made("s"), Type: "Opaque"}), `
Name | Type | Data | Age
s | Opaque | 0 | 5m`)
	assertTable(t, printed(Namespaces(), &corev1.Namespace{ObjectMeta: made("n"), Status: corev1.NamespaceStatus{Phase: "Active"}}), `
Name | Status | Age
n | Active | 5m`)
	subset := corev1.EndpointSubset{Ports: []corev1.EndpointPort{{Port: 80}}}
	for _, ip := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"} {
		subset.Addresses = append(subset.Addresses, corev1.EndpointAddress{IP: ip})
	}
	assertTable(t, printed(Endpoints(), &corev1.Endpoints{ObjectMeta: made("e"), Subsets: []corev1.EndpointSubset{subset}}, &corev1.Endpoints{ObjectMeta: made("none")}), `
Name | Endpoints | Age
e | 10.0.0.1:80,10.0.0.2:80,10.0.0.3:80 + 2 more... | 5m
none | <none> | 5m`)
}
