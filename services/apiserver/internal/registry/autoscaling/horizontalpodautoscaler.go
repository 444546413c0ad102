// Package autoscaling has the kinds of the autoscaling group.
package autoscaling

import (
	"context"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

type (
	hpa  = autoscalingv2.HorizontalPodAutoscaler
	spec = autoscalingv2.HorizontalPodAutoscalerSpec
)

// HorizontalPodAutoscalers scale workloads by what metrics say.
func HorizontalPodAutoscalers() *registry.Resource {
	doc := spec{}.SwaggerDoc()
	status := behaviour()
	status.PrepareForUpdate = func(_ context.Context, obj, old *hpa) { obj.Spec = old.Spec }
	status.ValidateUpdate = validateStatus
	status.ResetFields = []string{"spec"}
	return registry.Define(registry.Definition[*hpa]{
		GroupVersion: autoscalingv2.SchemeGroupVersion, Resource: "horizontalpodautoscalers", Kind: "HorizontalPodAutoscaler", Singular: "horizontalpodautoscaler",
		ShortNames: []string{"hpa"}, Categories: []string{"all"}, Namespaced: true,
		New:       func() *hpa { return &hpa{} },
		NewList:   func() runtime.Object { return &autoscalingv2.HorizontalPodAutoscalerList{} },
		KeyPrefix: "/registry/horizontalpodautoscalers",
		Strategy:  behaviour(),
		Columns: []metav1.TableColumnDefinition{
			table.Name(),
			table.String("Reference", doc["scaleTargetRef"]),
			table.String("Targets", doc["metrics"]),
			table.String("MinPods", doc["minReplicas"]),
			table.String("MaxPods", doc["maxReplicas"]),
			table.String("Replicas", autoscalingv2.HorizontalPodAutoscalerStatus{}.SwaggerDoc()["currentReplicas"]),
			table.Age(),
		},
		Row: row,
		Subresources: []registry.Subresource{
			{Name: "status", Verbs: []string{"get", "patch", "update"}, Update: registry.Erase(status)},
		},
	})
}

func behaviour() registry.Behaviour[*hpa] {
	return registry.Behaviour[*hpa]{
		Default:          defaultSpec,
		PrepareForCreate: func(_ context.Context, obj *hpa) { obj.Status = autoscalingv2.HorizontalPodAutoscalerStatus{} },
		PrepareForUpdate: func(_ context.Context, obj, old *hpa) { obj.Status = old.Status },
		Validate:         func(_ context.Context, obj *hpa) field.ErrorList { return validate(&obj.Spec, nil) },
		ValidateUpdate:   func(_ context.Context, obj, old *hpa) field.ErrorList { return validate(&obj.Spec, &old.Spec) },
		SpecOf:           func(obj *hpa) any { return &obj.Spec },
		ResetFields:      []string{"status"},
	}
}

// defaultUtilization is the share of requested CPU, in percent, that an
// autoscaler without metrics aims at.
const defaultUtilization = 80

// rulePeriod is the period of the default scaling rules, in seconds.
const rulePeriod = 15

func defaultSpec(obj *hpa) {
	s := &obj.Spec
	if s.MinReplicas == nil {
		s.MinReplicas = ptr.To(int32(1))
	}
	if len(s.Metrics) == 0 {
		s.Metrics = []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
			Name:   corev1.ResourceCPU,
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: ptr.To(int32(defaultUtilization))},
		}}}
	}
	if s.Behavior == nil {
		return
	}
	all := autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: rulePeriod}
	four := autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PodsScalingPolicy, Value: 4, PeriodSeconds: rulePeriod}
	s.Behavior.ScaleUp = defaultRules(s.Behavior.ScaleUp, four, all)
	if s.Behavior.ScaleUp.StabilizationWindowSeconds == nil {
		s.Behavior.ScaleUp.StabilizationWindowSeconds = ptr.To(int32(0))
	}
	s.Behavior.ScaleDown = defaultRules(s.Behavior.ScaleDown, all) // its window is the controller's to choose
}

func defaultRules(rules *autoscalingv2.HPAScalingRules, policies ...autoscalingv2.HPAScalingPolicy) *autoscalingv2.HPAScalingRules {
	if rules == nil {
		rules = &autoscalingv2.HPAScalingRules{}
	}
	if rules.SelectPolicy == nil {
		rules.SelectPolicy = ptr.To(autoscalingv2.MaxChangePolicySelect)
	}
	if rules.Policies == nil {
		rules.Policies = policies
	}
	return rules
}

func validateStatus(_ context.Context, obj, _ *hpa) field.ErrorList {
	path := field.NewPath("status")
	errs := apivalidation.ValidateNonnegativeField(int64(obj.Status.CurrentReplicas), path.Child("currentReplicas"))
	return append(errs, apivalidation.ValidateNonnegativeField(int64(obj.Status.DesiredReplicas), path.Child("desiredReplicas"))...)
}
