package feed

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// Workloads finds which pods belong together, from Services and ReplicaSets.
type Workloads struct {
	Services    corelisters.ServiceLister
	ReplicaSets appslisters.ReplicaSetLister
}

// Selector selects the pods that share the Services and the ReplicaSet of pod.
func (w Workloads) Selector(pod *corev1.Pod) labels.Selector {
	merged := labels.Set{}
	services, err := w.Services.Services(pod.Namespace).List(labels.Everything())
	if err != nil {
		return labels.NewSelector() // a lister over memory does not fail
	}
	for _, service := range services {
		if service.Spec.Selector != nil && labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(pod.Labels)) {
			maps.Copy(merged, service.Spec.Selector)
		}
	}
	selector := labels.NewSelector()
	if len(merged) > 0 {
		selector = labels.SelectorFromSet(merged)
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil || owner.Kind != "ReplicaSet" {
		return selector
	}
	rs, err := w.ReplicaSets.ReplicaSets(pod.Namespace).Get(owner.Name)
	if err != nil {
		return selector
	}
	own, err := metav1.LabelSelectorAsSelector(rs.Spec.Selector)
	if err != nil {
		return selector
	}
	if requirements, selectable := own.Requirements(); selectable {
		selector = selector.Add(requirements...)
	}
	return selector
}
