package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// meter adds up what node agents have measured: how often, and how long in all.
type meter map[string]struct {
	count uint64
	sum   float64 // seconds
}

// readSteps asks every node's agent, through the API server.
func (b *bench) readSteps(ctx context.Context) (meter, error) {
	nodes, err := b.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	out := meter{}
	for _, node := range nodes.Items {
		data, err := b.client.CoreV1().RESTClient().Get().Resource("nodes").Name(node.Name).SubResource("proxy").Suffix("metrics").DoRaw(ctx)
		if err != nil {
			return nil, fmt.Errorf("reading the metrics of node %s: %w", node.Name, err)
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(bytes.NewReader(data))
		if err != nil {
			return nil, fmt.Errorf("reading the metrics of node %s: %w", node.Name, err)
		}
		for name, family := range families {
			out.add(name, family)
		}
	}
	return out, nil
}

func (m meter) add(name string, family *dto.MetricFamily) {
	for _, metric := range family.GetMetric() {
		histogram := metric.GetHistogram()
		if histogram == nil {
			continue
		}
		key := name
		for _, label := range metric.GetLabel() {
			key += " " + label.GetValue()
		}
		entry := m[key]
		entry.count += histogram.GetSampleCount()
		entry.sum += histogram.GetSampleSum()
		m[key] = entry
	}
}

// mean is how long something took on average since before; found is false when it has
// not happened.
func (m meter) mean(before meter, key string) (mean time.Duration, found bool) {
	count, sum := m[key].count-before[key].count, m[key].sum-before[key].sum
	if count == 0 {
		return 0, false
	}
	return time.Duration(sum / float64(count) * float64(time.Second)), true
}

// startSteps are the parts of a pod's start as the agent's metrics have them; what is
// indented is a part of what is above.
func startSteps() [][2]string {
	const operation, step = "kubelet_runtime_operations_duration_seconds ", "sampan_runtime_step_duration_seconds "
	return [][2]string{
		{"agent: seen to running", "kubelet_pod_start_duration_seconds"},
		{"  make the sandbox", operation + "run_podsandbox"},
		{"    namespaces", step + "sandbox_namespaces"},
		{"    network (CNI)", step + "sandbox_network"},
		{"    files, beside the network", step + "sandbox_files"},
		{"    record", step + "sandbox_saved"},
		{"  look for the image", operation + "image_status"},
		{"  create the container", operation + "create_container"},
		{"    root file system", step + "container_rootfs"},
		{"    specification", step + "container_spec"},
		{"    monitor and runc create", step + "container_monitor"},
		{"  start the container", operation + "start_container"},
	}
}

// printSteps tells where the time of pods' starts went; whole is what the client saw on
// average.
func printSteps(before, after meter, whole time.Duration) {
	fmt.Printf("  %-34s %9s\n", "where a start's time goes (mean)", round(whole))
	seen, known := after.mean(before, "kubelet_pod_start_duration_seconds")
	if known && whole > seen {
		fmt.Printf("    %-32s %9s\n", "API, scheduling and watches", round(whole-seen))
	}
	for _, step := range startSteps() {
		if mean, ok := after.mean(before, step[1]); ok {
			fmt.Printf("    %-32s %9s\n", step[0], round(mean))
		}
	}
}

func round(d time.Duration) string {
	const precision = 100 * time.Microsecond
	return strings.TrimSpace(d.Round(precision).String())
}
