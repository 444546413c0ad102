package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// benchPods measures a lone pod's way from its creation to Running, one after
// the other, with the image present. It needs a node and is skipped without.
func benchPods(ctx context.Context, b *bench) error {
	nodes, err := b.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(nodes.Items) == 0 {
		fmt.Println("pod create to Running: skipped, the cluster has no node")
		return nil
	}
	var latencies []time.Duration
	count := max(3, 20/b.scale)
	began := time.Now()
	var before meter
	var whole time.Duration
	for i := range count + 2 {
		if i == 2 {
			if before, err = b.readSteps(ctx); err != nil {
				return err
			}
		}
		took, err := b.startPod(ctx, fmt.Sprintf("lone-%d", i))
		if err != nil {
			return err
		}
		if i >= 2 { // two to warm up
			latencies = append(latencies, took)
			whole += took
		}
	}
	report("pod create to Running, alone", count, time.Since(began), 0, latencies)
	after, err := b.readSteps(ctx)
	if err != nil {
		return err
	}
	printSteps(before, after, whole/time.Duration(count))
	return nil
}

func (b *bench) startPod(ctx context.Context, name string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	pods := b.client.CoreV1().Pods(b.namespace)
	watcher, err := pods.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		return 0, err
	}
	defer watcher.Stop()
	start := time.Now()
	if _, err := pods.Create(ctx, benchPod(name), metav1.CreateOptions{}); err != nil {
		return 0, err
	}
	var took time.Duration
	for event := range watcher.ResultChan() {
		if pod, ok := event.Object.(*corev1.Pod); ok && pod.Status.Phase == corev1.PodRunning {
			took = time.Since(start)
			break
		}
	}
	if took == 0 {
		return 0, fmt.Errorf("pod %s did not run within a minute", name)
	}
	if err := pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}); err != nil {
		return 0, err
	}
	return took, awaitGone(ctx, b, name)
}

func benchPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{TerminationGracePeriodSeconds: ptr.To(int64(0)), Containers: []corev1.Container{{
			Name: "main", Image: "localhost/sampan/demo:1", Command: []string{"sleep", "3600"},
		}}},
	}
}

// awaitGone waits until the pod's deletion is complete, so that the next start
// does not share the machine with it.
func awaitGone(ctx context.Context, b *bench, name string) error {
	for {
		_, err := b.client.CoreV1().Pods(b.namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return ctx.Err()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}
