package cpus_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"

	"github.com/sampan-io/sampan/services/node-agent/internal/cpus"
	"github.com/sampan-io/sampan/services/node-agent/internal/topology"
)

// machine has two sockets of two cores with two threads: 0 and 4 are one core.
func machine() cpus.Topology {
	t := cpus.Topology{}
	for cpu := range 8 {
		t[cpu] = cpus.Place{Socket: cpu % 4 / 2, Node: cpu % 4 / 2, Core: cpu % 2}
	}
	return t
}

func guaranteed(uid string, counts ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}}
	for i, n := range counts {
		list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(n), corev1.ResourceMemory: resource.MustParse("1Mi")}
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: string(rune('a' + i)), Resources: corev1.ResourceRequirements{Requests: list, Limits: list}})
	}
	return pod
}

func open(t *testing.T, file string) *cpus.Pool {
	t.Helper()
	pool, err := cpus.Open(file, machine(), 0, cpuset.New(0))
	if err != nil {
		t.Fatal(err)
	}
	return pool
}

// allocate gives a pod its CPUs wherever they are.
func allocate(pool *cpus.Pool, pod *corev1.Pod) (changed bool, err error) {
	claim := pool.Begin(pod)
	for i := range pod.Spec.InitContainers {
		if err := claim.Give(&pod.Spec.InitContainers[i], false, 0); err != nil {
			return false, err
		}
	}
	for i := range pod.Spec.Containers {
		if err := claim.Give(&pod.Spec.Containers[i], true, 0); err != nil {
			return false, err
		}
	}
	return claim.Commit()
}

func TestCPUsComeFromTheNUMANodesTheyShould(t *testing.T) {
	pool := open(t, filepath.Join(t.TempDir(), "state")) // 0 is reserved
	first := pool.Begin(guaranteed("first", "4"))
	hints := first.Hints(4)
	if len(hints) != 2 || hints[0].Nodes != topology.Of(1) || !hints[0].Preferred || hints[1].Preferred {
		t.Errorf("hints for four %+v", hints)
	}
	if hints = first.Hints(7); len(hints) != 1 || !hints[0].Preferred {
		t.Errorf("hints for seven, which no node has alone: %+v", hints)
	}
	if hints = first.Hints(0); hints != nil {
		t.Errorf("hints for none %+v", hints)
	}
	pod := guaranteed("second", "2", "2")
	claim := pool.Begin(pod)
	for i, on := range []topology.Nodes{topology.Of(0), topology.Of(0)} {
		if err := claim.Give(&pod.Spec.Containers[i], true, on); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := claim.Commit(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"a": "1,5", "b": "2,4"} { // the node had three
		if set, _ := pool.Of("second", name); set.String() != want {
			t.Errorf("container %s has %s, want %s", name, set, want)
		}
	}
}

func TestWholeCPUsAreGivenByTopology(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cpu_manager_state")
	pool := open(t, file)
	for _, step := range []struct {
		pod  *corev1.Pod
		want string // of container a; "" shares
	}{
		{guaranteed("core", "2"), "1,5"},
		{guaranteed("thread", "1"), "4"}, // the sibling of the reserved one is alone already
		{guaranteed("half", "1500m"), ""},
		{guaranteed("socket", "4"), "2-3,6-7"},
	} {
		if _, err := allocate(pool, step.pod); err != nil {
			t.Fatalf("%s: %v", step.pod.UID, err)
		}
		set, own := pool.Of(step.pod.UID, "a")
		if own != (step.want != "") || (own && set.String() != step.want) {
			t.Errorf("%s has %s, its own: %v", step.pod.UID, set, own)
		}
	}
	if got := pool.Shared().String(); got != "0" {
		t.Errorf("shared are %s", got)
	}
	if _, err := allocate(pool, guaranteed("more", "1")); err == nil || !strings.Contains(err.Error(), "not enough cpus available to satisfy request: requested=1, available=0") {
		t.Errorf("error %v", err)
	}
	burstable := guaranteed("burstable", "1")
	burstable.Spec.Containers[0].Resources.Limits = nil
	if changed, err := allocate(pool, burstable); changed || err != nil {
		t.Errorf("a burstable pod: %v, %v", changed, err)
	}

	again := open(t, file) // after a restart
	if set, own := again.Of("socket", "a"); !own || set.String() != "2-3,6-7" {
		t.Errorf("after a restart the pod has %s", set)
	}
	if changed, err := again.Release("socket"); !changed || err != nil {
		t.Errorf("released: %v, %v", changed, err)
	}
	if got := again.Shared().String(); got != "0,2-3,6-7" {
		t.Errorf("shared are %s", got)
	}
}

func TestInitContainersLeaveTheirCPUs(t *testing.T) {
	pool := open(t, filepath.Join(t.TempDir(), "state"))
	pod := guaranteed("p", "2")
	pod.Spec.InitContainers = guaranteed("", "4").Spec.Containers
	pod.Spec.InitContainers[0].Name = "init"
	if _, err := allocate(pool, pod); err != nil {
		t.Fatal(err)
	}
	initial, _ := pool.Of("p", "init")
	app, _ := pool.Of("p", "a")
	if !app.IsSubsetOf(initial) || initial.Size() != 4 || app.Size() != 2 {
		t.Errorf("init has %s, the app %s", initial, app)
	}
}

func TestStateThatDoesNotFitIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state")
	open(t, file)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"half":         string(data[:len(data)/2]),
		"other policy": strings.Replace(string(data), "static", "none", 1),
		"changed":      strings.Replace(string(data), "0-7", "0-6", 1),
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := cpus.Open(file, machine(), 1, cpuset.New()); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	if _, err := cpus.Open(filepath.Join(t.TempDir(), "x"), machine(), 0, cpuset.New()); err == nil {
		t.Error("no reserved CPUs were taken")
	}
	if _, err := cpus.Open(filepath.Join(t.TempDir(), "x"), machine(), 0, cpuset.New(99)); err == nil {
		t.Error("a CPU that is not there was reserved")
	}
}

func TestTopologyOfThisMachineIsRead(t *testing.T) {
	topology, err := cpus.ReadTopology("/sys")
	if err != nil || topology.All().IsEmpty() {
		t.Errorf("got %v, %v", topology, err)
	}
}
