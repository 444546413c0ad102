package cluster_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/sampan-io/sampan/services/scheduler/internal/cache"
	"github.com/sampan-io/sampan/services/scheduler/internal/cluster"
)

const zoneKey = "zone"

// world is what the cache was told, kept in the plainest way: the answers of the
// index must be those of walking over it.
type world struct {
	nodes map[string]*corev1.Node
	pods  map[types.UID]*corev1.Pod
}

func (w *world) count(key, value string, counts func(*corev1.Pod) int64) (n int64) {
	for _, pod := range w.pods {
		node := w.nodes[pod.Spec.NodeName]
		if node == nil {
			continue
		}
		if v, ok := node.Labels[key]; ok && v == value {
			n += counts(pod)
		}
	}
	return n
}

func drawNode(t *rapid.T, name string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"host": name}}}
	if zone := rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "zone"); zone != "" {
		node.Labels[zoneKey] = zone
	}
	node.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourcePods: resource.MustParse("10")}
	return node
}

func drawPod(t *rapid.T, uid, node string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "namespace"), Name: uid, UID: types.UID(uid),
		Labels: map[string]string{"app": rapid.SampledFrom([]string{"web", "db"}).Draw(t, "app")},
	}}
	pod.Spec.NodeName = node
	pod.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}}}}
	term := corev1.PodAffinityTerm{TopologyKey: zoneKey, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}
	switch rapid.IntRange(0, 3).Draw(t, "terms") {
	case 1:
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term}}}
	case 2:
		weight := rapid.Int32Range(1, 100).Draw(t, "weight")
		pod.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: weight, PodAffinityTerm: term}}}}
	}
	if rapid.IntRange(0, 4).Draw(t, "terminating") == 0 {
		now := metav1.Now()
		pod.DeletionTimestamp = &now
	}
	return pod
}

// TestIndexEqualsWalkingAllPods drives cache and snapshot with random changes, and
// compares every number of the index with one counted afresh.
func TestIndexEqualsWalkingAllPods(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{nodes: map[string]*corev1.Node{}, pods: map[types.UID]*corev1.Pod{}}
		known, snapshot := cache.New(), cluster.NewSnapshot()
		nodeNames := []string{"n0", "n1", "n2", "n3", "n4"}
		serial := 0
		anyPod := func(t *rapid.T) *corev1.Pod {
			uids := slices.Sorted(maps.Keys(w.pods))
			if len(uids) == 0 {
				t.Skip("no pods")
			}
			return w.pods[rapid.SampledFrom(uids).Draw(t, "pod")]
		}
		t.Repeat(map[string]func(*rapid.T){
			"set node": func(t *rapid.T) {
				node := drawNode(t, rapid.SampledFrom(nodeNames).Draw(t, "node"))
				w.nodes[node.Name] = node
				known.SetNode(node)
			},
			"remove node": func(t *rapid.T) {
				name := rapid.SampledFrom(nodeNames).Draw(t, "node")
				delete(w.nodes, name)
				known.RemoveNode(name)
			},
			"add pod": func(t *rapid.T) {
				serial++
				pod := drawPod(t, fmt.Sprint("p", serial), rapid.SampledFrom(nodeNames).Draw(t, "node"))
				w.pods[pod.UID] = pod
				if err := known.SetPod(pod); err != nil {
					t.Fatal(err)
				}
			},
			"change pod": func(t *rapid.T) {
				old := anyPod(t)
				pod := drawPod(t, string(old.UID), old.Spec.NodeName)
				w.pods[pod.UID] = pod
				if err := known.SetPod(pod); err != nil {
					t.Fatal(err)
				}
			},
			"remove pod": func(t *rapid.T) {
				pod := anyPod(t)
				delete(w.pods, pod.UID)
				known.RemovePod(pod.UID)
			},
			"assume and forget": func(t *rapid.T) {
				serial++
				pod, err := cluster.NewPod(drawPod(t, fmt.Sprint("p", serial), ""))
				if err != nil {
					t.Fatal(err)
				}
				if err := known.Assume(pod, rapid.SampledFrom(nodeNames).Draw(t, "node")); err != nil {
					t.Fatal(err)
				}
				if rapid.Bool().Draw(t, "look between") {
					known.Update(snapshot)
				}
				known.Forget(pod.Object.UID)
			},
			"": func(t *rapid.T) {
				known.Update(snapshot)
				compare(t, w, snapshot)
			},
		})
	})
}

func compare(t *rapid.T, w *world, snapshot *cluster.Snapshot) {
	t.Helper()
	if got, want := len(snapshot.Nodes()), len(w.nodes); got != want {
		t.Fatalf("%d nodes in the snapshot, %d in the world", got, want)
	}
	web := labels.SelectorFromSet(labels.Set{"app": "web"})
	probe, err := cluster.NewPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "probe", UID: "probe", Labels: map[string]string{"app": "web"}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{zoneKey, "host"} {
		spread := snapshot.CountPods(key, "x", web)
		for _, node := range snapshot.Nodes() {
			got, has := spread.At(node)
			value, want := node.Object.Labels[key]
			if has != want {
				t.Fatalf("node %s has label %s: %t, the index says %t", node.Name, key, want, has)
			}
			if !has {
				continue
			}
			check(t, "spread", key, value, got, w.count(key, value, func(p *corev1.Pod) int64 {
				return one(p.Namespace == "x" && p.DeletionTimestamp == nil && web.Matches(labels.Set(p.Labels)))
			}))
		}
	}
	for _, node := range snapshot.Nodes() {
		value, has := node.Object.Labels[zoneKey]
		if !has {
			continue
		}
		against, drawn := int64(0), int64(0)
		for _, y := range snapshot.AgainstPod(probe) {
			n, _ := y.At(node)
			against += n
		}
		for _, y := range snapshot.DrawnToPod(probe, cluster.Weights{HardAffinity: 1}) {
			n, _ := y.At(node)
			drawn += n
		}
		check(t, "anti-affinity", zoneKey, value, against, w.count(zoneKey, value, func(p *corev1.Pod) int64 {
			return one(p.Namespace == "x" && p.Spec.Affinity != nil && p.Spec.Affinity.PodAntiAffinity != nil)
		}))
		check(t, "preference", zoneKey, value, drawn, w.count(zoneKey, value, func(p *corev1.Pod) int64 {
			if p.Namespace != "x" || p.Spec.Affinity == nil || p.Spec.Affinity.PodAffinity == nil {
				return 0
			}
			return int64(p.Spec.Affinity.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution[0].Weight)
		}))
		var cpu int64
		for _, p := range w.pods {
			cpu += 100 * one(p.Spec.NodeName == node.Name)
		}
		check(t, "requested CPU", "node", node.Name, node.Requested.MilliCPU, cpu)
	}
}

func check(t *rapid.T, what, key, value string, got, want int64) {
	t.Helper()
	if got != want {
		t.Fatalf("%s at %s=%s is %d, counted %d", what, key, value, got, want)
	}
}

func one(yes bool) int64 {
	if yes {
		return 1
	}
	return 0
}
