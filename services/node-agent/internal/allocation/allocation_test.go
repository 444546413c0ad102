package allocation_test

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sampan-io/sampan/services/node-agent/internal/allocation"
)

func list(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
}

func newPod(cpu, memory string, policy ...corev1.ContainerResizePolicy) *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "main", ResizePolicy: policy, Resources: corev1.ResourceRequirements{Requests: list(cpu, memory), Limits: list(cpu, memory)},
	}}}}
}

func TestRecordKeepsWhatWasGivenUntilMoreIs(t *testing.T) {
	small, large := newPod("100m", "32Mi"), newPod("200m", "32Mi")
	record := allocation.New(small)
	if !record.Matches(small) || record.Matches(large) {
		t.Error("the record does not match its pod alone")
	}
	given := record.Apply(large).Spec.Containers[0].Resources.Requests.Cpu()
	if given.String() != "100m" || large.Spec.Containers[0].Resources.Requests.Cpu().String() != "200m" {
		t.Errorf("the pod was given %s", given)
	}
	if changes := record.Changes(small); len(changes) > 0 {
		t.Errorf("changes of a container that was never made: %v", changes)
	}
}

func TestChangesFollowTheResizePolicy(t *testing.T) {
	restartMemory := corev1.ContainerResizePolicy{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer}
	for _, c := range []struct {
		name             string
		cpu, memory      string
		changes, restart bool
	}{
		{"nothing", "100m", "32Mi", false, false},
		{"the same in other words", "0.1", "32Mi", false, false},
		{"CPU", "150m", "32Mi", true, false},
		{"memory", "100m", "64Mi", true, true},
		{"both", "150m", "16Mi", true, true},
	} {
		record := allocation.New(newPod("100m", "32Mi", restartMemory))
		record.Actuated.Containers["main"] = record.Allocated.Containers["main"]
		pod := newPod(c.cpu, c.memory, restartMemory)
		changes := record.Changes(pod)
		if got := len(changes) == 1; got != c.changes || (got && changes[0].Restart != c.restart) {
			t.Errorf("%s: got %+v", c.name, changes)
		}
	}
}

func TestLargestHoldsOldAndNew(t *testing.T) {
	record := allocation.New(newPod("100m", "64Mi"))
	record.Actuated.Containers["main"] = record.Allocated.Containers["main"]
	got := record.Largest(newPod("300m", "32Mi")).Spec.Containers[0].Resources.Limits
	if got.Cpu().String() != "300m" || got.Memory().String() != "64Mi" {
		t.Errorf("got %v", got)
	}
}

func TestRecordOutlivesARestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pod")
	if record, err := allocation.Load(dir); record != nil || err != nil {
		t.Fatalf("got %v, %v of nothing", record, err)
	}
	record := allocation.New(newPod("100m", "32Mi"))
	record.Restarting["main"] = true
	if err := record.Save(dir); err != nil {
		t.Fatal(err)
	}
	again, err := allocation.Load(dir)
	if err != nil || !again.Matches(newPod("100m", "32Mi")) || !again.Restarting["main"] {
		t.Errorf("got %+v, %v", again, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "resources.json"), []byte(`{"allo`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := allocation.Load(dir); err == nil {
		t.Error("half a record was taken")
	}
}
