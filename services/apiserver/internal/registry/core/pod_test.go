package core

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

func subresource(t *testing.T, r *registry.Resource, name string) registry.Subresource {
	t.Helper()
	for _, sub := range r.Subresources {
		if sub.Name == name {
			return sub
		}
	}
	t.Fatalf("%s has no subresource %s", r.Resource, name)
	return registry.Subresource{}
}

func webPod(changes ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "1", Labels: map[string]string{"app": "web"}}}
	pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "web:1"}}
	for _, change := range changes {
		change(pod)
	}
	return pod
}

func post(t *testing.T, state registry.State, name string, body runtime.Object, dryRun bool) error {
	t.Helper()
	sub := subresource(t, Pods(PodDeps{State: func() registry.State { return state }}), name)
	if sub.Create.Validate != nil {
		if errs := sub.Create.Validate(context.Background(), body); len(errs) > 0 {
			return errs.ToAggregate()
		}
	}
	_, err := sub.Create.Handle(context.Background(), "default", "web", body, dryRun)
	return err
}

func TestBindingAssignsOnce(t *testing.T) {
	state := newFakeState()
	state.add(podResource, webPod())
	binding := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "1", Annotations: map[string]string{"a": "b"}, Labels: map[string]string{"app": "other", "zone": "z"}},
		Target:     corev1.ObjectReference{Kind: "Node", Name: "node-1"},
	}
	if err := post(t, state, "binding", binding, true); err != nil {
		t.Fatal(err)
	}
	if err := post(t, state, "binding", binding, false); err != nil {
		t.Fatal(err)
	}
	obj, _ := state.Get(context.Background(), podResource, "default", "web")
	pod := obj.(*corev1.Pod)
	if pod.Spec.NodeName != "node-1" || pod.Annotations["a"] != "b" || pod.Labels["app"] != "web" || pod.Labels["zone"] != "z" || !conditionTrue(pod, corev1.PodScheduled) {
		t.Errorf("pod is %+v", pod)
	}
	err := post(t, state, "binding", binding, false)
	if !apierrors.IsConflict(err) || err.Error() != `Operation cannot be fulfilled on pods/binding "web": pod web is already assigned to node "node-1"` {
		t.Errorf("a second binding answers %v", err)
	}
}

func TestBindingRefusals(t *testing.T) {
	for name, test := range map[string]struct {
		pod     *corev1.Pod
		binding corev1.Binding
		want    string
	}{
		"other UID": {webPod(), corev1.Binding{ObjectMeta: metav1.ObjectMeta{UID: "2"}, Target: corev1.ObjectReference{Name: "n"}}, `Operation cannot be fulfilled on pods/binding "web": Precondition failed: UID in precondition: 2, UID in object meta: 1`},
		"going":     {webPod(func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.Now()) }), corev1.Binding{Target: corev1.ObjectReference{Name: "n"}}, `Operation cannot be fulfilled on pods/binding "web": pod web is being deleted, cannot be assigned to a host`},
		"gated":     {webPod(func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} }), corev1.Binding{Target: corev1.ObjectReference{Name: "n"}}, `Operation cannot be fulfilled on pods/binding "web": pod web has non-empty .spec.schedulingGates`},
		"no target": {webPod(), corev1.Binding{}, `target.name: Required value`},
		"kind":      {webPod(), corev1.Binding{Target: corev1.ObjectReference{Kind: "Service", Name: "n"}}, `target.kind: Unsupported value: "Service": supported values: "Node", "<empty>"`},
	} {
		state := newFakeState()
		state.add(podResource, test.pod)
		if err := post(t, state, "binding", &test.binding, false); err == nil || err.Error() != test.want {
			t.Errorf("%s: %v, want %s", name, err, test.want)
		}
	}
}

func ready(p *corev1.Pod) {
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
}

func budget(name string, allowed int32) *policyv1.PodDisruptionBudget {
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Generation: 1}}
	b.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	b.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, DisruptionsAllowed: allowed, DesiredHealthy: 2, CurrentHealthy: 2 + allowed}
	return b
}

func TestEvictionSpendsABudget(t *testing.T) {
	state := newFakeState()
	state.add(podResource, webPod(ready))
	state.add(budgetResource, budget("b", 1))
	if err := post(t, state, "eviction", &policyv1.Eviction{DeleteOptions: &metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(3))}}, false); err != nil {
		t.Fatal(err)
	}
	obj, _ := state.Get(context.Background(), budgetResource, "default", "b")
	status := obj.(*policyv1.PodDisruptionBudget).Status
	if _, noted := status.DisruptedPods["web"]; status.DisruptionsAllowed != 0 || !noted {
		t.Errorf("budget is %+v", status)
	}
	if len(state.deleted) != 1 || *state.deleted[0].GracePeriodSeconds != 3 || *state.deleted[0].Preconditions.UID != "1" {
		t.Errorf("deleted with %+v", state.deleted)
	}
}

func TestEvictionOverBudgetIsAnswered429(t *testing.T) {
	state := newFakeState()
	state.add(podResource, webPod(ready))
	state.add(budgetResource, budget("b", 0))
	err := post(t, state, "eviction", &policyv1.Eviction{}, false)
	if !apierrors.IsTooManyRequests(err) || !apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause) || len(state.deleted) > 0 {
		t.Fatalf("answered %v", err)
	}
	cause, _ := apierrors.StatusCause(err, policyv1.DisruptionBudgetCause)
	if want := "The disruption budget b needs 2 healthy pods and has 2 currently"; cause.Message != want {
		t.Errorf("cause is %q, want %q", cause.Message, want)
	}
	stale := budget("b", 5)
	stale.Generation = 2
	state.add(budgetResource, stale)
	if seconds, again := apierrors.SuggestsClientDelay(post(t, state, "eviction", &policyv1.Eviction{}, false)); !again || seconds != 10 {
		t.Errorf("a budget that is still processed suggests %d s", seconds)
	}
}

func TestEvictionWithoutGuard(t *testing.T) {
	for name, test := range map[string]struct {
		pod     *corev1.Pod
		budgets []*policyv1.PodDisruptionBudget
	}{
		"no budget":                  {webPod(ready), nil},
		"ended":                      {webPod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), []*policyv1.PodDisruptionBudget{budget("b", 0)}},
		"not ready in a healthy set": {webPod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }), []*policyv1.PodDisruptionBudget{budget("b", 0)}},
	} {
		state := newFakeState()
		state.add(podResource, test.pod)
		for _, b := range test.budgets {
			state.add(budgetResource, b)
		}
		if err := post(t, state, "eviction", &policyv1.Eviction{}, false); err != nil || len(state.deleted) != 1 {
			t.Errorf("%s: %v", name, err)
		}
	}
	state := newFakeState()
	state.add(podResource, webPod(ready))
	state.add(budgetResource, budget("a", 1), budget("b", 1))
	if err := post(t, state, "eviction", &policyv1.Eviction{}, false); !apierrors.IsInternalError(err) {
		t.Errorf("two budgets: %v", err)
	}
}

func TestPodGracePeriod(t *testing.T) {
	placed := func(p *corev1.Pod) {
		p.Spec.NodeName, p.Spec.TerminationGracePeriodSeconds = "node-1", ptr.To(int64(30))
	}
	for name, test := range map[string]struct {
		pod     *corev1.Pod
		options *metav1.DeleteOptions
		want    int64
	}{
		"the pod's":    {webPod(placed), nil, 30},
		"the client's": {webPod(placed), &metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(5))}, 5},
		"zero":         {webPod(placed), &metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}, 0},
		"negative":     {webPod(placed), &metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(-1))}, 1},
		"not placed":   {webPod(func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = ptr.To(int64(30)) }), nil, 0},
		"ended":        {webPod(placed, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), nil, 0},
	} {
		if got := podGracePeriod(context.Background(), test.pod, test.options); got != test.want {
			t.Errorf("%s: %d s, want %d s", name, got, test.want)
		}
	}
}

func TestPodPreparation(t *testing.T) {
	r := Pods(PodDeps{})
	pod := webPod(func(p *corev1.Pod) {
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "a/b"}}
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{TopologyKey: "z", MatchLabelKeys: []string{"app"}, LabelSelector: &metav1.LabelSelector{}}}
		p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{}
		p.Status.Phase = corev1.PodRunning
	})
	r.Strategy.Default(pod)
	r.Strategy.PrepareForCreate(context.Background(), pod)
	if pod.Status.Phase != corev1.PodPending || pod.Status.QOSClass != corev1.PodQOSBestEffort || pod.Status.Conditions[0].Reason != corev1.PodReasonSchedulingGated {
		t.Errorf("status is %+v", pod.Status)
	}
	if e := pod.Spec.TopologySpreadConstraints[0].LabelSelector.MatchExpressions; len(e) != 1 || e[0].Values[0] != "web" {
		t.Errorf("selector has %v", e)
	}
	if pod.Spec.SchedulingGroup != nil {
		t.Error("a field of a feature that is off stayed")
	}
}

func TestResizeKeepsEverythingElse(t *testing.T) {
	sub := subresource(t, Pods(PodDeps{}), "resize")
	old := webPod(ready)
	old.Generation = 3
	now := old.DeepCopy()
	now.Spec.NodeName, now.Spec.Containers[0].Image = "node-9", "other"
	now.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"cpu": *ptr.To(resourceOne())}
	sub.Update.PrepareForUpdate(context.Background(), now, old)
	if now.Spec.NodeName != "" || now.Spec.Containers[0].Image != "web:1" || len(now.Spec.Containers[0].Resources.Limits) != 1 || now.Generation != 4 {
		t.Errorf("pod is %+v", now)
	}
}
