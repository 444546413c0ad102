package metricsapi

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	metricsv1 "k8s.io/metrics/pkg/apis/metrics/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// older shows what another shows in version v1beta1, whose fields are the same.
type older struct{ registry.Virtual }

// Get implements registry.Virtual.
func (o older) Get(ctx context.Context, namespace, name string) (runtime.Object, error) {
	obj, err := o.Virtual.Get(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	return toOlder(obj)
}

// List implements registry.Virtual.
func (o older) List(ctx context.Context, namespace string) (runtime.Object, error) {
	obj, err := o.Virtual.List(ctx, namespace)
	if err != nil {
		return nil, err
	}
	return toOlder(obj)
}

func toOlder(obj runtime.Object) (runtime.Object, error) {
	switch m := obj.(type) {
	case *metricsv1.NodeMetrics:
		out := metricsv1beta1.NodeMetrics(*m)
		return &out, nil
	case *metricsv1.PodMetrics:
		out := olderPod(m)
		return &out, nil
	case *metricsv1.NodeMetricsList:
		out := &metricsv1beta1.NodeMetricsList{ListMeta: m.ListMeta, Items: []metricsv1beta1.NodeMetrics{}}
		for _, item := range m.Items {
			out.Items = append(out.Items, metricsv1beta1.NodeMetrics(item))
		}
		return out, nil
	case *metricsv1.PodMetricsList:
		out := &metricsv1beta1.PodMetricsList{ListMeta: m.ListMeta, Items: []metricsv1beta1.PodMetrics{}}
		for i := range m.Items {
			out.Items = append(out.Items, olderPod(&m.Items[i]))
		}
		return out, nil
	}
	return nil, fmt.Errorf("metrics in version v1beta1 of a %T", obj)
}

func olderPod(m *metricsv1.PodMetrics) metricsv1beta1.PodMetrics {
	out := metricsv1beta1.PodMetrics{ObjectMeta: m.ObjectMeta, Timestamp: m.Timestamp, Window: m.Window}
	for _, c := range m.Containers {
		out.Containers = append(out.Containers, metricsv1beta1.ContainerMetrics(c))
	}
	return out
}
