package component

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
)

func TestClientRequestsAndQueuesAreMeasured(t *testing.T) {
	registry := prometheus.NewRegistry()
	RegisterClientMetrics(registry)
	RegisterWorkqueueMetrics(registry)

	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no", http.StatusForbidden)
	}))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Discovery().ServerVersion(); err == nil {
		t.Fatal("a refused request reported no error")
	}
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(workqueue.DefaultTypedControllerRateLimiter[string](),
		workqueue.TypedRateLimitingQueueConfig[string]{Name: "things"})
	queue.Add("a")
	queue.ShutDown()

	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := map[string]int{}
	for _, family := range families {
		series[family.GetName()] = len(family.GetMetric())
	}
	for _, name := range []string{"rest_client_requests_total", "rest_client_request_duration_seconds", "workqueue_adds_total", "workqueue_depth"} {
		if series[name] == 0 {
			t.Errorf("%s has no series; registry has %v", name, series)
		}
	}
}
