package autoscaling

import (
	"encoding/json"
	"fmt"
	"maps"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// The annotations in which version 1 keeps what it has no fields for.
const (
	conditionsAnnotation = "autoscaling.alpha.kubernetes.io/conditions"
	metricsAnnotation    = "autoscaling.alpha.kubernetes.io/metrics"
	currentAnnotation    = "autoscaling.alpha.kubernetes.io/current-metrics"
	behaviorAnnotation   = "autoscaling.alpha.kubernetes.io/behavior"
)

type hpaV1 = autoscalingv1.HorizontalPodAutoscaler

// HorizontalPodAutoscalersV1 are the autoscalers in version 1.
func HorizontalPodAutoscalersV1() *registry.Resource {
	return registry.InVersion(HorizontalPodAutoscalers(), registry.Version{
		GroupVersion: autoscalingv1.SchemeGroupVersion,
		New:          func() runtime.Object { return &hpaV1{} },
		NewList:      func() runtime.Object { return &autoscalingv1.HorizontalPodAutoscalerList{} },
		ToStored: func(obj runtime.Object) (runtime.Object, error) {
			v1, ok := obj.(*hpaV1)
			if !ok {
				return nil, fmt.Errorf("converting an autoscaler: %T is not of autoscaling/v1", obj)
			}
			return fromV1(v1), nil
		},
		FromStored: func(obj runtime.Object) (runtime.Object, error) {
			v2, ok := obj.(*hpa)
			if !ok {
				return nil, fmt.Errorf("converting an autoscaler: %T is not of autoscaling/v2", obj)
			}
			return toV1(v2)
		},
		Default: func(obj runtime.Object) {
			if spec := &obj.(*hpaV1).Spec; spec.MinReplicas == nil {
				spec.MinReplicas = ptr.To(int32(1))
			}
		},
		ResetFields: []string{"status"}, StatusResetFields: []string{"spec"},
	})
}

// fromV1 is an autoscaler of version 1 in version 2. Annotations that cannot be
// read are taken for absent.
func fromV1(in *hpaV1) *hpa {
	out := &hpa{
		ObjectMeta: *in.ObjectMeta.DeepCopy(),
		Spec: spec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference(in.Spec.ScaleTargetRef), MinReplicas: in.Spec.MinReplicas, MaxReplicas: in.Spec.MaxReplicas,
		},
		Status: autoscalingv2.HorizontalPodAutoscalerStatus{
			ObservedGeneration: in.Status.ObservedGeneration, LastScaleTime: in.Status.LastScaleTime,
			CurrentReplicas: in.Status.CurrentReplicas, DesiredReplicas: in.Status.DesiredReplicas,
		},
	}
	if in.Kind != "" {
		out.SetGroupVersionKind(autoscalingv2.SchemeGroupVersion.WithKind("HorizontalPodAutoscaler"))
	}
	var others []autoscalingv1.MetricSpec
	if take(out, metricsAnnotation, &others) {
		for i := range others {
			out.Spec.Metrics = append(out.Spec.Metrics, metricFromV1(&others[i]))
		}
	}
	if target := in.Spec.TargetCPUUtilizationPercentage; target != nil {
		out.Spec.Metrics = append(out.Spec.Metrics, cpuMetric(*target))
	}
	if len(out.Spec.Metrics) == 0 { // version 1 always meant that
		out.Spec.Metrics = []autoscalingv2.MetricSpec{cpuMetric(defaultUtilization)}
	}
	var behavior behaviorV1
	if take(out, behaviorAnnotation, &behavior) {
		out.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: behavior.ScaleUp.to(), ScaleDown: behavior.ScaleDown.to()}
	}
	statusFromV1(in, out)
	return out
}

func statusFromV1(in *hpaV1, out *hpa) {
	if use := in.Status.CurrentCPUUtilizationPercentage; use != nil {
		out.Status.CurrentMetrics = []autoscalingv2.MetricStatus{{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricStatus{
			Name: corev1.ResourceCPU, Current: autoscalingv2.MetricValueStatus{AverageUtilization: use},
		}}}
	}
	var current []autoscalingv1.MetricStatus
	if take(out, currentAnnotation, &current) {
		out.Status.CurrentMetrics = nil // the annotation tells more
		for i := range current {
			out.Status.CurrentMetrics = append(out.Status.CurrentMetrics, statusMetricFromV1(&current[i]))
		}
	}
	var conditions []autoscalingv1.HorizontalPodAutoscalerCondition
	if take(out, conditionsAnnotation, &conditions) {
		for _, c := range conditions {
			out.Status.Conditions = append(out.Status.Conditions, autoscalingv2.HorizontalPodAutoscalerCondition{
				Type: autoscalingv2.HorizontalPodAutoscalerConditionType(c.Type), Status: c.Status, LastTransitionTime: c.LastTransitionTime,
				Reason: c.Reason, Message: c.Message, ObservedGeneration: c.ObservedGeneration,
			})
		}
	}
}

// take reads an annotation into a value and removes it, and says whether it could
// be read.
func take(obj *hpa, name string, into any) bool {
	text, ok := obj.Annotations[name]
	if !ok {
		return false
	}
	delete(obj.Annotations, name)
	if len(obj.Annotations) == 0 {
		obj.Annotations = nil
	}
	return json.Unmarshal([]byte(text), into) == nil
}

// toV1 is an autoscaler of version 2 in version 1.
func toV1(in *hpa) (*hpaV1, error) {
	in = in.DeepCopy()
	out := &hpaV1{
		ObjectMeta: in.ObjectMeta,
		Spec: autoscalingv1.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv1.CrossVersionObjectReference(in.Spec.ScaleTargetRef), MinReplicas: in.Spec.MinReplicas, MaxReplicas: in.Spec.MaxReplicas,
		},
		Status: autoscalingv1.HorizontalPodAutoscalerStatus{
			ObservedGeneration: in.Status.ObservedGeneration, LastScaleTime: in.Status.LastScaleTime,
			CurrentReplicas: in.Status.CurrentReplicas, DesiredReplicas: in.Status.DesiredReplicas,
		},
	}
	if in.Kind != "" {
		out.SetGroupVersionKind(autoscalingv1.SchemeGroupVersion.WithKind("HorizontalPodAutoscaler"))
	}
	var others []autoscalingv1.MetricSpec
	for i := range in.Spec.Metrics {
		m := &in.Spec.Metrics[i]
		if isCPU(m) && m.Resource.Target.AverageUtilization != nil {
			if out.Spec.TargetCPUUtilizationPercentage == nil {
				out.Spec.TargetCPUUtilizationPercentage = m.Resource.Target.AverageUtilization
			}
			continue
		}
		others = append(others, metricToV1(m))
	}
	var current []autoscalingv1.MetricStatus
	for i := range in.Status.CurrentMetrics {
		m := &in.Status.CurrentMetrics[i]
		if m.Type == autoscalingv2.ResourceMetricSourceType && m.Resource != nil && m.Resource.Name == corev1.ResourceCPU && m.Resource.Current.AverageUtilization != nil {
			out.Status.CurrentCPUUtilizationPercentage = m.Resource.Current.AverageUtilization
		}
		current = append(current, statusMetricToV1(m))
	}
	var conditions []autoscalingv1.HorizontalPodAutoscalerCondition
	for _, c := range in.Status.Conditions {
		conditions = append(conditions, autoscalingv1.HorizontalPodAutoscalerCondition{
			Type: autoscalingv1.HorizontalPodAutoscalerConditionType(c.Type), Status: c.Status, LastTransitionTime: c.LastTransitionTime,
			Reason: c.Reason, Message: c.Message, ObservedGeneration: c.ObservedGeneration,
		})
	}
	put := annotations{to: out}
	add(&put, metricsAnnotation, others)
	add(&put, currentAnnotation, current)
	add(&put, conditionsAnnotation, conditions)
	if b := in.Spec.Behavior; b != nil {
		put.add(behaviorAnnotation, behaviorV1{ScaleUp: rulesFrom(b.ScaleUp), ScaleDown: rulesFrom(b.ScaleDown)})
	}
	return out, put.err
}

func isCPU(m *autoscalingv2.MetricSpec) bool {
	return m.Type == autoscalingv2.ResourceMetricSourceType && m.Resource != nil && m.Resource.Name == corev1.ResourceCPU
}

// annotations writes values as annotations; its first error sticks.
type annotations struct {
	to  *hpaV1
	err error
}

func (a *annotations) add(name string, value any) {
	data, err := json.Marshal(value)
	if err != nil && a.err == nil {
		a.err = fmt.Errorf("converting an autoscaler: %w", err)
	}
	all := maps.Clone(a.to.Annotations)
	if all == nil {
		all = map[string]string{}
	}
	all[name] = string(data)
	a.to.Annotations = all
}

// add leaves empty lists out.
func add[T any](a *annotations, name string, list []T) {
	if len(list) > 0 {
		a.add(name, list)
	}
}

func cpuMetric(utilization int32) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
		Name: corev1.ResourceCPU, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: ptr.To(utilization)},
	}}
}

// behaviorV1 is a behavior in its annotation, where field names start with
// capitals.
type behaviorV1 struct {
	ScaleUp   *rulesV1
	ScaleDown *rulesV1
}

type rulesV1 struct {
	StabilizationWindowSeconds *int32
	SelectPolicy               *autoscalingv2.ScalingPolicySelect
	Policies                   []policyV1
	Tolerance                  *resource.Quantity
}

type policyV1 struct {
	Type          autoscalingv2.HPAScalingPolicyType
	Value         int32
	PeriodSeconds int32
}

func (r *rulesV1) to() *autoscalingv2.HPAScalingRules {
	if r == nil {
		return nil
	}
	out := &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: r.StabilizationWindowSeconds, SelectPolicy: r.SelectPolicy, Tolerance: r.Tolerance}
	for _, p := range r.Policies {
		out.Policies = append(out.Policies, autoscalingv2.HPAScalingPolicy(p))
	}
	return out
}

func rulesFrom(r *autoscalingv2.HPAScalingRules) *rulesV1 {
	if r == nil {
		return nil
	}
	out := &rulesV1{StabilizationWindowSeconds: r.StabilizationWindowSeconds, SelectPolicy: r.SelectPolicy, Tolerance: r.Tolerance}
	for _, p := range r.Policies {
		out.Policies = append(out.Policies, policyV1(p))
	}
	return out
}
