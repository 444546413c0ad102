package algorithm_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sampan-io/sampan/services/scheduler/internal/algorithm"
	"github.com/sampan-io/sampan/services/scheduler/internal/cache"
	"github.com/sampan-io/sampan/services/scheduler/internal/cluster"
	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
)

const (
	benchNodes = 5000
	benchZones = 10
)

// benchCluster is 5,000 nodes in 10 zones.
func benchCluster(b *testing.B, cpu string) (*cache.Cache, *cluster.Snapshot) {
	b.Helper()
	known, snapshot := cache.New(), cluster.NewSnapshot()
	for i := range benchNodes {
		name := fmt.Sprintf("node-%d", i)
		known.SetNode(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
				corev1.LabelHostname: name, corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%benchZones),
			}},
			Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
				corev1.ResourceCPU: *quantity(cpu), corev1.ResourceMemory: *quantity("32Gi"), corev1.ResourcePods: *quantity("110"),
			}},
		})
	}
	known.SetNamespace("default", map[string]string{})
	known.Update(snapshot)
	return known, snapshot
}

func benchPod(b *testing.B, serial int, change func(*corev1.Pod)) *cluster.Pod {
	b.Helper()
	object := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("pod-", serial), UID: types.UID(fmt.Sprint(serial)), Labels: map[string]string{"app": "bench"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: *quantity("100m"), corev1.ResourceMemory: *quantity("500Mi"),
		}}}}},
	}
	if change != nil {
		change(object)
	}
	pod, err := cluster.NewPod(object)
	if err != nil {
		b.Fatal(err)
	}
	return pod
}

// benchSchedule measures one decision with the assuming of its outcome, and what
// bringing the snapshot up to date costs; fill pods are there before.
func benchSchedule(b *testing.B, fill int, change func(serial int, pod *corev1.Pod)) {
	known, snapshot := benchCluster(b, "16")
	profile := mustProfile(b)
	core := algorithm.Algorithm{Pick: rand.IntN}
	serial := 0
	schedule := func() {
		serial++
		pod := benchPod(b, serial, func(p *corev1.Pod) { change(serial, p) })
		known.Update(snapshot)
		decision, err := core.Schedule(context.Background(), profile, framework.NewCycleState(), pod, snapshot)
		if err != nil {
			b.Fatalf("pod %d: %v", serial, err)
		}
		if err := known.Assume(pod, decision.Node); err != nil {
			b.Fatal(err)
		}
	}
	for range fill {
		schedule()
	}
	b.ReportAllocs()
	for b.Loop() {
		schedule()
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pods/s")
}

func BenchmarkScheduleBasic5000Nodes(b *testing.B) {
	benchSchedule(b, 1000, func(int, *corev1.Pod) {})
}

func BenchmarkScheduleTopologySpread5000Nodes(b *testing.B) {
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "bench"}}
	benchSchedule(b, 1000, func(_ int, pod *corev1.Pod) {
		pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: selector,
		}}
	})
}

func BenchmarkSchedulePodAffinity5000Nodes(b *testing.B) {
	terms := []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelTopologyZone, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "bench"}}}}
	benchSchedule(b, 1000, func(_ int, pod *corev1.Pod) {
		pod.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}}
	})
}

// Every pod shuns those of its own group on the same node; a group has 50 pods.
func BenchmarkSchedulePodAntiAffinity5000Nodes(b *testing.B) {
	benchSchedule(b, 1000, func(serial int, pod *corev1.Pod) {
		group := map[string]string{"group": fmt.Sprint(serial / 50)}
		pod.Labels = group
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: group},
		}}}}
	})
}

// BenchmarkPreemption5000Nodes measures a decision that ends in choosing victims on
// a full cluster.
func BenchmarkPreemption5000Nodes(b *testing.B) {
	known, snapshot := benchCluster(b, "4")
	profile := mustProfile(b)
	for i := range benchNodes * 4 {
		pod := benchPod(b, i, func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = *quantity("1")
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = *quantity("1Mi")
		})
		if err := known.Assume(pod, fmt.Sprintf("node-%d", i%benchNodes)); err != nil {
			b.Fatal(err)
		}
	}
	known.Update(snapshot)
	core := algorithm.Algorithm{Pick: rand.IntN}
	serial := benchNodes * 4
	priority := int32(100)
	b.ReportAllocs()
	for b.Loop() {
		serial++
		pod := benchPod(b, serial, func(p *corev1.Pod) {
			p.Spec.Priority = &priority
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = *quantity("3")
		})
		state := framework.NewCycleState()
		known.Update(snapshot)
		_, err := core.Schedule(context.Background(), profile, state, pod, snapshot)
		fit := algorithm.AsFitError(err)
		if fit == nil {
			b.Fatalf("a full cluster took the pod: %v", err)
		}
		node, status := profile.RunPostFilters(context.Background(), state, pod, snapshot, &fit.Diagnosis.Verdicts)
		if !status.OK() || node == "" {
			b.Fatalf("no room was made: %s", status.Message())
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pods/s")
}
