package resources_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

func TestAutoscalersAreServedInBothVersions(t *testing.T) {
	client := testserver.Start(t).Client
	v1, v2 := client.AutoscalingV1().HorizontalPodAutoscalers("default"), client.AutoscalingV2().HorizontalPodAutoscalers("default")
	created, err := v1.Create(t.Context(), &autoscalingv1.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: autoscalingv1.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
			MaxReplicas:    5, TargetCPUUtilizationPercentage: ptr.To(int32(60)),
		},
	}, metav1.CreateOptions{FieldManager: "one"})
	if err != nil || *created.Spec.MinReplicas != 1 || created.Generation != 1 {
		t.Fatalf("created %+v (%v)", created, err)
	}
	got, err := v2.Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || len(got.Spec.Metrics) != 1 || *got.Spec.Metrics[0].Resource.Target.AverageUtilization != 60 {
		t.Fatalf("in version 2 it is %+v (%v)", got, err)
	}
	got.Spec.Metrics[0].Resource.Target.AverageUtilization = ptr.To(int32(70))
	got.Spec.Metrics = append(got.Spec.Metrics, autoscalingv2.MetricSpec{Type: "Resource", Resource: &autoscalingv2.ResourceMetricSource{
		Name: "memory", Target: autoscalingv2.MetricTarget{Type: "Utilization", AverageUtilization: ptr.To(int32(80))},
	}})
	if _, err := v2.Update(t.Context(), got, metav1.UpdateOptions{FieldManager: "two"}); err != nil {
		t.Fatal(err)
	}
	old, err := v1.Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || *old.Spec.TargetCPUUtilizationPercentage != 70 || !strings.Contains(old.Annotations["autoscaling.alpha.kubernetes.io/metrics"], "memory") {
		t.Fatalf("in version 1 it is %+v (%v)", old, err)
	}
	if got := versionsOf(old.ManagedFields); !slices.Equal(got, []string{"one autoscaling/v1", "two autoscaling/v2"}) {
		t.Errorf("managed by %v", got)
	}
	// A field that one manages in version 1 is in the way of another in version 2.
	patch, err := json.Marshal(map[string]any{
		"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": map[string]any{"name": "web"}, "spec": map[string]any{"maxReplicas": 9},
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = v2.Patch(t.Context(), "web", types.ApplyPatchType, patch, metav1.PatchOptions{FieldManager: "three"})
	if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `conflict with "one" using autoscaling/v1: .spec.maxReplicas`) {
		t.Errorf("applying answers %v", err)
	}
	// What version 1 says is checked as version 2.
	_, err = v1.Patch(t.Context(), "web", types.MergePatchType, []byte(`{"spec":{"targetCPUUtilizationPercentage":0}}`), metav1.PatchOptions{})
	if err == nil || !strings.Contains(err.Error(), "averageUtilization") {
		t.Errorf("a bad target answers %v", err)
	}
	if list, err := v1.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 1 || *list.Items[0].Spec.TargetCPUUtilizationPercentage != 70 {
		t.Errorf("listed %+v (%v)", list, err)
	}
}

func versionsOf(entries []metav1.ManagedFieldsEntry) []string {
	var out []string
	for _, e := range entries {
		out = append(out, e.Manager+" "+e.APIVersion)
	}
	slices.Sort(out)
	return out
}

func TestEventsKeepTheManagersOfBothGroups(t *testing.T) {
	client := testserver.Start(t).Client
	_, err := client.CoreV1().Events("default").Create(t.Context(), &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: "e"},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "p"},
		Reason:         "Started", Message: "it began", Type: "Normal",
	}, metav1.CreateOptions{FieldManager: "core"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.EventsV1().Events("default").Patch(t.Context(), "e", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{FieldManager: "new"}); err != nil {
		t.Fatal(err)
	}
	got, err := client.CoreV1().Events("default").Patch(t.Context(), "e", types.MergePatchType, []byte(`{"message":"it went on"}`), metav1.PatchOptions{FieldManager: "other"})
	if err != nil {
		t.Fatal(err)
	}
	if got := versionsOf(got.ManagedFields); !slices.Equal(got, []string{"core v1", "new events.k8s.io/v1", "other v1"}) {
		t.Errorf("managed by %v", got)
	}
}
