// Package metricsapi serves metrics.k8s.io from what node agents report: the use
// of processor time and memory by nodes and pods. It serves only while no
// APIService says that another server does.
package metricsapi

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	metricsv1 "k8s.io/metrics/pkg/apis/metrics/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// Group is the API group.
const Group = metricsv1.GroupName

// Resources are nodes and pods in both versions, read through agents.
func Resources(reader registry.Reader, agents Agents) []*registry.Resource {
	s := newSampler(agents)
	nodes, pods := &nodeMetrics{reader, s}, &podMetrics{reader, s}
	return []*registry.Resource{
		newResource(metricsv1.SchemeGroupVersion.WithResource("nodes"), "NodeMetrics", false, nodes,
			func() runtime.Object { return &metricsv1.NodeMetrics{} }, func() runtime.Object { return &metricsv1.NodeMetricsList{} }),
		newResource(metricsv1.SchemeGroupVersion.WithResource("pods"), "PodMetrics", true, pods,
			func() runtime.Object { return &metricsv1.PodMetrics{} }, func() runtime.Object { return &metricsv1.PodMetricsList{} }),
		newResource(metricsv1beta1.SchemeGroupVersion.WithResource("nodes"), "NodeMetrics", false, older{nodes},
			func() runtime.Object { return &metricsv1beta1.NodeMetrics{} }, func() runtime.Object { return &metricsv1beta1.NodeMetricsList{} }),
		newResource(metricsv1beta1.SchemeGroupVersion.WithResource("pods"), "PodMetrics", true, older{pods},
			func() runtime.Object { return &metricsv1beta1.PodMetrics{} }, func() runtime.Object { return &metricsv1beta1.PodMetricsList{} }),
	}
}

func newResource(name schema.GroupVersionResource, kind string, namespaced bool, virtual registry.Virtual, one, list func() runtime.Object) *registry.Resource {
	return &registry.Resource{
		GroupVersionResource: name, Kind: kind, Singular: strings.TrimSuffix(name.Resource, "s"), Namespaced: namespaced, Verbs: []string{"get", "list"},
		New: one, NewList: list, Virtual: virtual,
		Table: &registry.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name(), table.String("CPU", "Processor time that is used."), table.String("Memory", "Working set of memory."),
				table.String("Window", "The time over which processor time was measured."),
			},
			Row: cells,
		},
	}
}

// cells are those of an object of either version.
func cells(obj runtime.Object) []any {
	switch m := obj.(type) {
	case *metricsv1.NodeMetrics:
		return []any{m.Name, m.Usage.Cpu().String(), m.Usage.Memory().String(), m.Window.Duration.String()}
	case *metricsv1beta1.NodeMetrics:
		return []any{m.Name, m.Usage.Cpu().String(), m.Usage.Memory().String(), m.Window.Duration.String()}
	case *metricsv1beta1.PodMetrics:
		newer := &metricsv1.PodMetrics{ObjectMeta: m.ObjectMeta, Window: m.Window}
		for _, c := range m.Containers {
			newer.Containers = append(newer.Containers, metricsv1.ContainerMetrics(c))
		}
		return cells(newer)
	case *metricsv1.PodMetrics:
		var cpu, memory resource.Quantity
		for _, c := range m.Containers {
			cpu.Add(*c.Usage.Cpu())
			memory.Add(*c.Usage.Memory())
		}
		return []any{m.Name, cpu.String(), memory.String(), m.Window.Duration.String()}
	}
	return nil
}

// nodeMetrics reads nodes.
type nodeMetrics struct {
	reader  registry.Reader
	sampler *sampler
}

// Get implements registry.Virtual.
func (n *nodeMetrics) Get(ctx context.Context, _, name string) (runtime.Object, error) {
	obj, err := n.reader.Get(ctx, corev1.Resource("nodes"), "", name)
	if err != nil {
		return nil, notFound(err, "nodes", name)
	}
	node, ok := obj.(*corev1.Node)
	if !ok {
		return nil, notFound(nil, "nodes", name)
	}
	spans := n.sampler.spans(ctx, []string{name})
	if found, ok := newNodeMetrics(node, spans[name]); ok {
		return found, nil
	}
	return nil, notFound(nil, "nodes", name)
}

// List implements registry.Virtual. Nodes whose agents do not answer are left
// out.
func (n *nodeMetrics) List(ctx context.Context, _ string) (runtime.Object, error) {
	objects, err := n.reader.List(ctx, corev1.Resource("nodes"), "")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, obj := range objects {
		if node, ok := obj.(*corev1.Node); ok {
			names = append(names, node.Name)
		}
	}
	n.sampler.keep(names)
	spans := n.sampler.spans(ctx, names)
	list := &metricsv1.NodeMetricsList{Items: []metricsv1.NodeMetrics{}}
	for _, obj := range objects {
		node, ok := obj.(*corev1.Node)
		if !ok {
			continue
		}
		if found, ok := newNodeMetrics(node, spans[node.Name]); ok {
			list.Items = append(list.Items, *found)
		}
	}
	return list, nil
}

func newNodeMetrics(node *corev1.Node, s *span) (*metricsv1.NodeMetrics, bool) {
	if s == nil {
		return nil, false
	}
	usage, ok := s.node()
	if !ok {
		return nil, false
	}
	return &metricsv1.NodeMetrics{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, Labels: node.Labels, CreationTimestamp: metav1.NewTime(s.end)},
		Timestamp:  metav1.NewTime(s.end), Window: metav1.Duration{Duration: s.window()}, Usage: usage,
	}, true
}

// podMetrics reads pods.
type podMetrics struct {
	reader  registry.Reader
	sampler *sampler
}

// Get implements registry.Virtual.
func (p *podMetrics) Get(ctx context.Context, namespace, name string) (runtime.Object, error) {
	obj, err := p.reader.Get(ctx, corev1.Resource("pods"), namespace, name)
	if err != nil {
		return nil, notFound(err, "pods", name)
	}
	pod, ok := obj.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" {
		return nil, notFound(nil, "pods", name)
	}
	spans := p.sampler.spans(ctx, []string{pod.Spec.NodeName})
	if found, ok := newPodMetrics(pod, spans[pod.Spec.NodeName]); ok {
		return found, nil
	}
	return nil, notFound(nil, "pods", name)
}

// List implements registry.Virtual. Pods that do not run, and those whose nodes do
// not answer, are left out.
func (p *podMetrics) List(ctx context.Context, namespace string) (runtime.Object, error) {
	objects, err := p.reader.List(ctx, corev1.Resource("pods"), namespace)
	if err != nil {
		return nil, err
	}
	var pods []*corev1.Pod
	var nodes []string
	for _, obj := range objects {
		pod, ok := obj.(*corev1.Pod)
		if ok && pod.Status.Phase == corev1.PodRunning && pod.Spec.NodeName != "" {
			pods = append(pods, pod)
			nodes = append(nodes, pod.Spec.NodeName)
		}
	}
	slices.Sort(nodes)
	spans := p.sampler.spans(ctx, slices.Compact(nodes))
	list := &metricsv1.PodMetricsList{Items: []metricsv1.PodMetrics{}}
	for _, pod := range pods {
		if found, ok := newPodMetrics(pod, spans[pod.Spec.NodeName]); ok {
			list.Items = append(list.Items, *found)
		}
	}
	return list, nil
}

func newPodMetrics(pod *corev1.Pod, s *span) (*metricsv1.PodMetrics, bool) {
	if s == nil {
		return nil, false
	}
	containers := s.pod(pod)
	if len(containers) == 0 {
		return nil, false
	}
	return &metricsv1.PodMetrics{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, Labels: pod.Labels, CreationTimestamp: metav1.NewTime(s.end)},
		Timestamp:  metav1.NewTime(s.end), Window: metav1.Duration{Duration: s.window()}, Containers: containers,
	}, true
}

// notFound says in the group's own words that there are no figures.
func notFound(err error, resource, name string) error {
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return apierrors.NewNotFound(schema.GroupResource{Group: Group, Resource: resource}, name)
}
