package node_test

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/node"
)

func TestHugePagesAreReadBySize(t *testing.T) {
	sys := t.TempDir()
	for dir, count := range map[string]string{"hugepages-2048kB": "3\n", "hugepages-1048576kB": "0\n"} {
		path := filepath.Join(sys, "kernel", "mm", "hugepages", dir)
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path, "nr_hugepages"), []byte(count), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := node.HugePages(sys)
	if want := (map[corev1.ResourceName]int64{"hugepages-2Mi": 6 << 20, "hugepages-1Gi": 0}); err != nil || !maps.Equal(got, want) {
		t.Errorf("read %v, %v", got, err)
	}
	if got, err := node.HugePages(t.TempDir()); err != nil || len(got) != 0 {
		t.Errorf("without any: %v, %v", got, err)
	}
}

func TestHugePagesAreNoOrdinaryMemory(t *testing.T) {
	n := node.New(node.Config{RootDir: t.TempDir(), Machine: node.Machine{Memory: 1 << 30, HugePages: map[corev1.ResourceName]int64{"hugepages-2Mi": 256 << 20}}})
	capacity, allocatable := n.Capacity(), n.Allocatable()
	for name, want := range map[corev1.ResourceName][2]string{"hugepages-2Mi": {"256Mi", "256Mi"}, corev1.ResourceMemory: {"1Gi", "768Mi"}} {
		has, gives := capacity[name], allocatable[name]
		if has.String() != want[0] || gives.String() != want[1] {
			t.Errorf("of %s the node has %s and gives %s", name, has.String(), gives.String())
		}
	}
}
