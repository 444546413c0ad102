package autoscaling

import (
	"fmt"
	"strings"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// shownMetrics is how many metrics a table cell has.
const shownMetrics = 2

const unknown = "<unknown>"

func row(obj *hpa) []any {
	least := "<unset>"
	if n := obj.Spec.MinReplicas; n != nil {
		least = fmt.Sprint(*n)
	}
	return []any{
		obj.Name, obj.Spec.ScaleTargetRef.Kind + "/" + obj.Spec.ScaleTargetRef.Name, metricsCell(obj), least,
		int64(obj.Spec.MaxReplicas), int64(obj.Status.CurrentReplicas), table.Since(obj.CreationTimestamp),
	}
}

func metricsCell(obj *hpa) string {
	if len(obj.Spec.Metrics) == 0 {
		return table.None
	}
	var list []string
	for i := range obj.Spec.Metrics {
		if i == shownMetrics {
			return fmt.Sprintf("%s + %d more...", strings.Join(list, ", "), len(obj.Spec.Metrics)-shownMetrics)
		}
		var status autoscalingv2.MetricStatus
		if i < len(obj.Status.CurrentMetrics) {
			status = obj.Status.CurrentMetrics[i]
		}
		list = append(list, metricCell(&obj.Spec.Metrics[i], status))
	}
	return strings.Join(list, ", ")
}

// metricCell is a metric as current/target.
func metricCell(metric *autoscalingv2.MetricSpec, status autoscalingv2.MetricStatus) string {
	var now autoscalingv2.MetricValueStatus
	switch {
	case metric.Type == autoscalingv2.ExternalMetricSourceType && metric.External != nil:
		if status.External != nil {
			now = status.External.Current
		}
		return valueCell(metric.External.Target, now)
	case metric.Type == autoscalingv2.ObjectMetricSourceType && metric.Object != nil:
		if status.Object != nil {
			now = status.Object.Current
		}
		return valueCell(metric.Object.Target, now)
	case metric.Type == autoscalingv2.PodsMetricSourceType && metric.Pods != nil:
		if status.Pods != nil {
			now = status.Pods.Current
		}
		return quantity(now.AverageValue) + "/" + quantity(metric.Pods.Target.AverageValue)
	case metric.Type == autoscalingv2.ResourceMetricSourceType && metric.Resource != nil:
		if status.Resource != nil {
			now = status.Resource.Current
		}
		return string(metric.Resource.Name) + ": " + usageCell(metric.Resource.Target, now)
	case metric.Type == autoscalingv2.ContainerResourceMetricSourceType && metric.ContainerResource != nil:
		if status.ContainerResource != nil {
			now = status.ContainerResource.Current
		}
		return string(metric.ContainerResource.Name) + ": " + usageCell(metric.ContainerResource.Target, now)
	}
	return "<unknown type>"
}

func valueCell(target autoscalingv2.MetricTarget, now autoscalingv2.MetricValueStatus) string {
	if target.AverageValue != nil {
		return quantity(now.AverageValue) + "/" + quantity(target.AverageValue) + " (avg)"
	}
	return quantity(now.Value) + "/" + quantity(target.Value)
}

func usageCell(target autoscalingv2.MetricTarget, now autoscalingv2.MetricValueStatus) string {
	if target.AverageValue != nil {
		return quantity(now.AverageValue) + "/" + quantity(target.AverageValue)
	}
	current, wanted := unknown, "<auto>"
	if now.AverageUtilization != nil {
		current = fmt.Sprintf("%d%%", *now.AverageUtilization)
	}
	if target.AverageUtilization != nil {
		wanted = fmt.Sprintf("%d%%", *target.AverageUtilization)
	}
	return current + "/" + wanted
}

func quantity(q *resource.Quantity) string {
	if q == nil {
		return unknown
	}
	return q.String()
}
