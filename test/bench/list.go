package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// benchList lists 10,000 pods as JSON, protobuf and a Table, and gets one.
func benchList(ctx context.Context, b *bench) error {
	if err := b.makePods(ctx, 10000/b.scale); err != nil {
		return err
	}
	client, err := ownConnection(b.config)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	url := b.config.Host + "/api/v1/namespaces/" + b.namespace + "/pods"
	for _, form := range []struct{ name, accept, url string }{
		{"JSON", "application/json", url},
		{"protobuf", "application/vnd.kubernetes.protobuf", url},
		{"Table", "application/json;as=Table;v=v1;g=meta.k8s.io", url},
	} {
		if err := repeat(ctx, client, fmt.Sprintf("list %d pods, %s", 10000/b.scale, form.name), form.url, form.accept, 20); err != nil {
			return err
		}
	}
	return repeat(ctx, client, "get one pod, JSON", url+"/pod-0", "application/json", 3000/b.scale)
}

// makePods creates pods that no scheduler takes, with a spec of usual size.
func (b *bench) makePods(ctx context.Context, count int) error {
	var next atomic.Int64
	var group sync.WaitGroup
	errs := make(chan error, 16)
	for range 16 {
		group.Go(func() {
			for i := next.Add(1) - 1; i < int64(count); i = next.Add(1) - 1 {
				pod := &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", i), Labels: map[string]string{"app": "bench", "index": fmt.Sprint(i)}},
					Spec: corev1.PodSpec{SchedulerName: "nobody", Containers: []corev1.Container{{
						Name: "main", Image: "localhost/sampan/demo:1", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
						Env: []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "2"}},
					}}},
				}
				if _, err := b.client.CoreV1().Pods(b.namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	group.Wait()
	select {
	case err := <-errs:
		return fmt.Errorf("making pods: %w", err)
	default:
		return nil
	}
}

func repeat(ctx context.Context, client *http.Client, what, url, accept string, count int) error {
	var latencies []time.Duration
	var bytes int64
	for i := range count + 2 {
		if i == 2 { // two to warm up
			latencies = nil
		}
		start := time.Now()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		request.Header.Set("Accept", accept)
		answer, err := client.Do(request)
		if err != nil {
			return err
		}
		bytes, err = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
		if err != nil {
			return err
		}
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", url, answer.Status)
		}
		latencies = append(latencies, time.Since(start))
	}
	var total time.Duration
	for _, l := range latencies {
		total += l
	}
	report(fmt.Sprintf("%s (%.1f MB)", what, float64(bytes)/1e6), len(latencies), total, 0, latencies)
	return nil
}
