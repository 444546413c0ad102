package metricsapi_test

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metricsclient "k8s.io/metrics/pkg/client/clientset/versioned"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

// agent answers /stats/summary as a node's agent does: a container that uses half
// a core and 10 MiB.
type agent struct {
	*httptest.Server
	begin time.Time
	asked atomic.Int32
	pod   atomic.Pointer[corev1.Pod]
}

func newAgent(t *testing.T) *agent {
	t.Helper()
	a := &agent{begin: time.Now().Add(-time.Hour)}
	a.Server = httptest.NewTLSServer(http.HandlerFunc(a.serve))
	t.Cleanup(a.Close)
	return a
}

func (a *agent) serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/stats/summary" {
		http.NotFound(w, r)
		return
	}
	a.asked.Add(1)
	now := time.Now()
	used := func(cores float64, memory int) map[string]any {
		return map[string]any{
			"startTime": a.begin.Format(time.RFC3339),
			"cpu":       map[string]any{"time": now.Format(time.RFC3339Nano), "usageCoreNanoSeconds": uint64(now.Sub(a.begin).Seconds() * cores * 1e9)},
			"memory":    map[string]any{"workingSetBytes": memory},
		}
	}
	summary := map[string]any{"node": used(2, 1<<30)}
	if pod := a.pod.Load(); pod != nil {
		container := used(0.5, 10<<20)
		container["name"] = "c"
		summary["pods"] = []any{map[string]any{"podRef": map[string]any{"uid": pod.UID}, "containers": []any{container}}}
	}
	_ = json.NewEncoder(w).Encode(summary)
}

// register makes a node of the agent's address, and one that does not answer.
func (a *agent) register(t *testing.T, s *testserver.Server) {
	t.Helper()
	_, text, err := net.SplitHostPort(a.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	for name, number := range map[string]int{"node-1": port, "silent": 1} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}}}
		if node, err = s.Client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
		node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(number)
		if _, err := s.Client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

func newPod(t *testing.T, s *testserver.Server, name string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}}, Spec: corev1.PodSpec{
		NodeName: "node-1", ServiceAccountName: "default", Containers: []corev1.Container{{Name: "c", Image: "i"}},
	}}
	pod, err := s.Client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Status.Phase = corev1.PodRunning
	if pod, err = s.Client.CoreV1().Pods("default").UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return pod
}

func TestMetricsAreWhatAgentsReport(t *testing.T) {
	s := testserver.Start(t, "--kubelet-preferred-address-types=InternalIP", "--disable-admission-plugins=ServiceAccount")
	client, err := metricsclient.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	a := newAgent(t)
	a.register(t, s)
	a.pod.Store(newPod(t, s, "p"))
	newPod(t, s, "unknown")

	nodes, err := client.MetricsV1beta1().NodeMetricses().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 1 || nodes.Items[0].Name != "node-1" {
		t.Fatalf("nodes: %+v, %v", nodes, err)
	}
	if cpu := nodes.Items[0].Usage.Cpu().MilliValue(); cpu < 1950 || cpu > 2050 || nodes.Items[0].Usage.Memory().String() != "1Gi" || nodes.Items[0].Window.Duration < 900*time.Millisecond {
		t.Errorf("node: %+v", nodes.Items[0])
	}
	pods, err := client.MetricsV1beta1().PodMetricses("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(pods.Items) != 1 || len(pods.Items[0].Containers) != 1 {
		t.Fatalf("pods: %+v, %v", pods, err)
	}
	if c := pods.Items[0].Containers[0]; c.Name != "c" || c.Usage.Cpu().MilliValue() < 480 || c.Usage.Cpu().MilliValue() > 520 || c.Usage.Memory().String() != "10Mi" {
		t.Errorf("container: %+v", c)
	}
	// Two samples of the node served all of it, and serve what is asked soon after.
	if none, err := client.MetricsV1beta1().PodMetricses("").List(t.Context(), metav1.ListOptions{LabelSelector: "name=other"}); err != nil || len(none.Items) != 0 {
		t.Errorf("selected pods: %+v, %v", none, err)
	}
	if one, err := client.MetricsV1beta1().PodMetricses("default").Get(t.Context(), "p", metav1.GetOptions{}); err != nil || one.Labels["name"] != "p" {
		t.Errorf("one pod: %+v, %v", one, err)
	}
	if asked := a.asked.Load(); asked != 2 {
		t.Errorf("the agent was asked %d times", asked)
	}
	if _, err := client.MetricsV1beta1().PodMetricses("default").Get(t.Context(), "unknown", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a pod that the agent does not know: %v", err)
	}
	if _, err := client.MetricsV1beta1().NodeMetricses().Get(t.Context(), "silent", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a node that does not answer: %v", err)
	}
	groups, err := s.Client.Discovery().ServerGroups()
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range groups.Groups {
		if group.Name == "metrics.k8s.io" && (group.PreferredVersion.Version != "v1" || len(group.Versions) != 2) {
			t.Errorf("versions: %+v", group)
		}
	}
}
