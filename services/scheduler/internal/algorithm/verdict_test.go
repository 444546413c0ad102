package algorithm_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/sampan-io/sampan/services/scheduler/internal/algorithm"
	"github.com/sampan-io/sampan/services/scheduler/internal/cluster"
	"github.com/sampan-io/sampan/services/scheduler/internal/config"
	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
)

var rewrite = flag.Bool("rewrite", false, "write the verdicts that come out into testdata")

// scenario is the input half of a file in testdata: a cluster, and pods that are
// scheduled one after the other.
type scenario struct {
	Namespaces []corev1.Namespace `json:"namespaces,omitempty"`
	Nodes      []corev1.Node      `json:"nodes"`
	Pods       []corev1.Pod       `json:"pods"`
}

// TestVerdicts schedules each scenario and compares what comes out with the part of
// the file after the line of dashes.
func TestVerdicts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			input, want, _ := strings.Cut(string(content), "\n---\n")
			got := play(t, input)
			if *rewrite {
				if err := os.WriteFile(file, []byte(input+"\n---\n"+got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != want {
				t.Errorf("verdicts differ\n got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

func play(t *testing.T, input string) string {
	t.Helper()
	var s scenario
	if err := yaml.UnmarshalStrict([]byte(input), &s); err != nil {
		t.Fatal(err)
	}
	snapshot := cluster.NewSnapshot()
	for i := range s.Namespaces {
		snapshot.SetNamespace(s.Namespaces[i].Name, labels.Set(s.Namespaces[i].Labels))
	}
	for i := range s.Nodes {
		node := &s.Nodes[i]
		if node.Labels == nil {
			node.Labels = map[string]string{}
		}
		node.Labels[corev1.LabelHostname] = node.Name
		if _, ok := node.Status.Allocatable[corev1.ResourcePods]; !ok {
			node.Status.Allocatable[corev1.ResourcePods] = *quantity("110")
		}
		snapshot.Replace(node.Name, cluster.NewNode(node, i))
	}
	profile := mustProfile(t)
	core := algorithm.Algorithm{} // without Pick the first of equals is taken
	var out strings.Builder
	for i := range s.Pods {
		pod := &s.Pods[i]
		if pod.Namespace == "" {
			pod.Namespace = "default"
		}
		pod.UID = types.UID(pod.Name)
		parsed, err := cluster.NewPod(pod)
		if err != nil {
			t.Fatal(err)
		}
		if pod.Spec.NodeName != "" { // is there already
			snapshot.Replace(pod.Spec.NodeName, snapshot.Node(pod.Spec.NodeName).With(parsed))
			continue
		}
		decision, err := core.Schedule(context.Background(), profile, framework.NewCycleState(), parsed, snapshot)
		if err != nil {
			fmt.Fprintf(&out, "%s: %v\n", pod.Name, err)
			continue
		}
		fmt.Fprintf(&out, "%s -> %s\n", pod.Name, decision.Node)
		snapshot.Replace(decision.Node, snapshot.Node(decision.Node).With(parsed))
	}
	return out.String()
}

func mustProfile(t testing.TB) *framework.Profile {
	t.Helper()
	profiles, err := config.Default().Build(framework.Handle{})
	if err != nil {
		t.Fatal(err)
	}
	return profiles[config.DefaultSchedulerName]
}
