package autoscaling

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func scaler(changes ...func(*spec)) *hpa {
	obj := &hpa{
		ObjectMeta: metav1.ObjectMeta{Name: "web", CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Minute * 5))},
		Spec:       spec{MaxReplicas: 5, ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}},
	}
	for _, change := range changes {
		change(&obj.Spec)
	}
	defaultSpec(obj)
	return obj
}

func metrics(list ...autoscalingv2.MetricSpec) func(*spec) {
	return func(s *spec) { s.Metrics = list }
}

func pods(value string) autoscalingv2.MetricSpec {
	q := resource.MustParse(value)
	return autoscalingv2.MetricSpec{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{
		Metric: autoscalingv2.MetricIdentifier{Name: "rps"}, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: &q},
	}}
}

func TestDefaults(t *testing.T) {
	s := scaler(func(s *spec) { s.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{} }).Spec
	if *s.MinReplicas != 1 || s.Metrics[0].Resource.Name != "cpu" || *s.Metrics[0].Resource.Target.AverageUtilization != 80 {
		t.Errorf("spec is %+v", s)
	}
	up, down := s.Behavior.ScaleUp, s.Behavior.ScaleDown
	if *up.StabilizationWindowSeconds != 0 || len(up.Policies) != 2 || up.Policies[0].Value != 4 || *up.SelectPolicy != "Max" {
		t.Errorf("rules are %+v", up)
	}
	if down.StabilizationWindowSeconds != nil || len(down.Policies) != 1 || down.Policies[0] != (autoscalingv2.HPAScalingPolicy{Type: "Percent", Value: 100, PeriodSeconds: 15}) {
		t.Errorf("rules are %+v", down)
	}
}

func TestRefusals(t *testing.T) {
	both := pods("5")
	both.Resource = scaler().Spec.Metrics[0].Resource
	for want, obj := range map[string]*hpa{
		"": scaler(),
		"spec.minReplicas: Invalid value: 0: must be greater than or equal to 1":                      scaler(func(s *spec) { s.MinReplicas = ptr.To(int32(0)) }),
		"spec.maxReplicas: Invalid value: 5: must be greater than or equal to `minReplicas`":          scaler(func(s *spec) { s.MinReplicas = ptr.To(int32(6)) }),
		"spec.scaleTargetRef.kind: Required value":                                                    scaler(func(s *spec) { s.ScaleTargetRef.Kind = "" }),
		`spec.scaleTargetRef.name: Invalid value: "a/b": may not contain '/'`:                         scaler(func(s *spec) { s.ScaleTargetRef.Name = "a/b" }),
		"spec.metrics[0].pods: Required value: must populate information for the given metric source": scaler(metrics(autoscalingv2.MetricSpec{Type: "Pods"})),
		"spec.metrics[0].resource: Forbidden: must populate the given metric source only":             scaler(metrics(both)),
		`spec.metrics[0].pods.target.averageValue: Invalid value: "0": must be positive`:              scaler(metrics(pods("0"))),
		"spec.behavior.scaleUp.stabilizationWindowSeconds: Invalid value: 3601: must be less than or equal to 3600": scaler(func(s *spec) {
			s.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: ptr.To(int32(3601))}}
		}),
		"spec.behavior.scaleDown.policies[0].periodSeconds: Invalid value: 1801: must be less than or equal to 1800": scaler(func(s *spec) {
			s.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleDown: &autoscalingv2.HPAScalingRules{Policies: []autoscalingv2.HPAScalingPolicy{{Type: "Pods", Value: 1, PeriodSeconds: 1801}}}}
		}),
	} {
		got := ""
		if err := HorizontalPodAutoscalers().Strategy.Validate(context.Background(), obj).ToAggregate(); err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) || (want == "" && got != "") {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestRow(t *testing.T) {
	obj := scaler()
	obj.Spec.Metrics = append(obj.Spec.Metrics, pods("10"), pods("20"), pods("30"))
	obj.Status = autoscalingv2.HorizontalPodAutoscalerStatus{CurrentReplicas: 3, CurrentMetrics: []autoscalingv2.MetricStatus{
		{Resource: &autoscalingv2.ResourceMetricStatus{Current: autoscalingv2.MetricValueStatus{AverageUtilization: ptr.To(int32(42))}}},
	}}
	want := []any{"web", "Deployment/web", "cpu: 42%/80%, <unknown>/10 + 2 more...", "1", int64(5), int64(3), "5m"}
	if got := HorizontalPodAutoscalers().Table.Cells(obj, time.Now()); !slices.Equal(got, want) {
		t.Errorf("row is %v, want %v", got, want)
	}
}
