package numa_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sampan-io/sampan/services/node-agent/internal/numa"
	"github.com/sampan-io/sampan/services/node-agent/internal/topology"
)

const gibi = 1 << 30

func guaranteed(uid, memory string) *corev1.Pod {
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse(memory)}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}, Spec: corev1.PodSpec{Containers: []corev1.Container{
		{Name: "a", Resources: corev1.ResourceRequirements{Requests: list, Limits: list}},
	}}}
}

func open(t *testing.T, file string) *numa.Pool {
	t.Helper()
	pool, err := numa.Open(file, map[int]int64{0: 8 * gibi, 1: 8 * gibi}, map[int]int64{0: gibi, 1: gibi}, 2*gibi)
	if err != nil {
		t.Fatal(err)
	}
	return pool
}

// allocate gives a pod memory wherever it is.
func allocate(pool *numa.Pool, pod *corev1.Pod) error {
	claim := pool.Begin(pod)
	for i := range pod.Spec.Containers {
		if err := claim.Give(&pod.Spec.Containers[i], true, 0); err != nil {
			return err
		}
	}
	return claim.Commit()
}

func TestMemoryComesFromTheNUMANodesItShould(t *testing.T) {
	pool := open(t, filepath.Join(t.TempDir(), "state"))
	pod := guaranteed("p", "5Gi")
	claim := pool.Begin(pod)
	if hints := claim.Hints(5 * gibi); len(hints) != 3 || !hints[0].Preferred || !hints[1].Preferred || hints[2].Preferred {
		t.Errorf("hints %+v", hints)
	}
	if err := claim.Give(&pod.Spec.Containers[0], true, topology.Of(1)); err != nil {
		t.Fatal(err)
	}
	if hints := claim.Hints(5 * gibi); len(hints) != 1 || hints[0].Nodes != topology.Of(0) {
		t.Errorf("hints for another container %+v", hints)
	}
	if err := claim.Commit(); err != nil {
		t.Fatal(err)
	}
	if block, _ := pool.Of("p", "a"); !slices.Equal(block.Nodes, []int{1}) {
		t.Errorf("it has %+v", block)
	}
	next := guaranteed("q", "5Gi")
	claim = pool.Begin(next)
	if err := claim.Give(&next.Spec.Containers[0], true, topology.Of(1)); err != nil {
		t.Fatal(err)
	}
	if err := claim.Commit(); err != nil {
		t.Fatal(err)
	}
	if block, _ := pool.Of("q", "a"); !slices.Equal(block.Nodes, []int{0}) {
		t.Errorf("what does not fit where it should has %+v", block)
	}
}

func TestMemoryIsOfAsFewNodesAsCanBe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "memory_manager_state")
	pool := open(t, file)
	for _, step := range []struct {
		pod  *corev1.Pod
		want []int // nil is refused
	}{
		{guaranteed("first", "5Gi"), []int{0}},
		{guaranteed("second", "3Gi"), []int{1}},
		{guaranteed("third", "2Gi"), []int{0}},
		{guaranteed("both", "10Gi"), nil}, // the nodes belong to single ones
		{guaranteed("large", "5Gi"), nil},
	} {
		err := allocate(pool, step.pod)
		block, own := pool.Of(step.pod.UID, "a")
		if (err == nil) != (step.want != nil) || own != (step.want != nil) || !slices.Equal(block.Nodes, step.want) {
			t.Errorf("%s: has %+v, error %v", step.pod.UID, block, err)
		}
	}
	again := open(t, file)
	for _, uid := range []types.UID{"first", "second", "third"} {
		if _, own := again.Of(uid, "a"); !own {
			t.Errorf("after a restart pod %s has nothing", uid)
		}
		if err := again.Release(uid); err != nil {
			t.Error(err)
		}
	}
	if err := allocate(again, guaranteed("both", "10Gi")); err != nil {
		t.Error(err)
	}
	burstable := guaranteed("burstable", "1Gi")
	burstable.Spec.Containers[0].Resources.Limits = nil
	if err := allocate(again, burstable); err != nil {
		t.Error(err)
	}
	if _, own := again.Of("burstable", "a"); own {
		t.Error("a burstable pod was given memory of its own")
	}
}

func TestStateAndReservationsThatDoNotFitAreRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state")
	pool := open(t, file)
	if err := allocate(pool, guaranteed("p", "1Gi")); err != nil {
		t.Fatal(err)
	}
	nodes := map[int]int64{0: 8 * gibi}
	for name, try := range map[string]func() error{
		"another sum":     func() error { _, err := numa.Open(file+"x", nodes, map[int]int64{0: gibi}, 2*gibi); return err },
		"no such node":    func() error { _, err := numa.Open(file+"x", nodes, map[int]int64{3: gibi}, gibi); return err },
		"another machine": func() error { _, err := numa.Open(file, nodes, map[int]int64{0: gibi}, gibi); return err },
		"a smaller machine": func() error {
			_, err := numa.Open(file, map[int]int64{0: 3 * gibi / 2, 1: 8 * gibi}, map[int]int64{0: gibi}, gibi)
			return err
		},
	} {
		if try() == nil {
			t.Errorf("%s was taken", name)
		}
	}
	if _, err := numa.Open(file, map[int]int64{0: 16 * gibi, 1: 8 * gibi}, map[int]int64{0: gibi}, gibi); err != nil {
		t.Errorf("a machine whose memory has grown: %v", err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(data), "Static", "None", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := numa.Open(file, nodes, map[int]int64{0: gibi}, gibi); err == nil {
		t.Error("a changed file was taken")
	}
}

func TestNodesOfThisMachineAreRead(t *testing.T) {
	nodes, err := numa.ReadNodes("/sys", gibi)
	if err != nil || len(nodes) == 0 || nodes[0] <= 0 {
		t.Errorf("got %v, %v", nodes, err)
	}
	if nodes, err := numa.ReadNodes(t.TempDir(), gibi); err != nil || nodes[0] != gibi {
		t.Errorf("without nodes: %v, %v", nodes, err)
	}
}
