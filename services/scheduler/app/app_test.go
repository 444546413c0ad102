package app

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/sampan-io/sampan/services/scheduler/internal/config"
	"github.com/sampan-io/sampan/services/scheduler/internal/scheduler"
)

func newNode(name, cpu string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("4Gi"), corev1.ResourcePods: resource.MustParse("10"),
	}}}
}

func newPod(name, cpu string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "uid"},
		Spec: corev1.PodSpec{SchedulerName: config.DefaultSchedulerName, Containers: []corev1.Container{{
			Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}},
		}}},
	}
}

// mustLead runs the whole scheduler against a clientset in memory, whose bindings
// put pods on nodes.
func mustLead(t *testing.T, objects ...runtime.Object) (*fake.Clientset, *engine) {
	t.Helper()
	api := fake.NewClientset(objects...)
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	api.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create, ok := action.(clienttesting.CreateAction)
		if !ok || action.GetSubresource() != "binding" {
			return false, nil, nil
		}
		binding := create.GetObject().(*corev1.Binding)
		stored, err := api.Tracker().Get(pods, action.GetNamespace(), binding.Name)
		if err != nil {
			return true, nil, err
		}
		pod := stored.(*corev1.Pod).DeepCopy()
		pod.Spec.NodeName = binding.Target.Name
		return true, binding, api.Tracker().Update(pods, pod, action.GetNamespace())
	})
	o := New()
	o.config = config.Default()
	e, err := o.assemble(api, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	e.informers.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), e.synced...) {
		t.Fatal("informers are not in sync")
	}
	done := make(chan error, 1)
	go func() { done <- e.lead(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		e.informers.Shutdown()
	})
	return api, e
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(context.Background(), 2*time.Millisecond, 10*time.Second, true, func(context.Context) (bool, error) { return condition(), nil }); err != nil {
		t.Fatalf("%s did not come about", what)
	}
}

func get(t *testing.T, api *fake.Clientset, name string) *corev1.Pod {
	t.Helper()
	pod, err := api.CoreV1().Pods("default").Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func TestSchedulerBindsPodAndRecordsIt(t *testing.T) {
	api, _ := mustLead(t, newNode("small", "1"), newNode("large", "4"), newPod("p", "2"))
	eventually(t, "the binding", func() bool { return get(t, api, "p").Spec.NodeName == "large" })
	eventually(t, "the event", func() bool {
		events, err := api.EventsV1().Events("default").List(context.Background(), metav1.ListOptions{})
		return err == nil && len(events.Items) == 1 && events.Items[0].Reason == "Scheduled" && events.Items[0].Note == "Successfully assigned default/p to large"
	})
}

func TestSchedulerSaysWhyAndTriesAgainWhenANodeComes(t *testing.T) {
	api, _ := mustLead(t, newNode("small", "1"), newPod("p", "2"))
	eventually(t, "the condition", func() bool {
		for _, c := range get(t, api, "p").Status.Conditions {
			if c.Type == corev1.PodScheduled {
				return c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable &&
					strings.HasPrefix(c.Message, "0/1 nodes are available: 1 Insufficient cpu.")
			}
		}
		return false
	})
	if _, err := api.CoreV1().Nodes().Create(context.Background(), newNode("large", "4"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the binding", func() bool { return get(t, api, "p").Spec.NodeName == "large" })
}

func TestSchedulerLeavesOtherSchedulersPodsAlone(t *testing.T) {
	foreign := newPod("foreign", "1")
	foreign.Spec.SchedulerName, foreign.UID = "another", "foreign"
	api, _ := mustLead(t, newNode("large", "4"), foreign, newPod("p", "1"))
	eventually(t, "the binding of its own", func() bool { return get(t, api, "p").Spec.NodeName == "large" })
	if node := get(t, api, "foreign").Spec.NodeName; node != "" {
		t.Errorf("the pod of another scheduler was bound to %s", node)
	}
}

func TestExplainGivesTheVerdictOfEachFilter(t *testing.T) {
	api, e := mustLead(t, newNode("small", "1"), newNode("large", "4"), newPod("p", "8"))
	eventually(t, "the refusal", func() bool { return len(get(t, api, "p").Status.Conditions) > 0 })
	mux := http.NewServeMux()
	mux.Handle("GET /explain/pods/{namespace}/{name}", explainer(e.scheduler))
	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/explain/pods/default/p", nil))
	var got scheduler.Explanation
	if err := json.Unmarshal(answer.Body.Bytes(), &got); err != nil {
		t.Fatalf("%d %s: %v", answer.Code, answer.Body, err)
	}
	if got.State != "unschedulable" || got.Attempts != 1 || len(got.Nodes) != 2 {
		t.Fatalf("explanation is %+v", got)
	}
	for _, node := range got.Nodes {
		if node.Feasible {
			t.Errorf("node %s is called feasible", node.Node)
		}
		for _, filter := range node.Filters {
			if refused := filter.Verdict != "Success"; refused != (filter.Plugin == "NodeResourcesFit") {
				t.Errorf("node %s: %+v", node.Node, filter)
			}
		}
	}
	answer = httptest.NewRecorder()
	mux.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/explain/pods/default/none", nil))
	if answer.Code != http.StatusNotFound {
		t.Errorf("a pod that does not exist is answered with %d", answer.Code)
	}
}
