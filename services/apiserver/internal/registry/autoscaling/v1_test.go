package autoscaling

import (
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

func TestVersion1KeepsWhatItHasNoFieldsFor(t *testing.T) {
	obj := scaler(metrics(
		pods("5"), cpuMetric(50),
		autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
			Metric: autoscalingv2.MetricIdentifier{Name: "queue"}, Target: target(ptr.To(resource.MustParse("7")), nil, nil),
		}},
	), func(s *spec) { s.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{} })
	obj.Annotations = map[string]string{"mine": "kept"}
	obj.Status = autoscalingv2.HorizontalPodAutoscalerStatus{
		CurrentReplicas: 3, DesiredReplicas: 4,
		CurrentMetrics: []autoscalingv2.MetricStatus{{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricStatus{
			Name: "cpu", Current: autoscalingv2.MetricValueStatus{AverageUtilization: ptr.To(int32(42)), AverageValue: ptr.To(resource.MustParse("100m"))},
		}}},
		Conditions: []autoscalingv2.HorizontalPodAutoscalerCondition{{Type: autoscalingv2.AbleToScale, Status: "True", Reason: "Ready"}},
	}
	v1, err := toV1(obj)
	if err != nil {
		t.Fatal(err)
	}
	if *v1.Spec.TargetCPUUtilizationPercentage != 50 || *v1.Status.CurrentCPUUtilizationPercentage != 42 || v1.Annotations["mine"] != "kept" {
		t.Errorf("version 1 is %+v", v1)
	}
	if !strings.HasPrefix(v1.Annotations[behaviorAnnotation], `{"ScaleUp":{"StabilizationWindowSeconds":0,`) {
		t.Errorf("the behavior is %s", v1.Annotations[behaviorAnnotation])
	}
	if !strings.Contains(v1.Annotations[metricsAnnotation], `"metricName":"queue","targetValue":"7"`) {
		t.Errorf("the metrics are %s", v1.Annotations[metricsAnnotation])
	}
	back := fromV1(v1)
	// The one metric that version 1 has a field for comes last.
	obj.Spec.Metrics[1], obj.Spec.Metrics[2] = obj.Spec.Metrics[2], obj.Spec.Metrics[1]
	if !apiequality.Semantic.DeepEqual(back, obj) {
		t.Errorf("came back as %+v\nwant %+v", back, obj)
	}
}

func TestVersion1WithoutMetricsMeansCPU(t *testing.T) {
	v1 := &hpaV1{Spec: autoscalingv1.HorizontalPodAutoscalerSpec{MaxReplicas: 3}}
	if got := fromV1(v1).Spec.Metrics; len(got) != 1 || *got[0].Resource.Target.AverageUtilization != defaultUtilization {
		t.Errorf("metrics are %+v", got)
	}
	v1.Annotations = map[string]string{metricsAnnotation: "broken", conditionsAnnotation: "[}"}
	if got := fromV1(v1); len(got.Spec.Metrics) != 1 || got.Annotations != nil {
		t.Errorf("an unreadable annotation gives %+v", got)
	}
}
