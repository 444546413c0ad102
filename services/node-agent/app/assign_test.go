package app_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/devices/fakeplugin"
)

// podResources asks the pod resources API about a pod's first container.
func (s *site) podResources(pod string) *podresourcesv1.ContainerResources {
	s.t.Helper()
	conn, err := grpc.NewClient("passthrough:///unix", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(s.root, "pod-resources", "kubelet.sock"))
	}))
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	client := podresourcesv1.NewPodResourcesListerClient(conn)
	var response *podresourcesv1.GetPodResourcesResponse
	s.eventually("the pod to be known", func() error {
		response, err = client.Get(s.t.Context(), &podresourcesv1.GetPodResourcesRequest{PodName: pod, PodNamespace: metav1.NamespaceDefault})
		return err
	})
	list, err := client.List(s.t.Context(), &podresourcesv1.ListPodResourcesRequest{})
	if err != nil || len(list.GetPodResources()) == 0 {
		s.t.Fatalf("listed %v, %v", list, err)
	}
	return response.GetPodResources().GetContainers()[0]
}

func (s *site) awaitAllocatable(name corev1.ResourceName, want string) {
	s.t.Helper()
	s.eventually(fmt.Sprintf("%s of %s to be allocatable", want, name), func() error {
		node, err := s.client.CoreV1().Nodes().Get(s.t.Context(), nodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got := node.Status.Allocatable[name]; got.String() != want {
			return fmt.Errorf("it is %s", got.String())
		}
		return nil
	})
}

func TestDevicesOfPluginsReachPods(t *testing.T) {
	s := newSite(t)
	const fake = "example.com/fake"
	plugin, err := fakeplugin.Start(t.Context(), filepath.Join(s.root, "device-plugins"), fake, "d1", "d2")
	if err != nil {
		t.Fatal(err)
	}
	defer plugin.Stop()
	s.awaitAllocatable(fake, "2")
	device := func(name string, count int) {
		s.apply(fmt.Sprintf(`
metadata: {name: %s}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: registry.test/tool:v1, args: [stay, env, /dev/fake], resources: {limits: {example.com/fake: %d}}}
`, name, count))
	}
	device("one", 1)
	s.until("one", "to run", running)
	s.logged("one", corev1.PodLogOptions{}, func(log string) bool {
		return strings.Contains(log, "FAKE_DEVICES=d1\n") && strings.Contains(log, "/dev/fake is a device")
	})
	if got := s.podResources("one").GetDevices(); len(got) != 1 || got[0].GetResourceName() != fake || got[0].GetDeviceIds()[0] != "d1" {
		t.Errorf("the pod resources API tells of %v", got)
	}
	if len(plugin.Started()) != 1 {
		t.Errorf("the plugin was told of %v", plugin.Started())
	}
	device("greedy", 2)
	rejected := s.until("greedy", "to be rejected", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodFailed })
	if rejected.Status.Reason != "OutOf"+fake || !strings.Contains(rejected.Status.Message, "Node didn't have enough resource: example.com/fake, requested: 2, used: 1, capacity: 2") {
		t.Errorf("it says %s: %s", rejected.Status.Reason, rejected.Status.Message)
	}
	plugin.Refuse(true)
	device("refused", 1)
	rejected = s.until("refused", "to be rejected", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodFailed })
	if rejected.Status.Reason != "UnexpectedAdmissionError" || !strings.Contains(rejected.Status.Message, "it does not want to, which is unexpected") {
		t.Errorf("it says %s: %s", rejected.Status.Reason, rejected.Status.Message)
	}
	plugin.Refuse(false)
	plugin.Stop()
	s.awaitAllocatable(fake, "0")
	s.kill()
	s.startAgent()
	plugins := filepath.Join(s.root, "device-plugins")
	s.eventually("the agent to take plugins", func() error { // the killed one's socket is still there
		conn, err := net.Dial("unix", filepath.Join(plugins, "kubelet.sock"))
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
	if err := plugin.Register(t.Context(), plugins); err != nil {
		t.Fatal(err)
	}
	s.awaitAllocatable(fake, "2")
	if got := s.podResources("one").GetDevices(); len(got) != 1 || got[0].GetDeviceIds()[0] != "d1" {
		t.Errorf("after restarts the pod has %v", got)
	}
	s.remove("one")
	s.gone("one")
	device("both", 2)
	s.until("both", "to run", running)
}

func TestStaticPoliciesGiveWholeCPUsAndNUMANodes(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("needs two CPUs")
	}
	s := newSite(t, "--cpu-manager-policy=static", "--reserved-cpus=0", "--memory-manager-policy=Static", "--system-reserved=memory=100Mi",
		"--eviction-hard=memory.available<0%", "--reserved-memory=0:memory=100Mi")
	s.apply(`
metadata: {name: shares}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: registry.test/tool:v1}
`)
	shares := s.until("shares", "to run", running)
	all := fmt.Sprintf("0-%d", runtime.NumCPU()-1)
	cpus := func(pod *corev1.Pod) string { return s.limit(pod, false, "cpuset/cpuset.cpus", "cpuset.cpus") }
	if got := cpus(shares); got != all {
		t.Errorf("the shared container runs on %s", got)
	}
	s.apply(`
metadata: {name: alone}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: registry.test/tool:v1, resources: {limits: {cpu: 1, memory: 32Mi}}}
`)
	alone := s.until("alone", "to run", running)
	if got := cpus(alone); got != "1" {
		t.Errorf("the container runs on %s", got)
	}
	if got := s.limit(alone, false, "cpuset/cpuset.mems", "cpuset.mems"); got != "0" {
		t.Errorf("its memory is of %s", got)
	}
	rest := strings.Replace(all, "0-1", "0", 1)
	if runtime.NumCPU() > 2 {
		rest = fmt.Sprintf("0,2-%d", runtime.NumCPU()-1)
	}
	if runtime.NumCPU() == 3 {
		rest = "0,2"
	}
	s.eventually("the shared container to move", func() error {
		if got := cpus(shares); got != rest {
			return fmt.Errorf("it runs on %s, not on %s", got, rest)
		}
		return nil
	})
	got := s.podResources("alone")
	if len(got.GetCpuIds()) != 1 || got.GetCpuIds()[0] != 1 || len(got.GetMemory()) != 1 || got.GetMemory()[0].GetSize() != 32<<20 {
		t.Errorf("the pod resources API tells of %v", got)
	}
	for _, file := range []string{"cpu_manager_state", "memory_manager_state"} {
		if data, err := os.ReadFile(filepath.Join(s.root, file)); err != nil || !strings.Contains(string(data), string(alone.UID)) {
			t.Errorf("%s: %s, %v", file, data, err)
		}
	}
	s.kill()
	s.startAgent()
	s.remove("alone")
	s.gone("alone")
	s.eventually("the shared container to move back", func() error {
		if got := cpus(shares); got != all {
			return fmt.Errorf("it runs on %s", got)
		}
		return nil
	})
}

// The machine has a first NUMA node; the plugin tells of another one too.
func TestTopologyPolicyDecidesOnNUMANodes(t *testing.T) {
	s := newSite(t, "--topology-manager-policy=single-numa-node", "--topology-manager-scope=pod")
	const fake = "example.com/fake"
	plugin, err := fakeplugin.Start(t.Context(), filepath.Join(s.root, "device-plugins"), fake)
	if err != nil {
		t.Fatal(err)
	}
	defer plugin.Stop()
	for id, node := range map[string]int64{"d1": 62, "d2": 0, "d3": 62} {
		plugin.Place(id, node)
		plugin.Set(id, "Healthy")
	}
	s.awaitAllocatable(fake, "3")
	apply := func(name string, count int) {
		s.apply(fmt.Sprintf(`
metadata: {name: %s}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: registry.test/tool:v1, args: [stay, env], resources: {limits: {example.com/fake: %d}}}
`, name, count))
	}
	apply("near", 1)
	s.until("near", "to run", running)
	apply("far", 2)
	rejected := s.until("far", "to be rejected", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodFailed })
	if rejected.Status.Reason != "TopologyAffinityError" || rejected.Status.Message != "Pod was rejected: Resources cannot be allocated with Topology locality" {
		t.Errorf("it says %s: %s", rejected.Status.Reason, rejected.Status.Message)
	}
	apply("none", 0)
	s.until("none", "to run", running)
}
