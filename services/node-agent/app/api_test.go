package app_test

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// get asks the agent's own API as the administrator.
func (s *site) get(path string) (code int, body string) {
	s.t.Helper()
	return s.ask(http.MethodGet, path, true)
}

// ask is a request to the agent's own API, with the administrator's certificate or
// without any.
func (s *site) ask(method, path string, known bool) (code int, body string) {
	s.t.Helper()
	config := &tls.Config{InsecureSkipVerify: true} // it has signed its certificate itself
	if known {
		pair, err := tls.X509KeyPair(s.api.Config.CertData, s.api.Config.KeyData)
		if err != nil {
			s.t.Fatal(err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DialContext: s.dial, DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(s.t.Context(), method, "https://127.0.0.1:10250"+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer func() { _ = response.Body.Close() }()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return response.StatusCode, string(data)
}

func TestAPIIsGuardedAndTells(t *testing.T) {
	s := newSite(t)
	s.apply(`
metadata: {name: busy}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: registry.test/tool:v1, args: [fill, /memory/file, "4"], resources: {limits: {cpu: 100m, memory: 64Mi}}, volumeMounts: [{name: m, mountPath: /memory}]}
  volumes: [{name: m, emptyDir: {medium: Memory}}]
`)
	s.until("busy", "to run", running)
	s.logged("busy", corev1.PodLogOptions{}, func(log string) bool { return log == "filled\n" })
	t.Run("strangers are refused", func(t *testing.T) {
		s.t = t
		for _, path := range []string{
			"/pods", "/runningpods/", "/configz", "/stats/summary", "/metrics", "/metrics/cadvisor", "/metrics/resource", "/metrics/probes", "/logs/",
			"/containerLogs/default/busy/main", "/exec/default/busy/main?command=id&output=1", "/attach/default/busy/main?output=1",
			"/portForward/default/busy", "/run/default/busy/main?cmd=id", "/checkpoint/default/busy/main", "/debug/pprof/", "/",
		} {
			if code, body := s.ask(http.MethodGet, path, false); code != http.StatusUnauthorized {
				t.Errorf("%s: %d %s", path, code, body)
			}
		}
		if conn, err := s.dial(t.Context(), "tcp", "127.0.0.1:10255"); err == nil {
			_ = conn.Close()
			t.Error("there is a read-only port")
		}
	})
	t.Run("pods", func(t *testing.T) {
		s.t = t
		for _, path := range []string{"/pods", "/runningpods/"} {
			code, body := s.get(path)
			var list corev1.PodList
			if err := json.Unmarshal([]byte(body), &list); err != nil || code != http.StatusOK || len(list.Items) != 1 || list.Items[0].Name != "busy" {
				t.Errorf("%s: %d %s", path, code, body)
			}
		}
	})
	t.Run("configz", func(t *testing.T) {
		s.t = t
		code, body := s.get("/configz")
		var config struct {
			Kubelet kubeletv1beta1.KubeletConfiguration `json:"kubeletconfig"`
		}
		if err := json.Unmarshal([]byte(body), &config); err != nil || code != http.StatusOK {
			t.Fatalf("%d %s: %v", code, body, err)
		}
		if c := config.Kubelet; c.EvictionHard["memory.available"] != "50Mi" || c.CPUManagerPolicy != "none" || c.MaxPods != 110 || len(c.EnforceNodeAllocatable) != 1 {
			t.Errorf("it says %+v", c)
		}
	})
	t.Run("checkpoint is refused", func(t *testing.T) {
		s.t = t
		if code, body := s.ask(http.MethodPost, "/checkpoint/default/busy/main", true); code != http.StatusNotImplemented || !strings.Contains(body, "checkpointing containers is not supported by this node") {
			t.Errorf("%d %s", code, body)
		}
	})
	t.Run("stats/summary", func(t *testing.T) {
		s.t = t
		s.eventually("measurements", func() error {
			code, body := s.get("/stats/summary")
			var summary stats.Summary
			if err := json.Unmarshal([]byte(body), &summary); err != nil || code != http.StatusOK {
				return fmt.Errorf("%d %s: %w", code, body, err)
			}
			return checkSummary(summary)
		})
	})
	t.Run("metrics", func(t *testing.T) {
		s.t = t
		checkMetrics(s)
	})
}

func checkSummary(summary stats.Summary) error {
	if len(summary.Pods) != 1 || len(summary.Pods[0].Containers) != 1 {
		return fmt.Errorf("pods are %+v", summary.Pods)
	}
	pod := summary.Pods[0]
	container := pod.Containers[0]
	const least = 4 << 20
	switch node := summary.Node; {
	case node.NodeName != nodeName || node.CPU == nil || node.CPU.UsageNanoCores == nil || node.Memory == nil || node.Fs == nil || node.Rlimit == nil || node.Runtime == nil || node.Runtime.ImageFs == nil || len(node.SystemContainers) == 0:
		return fmt.Errorf("the node is %+v", node)
	case pod.PodRef.Name != "busy" || pod.CPU == nil || pod.CPU.UsageNanoCores == nil || pod.Memory == nil || *pod.Memory.WorkingSetBytes < least || pod.Network == nil || pod.ProcessStats == nil || *pod.ProcessStats.ProcessCount == 0:
		return fmt.Errorf("the pod is %+v", pod)
	case len(pod.VolumeStats) != 1 || *pod.VolumeStats[0].UsedBytes < least:
		return fmt.Errorf("its volumes are %+v", pod.VolumeStats)
	case container.CPU == nil || *container.CPU.UsageCoreNanoSeconds == 0 || container.Memory == nil || *container.Memory.AvailableBytes == 0 || container.Rootfs == nil:
		return fmt.Errorf("its container is %+v", container)
	}
	return nil
}

func checkMetrics(s *site) {
	s.t.Helper()
	for path, names := range map[string][]string{
		"/metrics": {
			`kubelet_node_name{node="worker"} 1`, "kubelet_running_pods 1", `kubelet_running_containers{container_state="running"} 1`,
			"kubelet_runtime_operations_total", "kubelet_runtime_operations_duration_seconds_bucket", "kubelet_pod_start_duration_seconds_bucket",
			"kubelet_pod_worker_duration_seconds_bucket", "kubelet_pleg_relist_duration_seconds_bucket", "rest_client_requests_total", "process_cpu_seconds_total", "go_goroutines",
		},
		"/metrics/resource": {
			"node_cpu_usage_seconds_total", "node_memory_working_set_bytes", `pod_cpu_usage_seconds_total{namespace="default",pod="busy"}`, `pod_memory_working_set_bytes{`,
			`container_cpu_usage_seconds_total{container="main",namespace="default",pod="busy"}`, "container_memory_working_set_bytes{", "container_start_time_seconds{", "resource_scrape_error 0",
		},
		"/metrics/cadvisor": {
			"container_cpu_usage_seconds_total{", "container_memory_working_set_bytes{", "container_memory_rss{", "container_memory_cache{", "container_network_receive_bytes_total{",
			"container_network_transmit_bytes_total{", "container_fs_reads_bytes_total{", "container_fs_writes_bytes_total{", "container_cpu_cfs_periods_total{",
			"container_cpu_cfs_throttled_periods_total{", "container_spec_memory_limit_bytes{", "container_oom_events_total{", "machine_cpu_cores ", "machine_memory_bytes ",
		},
	} {
		code, body := s.get(path)
		for _, name := range names {
			if code != http.StatusOK || !strings.Contains(body, "\n"+name) {
				s.t.Errorf("%s has no %s (%d)", path, name, code)
			}
		}
	}
}
