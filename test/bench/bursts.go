package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// benchBursts measures pods that are started together: ten at a time with idle between,
// and a hundred at once.
func benchBursts(ctx context.Context, b *bench) error {
	nodes, err := b.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(nodes.Items) == 0 {
		fmt.Println("bursts of pods: skipped, the cluster has no node")
		return nil
	}
	const width, many = 10, 100
	rounds := max(2, 10/b.scale)
	var latencies []time.Duration
	var busy time.Duration
	for round := range rounds {
		took, whole, err := b.startTogether(ctx, fmt.Sprintf("burst-%d", round), width)
		if err != nil {
			return err
		}
		latencies = append(latencies, took...)
		busy += whole
		if err := sleep(ctx, time.Second); err != nil { // idle between
			return err
		}
	}
	report("pods in bursts of 10, create to Running", len(latencies), busy, 0, latencies)
	count := max(width, many/b.scale)
	took, whole, err := b.startTogether(ctx, "hundred", count)
	if err != nil {
		return err
	}
	report(fmt.Sprintf("%d pods at once, all running after %s", count, round(whole)), count, whole, 0, took)
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// startTogether starts pods side by side and tells how long each took, and all. They are
// gone when it returns.
func (b *bench) startTogether(ctx context.Context, prefix string, count int) (took []time.Duration, whole time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	pods := b.client.CoreV1().Pods(b.namespace)
	watcher, err := pods.Watch(ctx, metav1.ListOptions{LabelSelector: "burst=" + prefix})
	if err != nil {
		return nil, 0, err
	}
	defer watcher.Stop()
	began := time.Now()
	created := make(map[string]time.Time, count)
	for i := range count {
		name := fmt.Sprintf("%s-%d", prefix, i)
		created[name] = time.Now()
		pod := benchPod(name)
		pod.Labels = map[string]string{"burst": prefix}
		if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return nil, 0, err
		}
	}
	for event := range watcher.ResultChan() {
		pod, ok := event.Object.(*corev1.Pod)
		if !ok || pod.Status.Phase != corev1.PodRunning || created[pod.Name].IsZero() {
			continue
		}
		took = append(took, time.Since(created[pod.Name]))
		delete(created, pod.Name)
		if len(created) == 0 {
			break
		}
	}
	whole = time.Since(began)
	if len(created) > 0 {
		return nil, 0, fmt.Errorf("%d of %d pods did not run", len(created), count)
	}
	slices.Sort(took)
	err = pods.DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}, metav1.ListOptions{LabelSelector: "burst=" + prefix})
	if err != nil {
		return nil, 0, err
	}
	return took, whole, b.awaitNone(ctx, prefix)
}

// awaitNone waits until no pod of the burst is left.
func (b *bench) awaitNone(ctx context.Context, prefix string) error {
	for {
		list, err := b.client.CoreV1().Pods(b.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		left := slices.ContainsFunc(list.Items, func(pod corev1.Pod) bool { return strings.HasPrefix(pod.Name, prefix+"-") })
		if !left {
			return nil
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}
