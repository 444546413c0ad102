package quota

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	resourcehelpers "k8s.io/component-helpers/resource"
)

// pods measures pods: their number, and what they request and may use.
type pods struct{}

// Resource implements Evaluator.
func (pods) Resource() schema.GroupResource { return corev1.Resource("pods") }

// mandatory are the names of which each container must say what it wants, when a
// quota has them.
func mandatory() []corev1.ResourceName {
	return []corev1.ResourceName{
		corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory,
		corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory,
	}
}

// Tracks implements Evaluator.
func (pods) Tracks(name corev1.ResourceName) bool {
	switch name {
	case "count/pods", corev1.ResourcePods, corev1.ResourceEphemeralStorage, corev1.ResourceRequestsEphemeralStorage, corev1.ResourceLimitsEphemeralStorage:
		return true
	}
	text := string(name)
	if slices.Contains(mandatory(), name) || strings.HasPrefix(text, corev1.ResourceHugePagesPrefix) || strings.HasPrefix(text, corev1.ResourceRequestsHugePagesPrefix) {
		return true
	}
	requested, ok := strings.CutPrefix(text, corev1.DefaultResourceRequestsPrefix)
	return ok && (!native(text) || strings.HasPrefix(requested, resourcev1.ResourceDeviceClassPrefix))
}

// native says whether a name is one of Kubernetes' own.
func native(name string) bool {
	return !strings.Contains(name, "/") || strings.Contains(name, corev1.ResourceDefaultNamespacePrefix)
}

// extended says whether a container asks by this name for something that nodes
// advertise under a domain of their own, or for a class of devices.
func extended(name corev1.ResourceName) bool {
	text := string(name)
	if strings.HasPrefix(text, resourcev1.ResourceDeviceClassPrefix) {
		return true
	}
	if native(text) || strings.HasPrefix(text, corev1.DefaultResourceRequestsPrefix) {
		return false
	}
	return len(validation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+text)) == 0
}

// Usage implements Evaluator. A pod that has ended, or that should have gone by
// now, counts as an object only.
func (pods) Usage(obj runtime.Object) corev1.ResourceList {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil
	}
	list := corev1.ResourceList{"count/pods": number(1)}
	if !active(pod, time.Now()) {
		return list
	}
	options := resourcehelpers.PodResourcesOptions{UseStatusResources: true}
	return Add(list, compute(resourcehelpers.PodRequests(pod, options), resourcehelpers.PodLimits(pod, options)))
}

func active(pod *corev1.Pod, now time.Time) bool {
	if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return false
	}
	if pod.DeletionTimestamp == nil || pod.DeletionGracePeriodSeconds == nil {
		return true
	}
	// A pod that is stuck, on a node that is lost, must not keep others away.
	return !now.After(pod.DeletionTimestamp.Add(time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second))
}

// compute names requests and limits as quotas do.
func compute(requests, limits corev1.ResourceList) corev1.ResourceList {
	list := corev1.ResourceList{corev1.ResourcePods: number(1)}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		if value, ok := requests[name]; ok {
			list[name] = value
			list[corev1.DefaultResourceRequestsPrefix+name] = value
		}
		if value, ok := limits[name]; ok {
			list["limits."+name] = value
		}
	}
	for name, value := range requests {
		huge := strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
		if huge {
			list[name] = value
		}
		if huge || extended(name) {
			list[corev1.DefaultResourceRequestsPrefix+name] = value
		}
	}
	return list
}

// Check implements Evaluator. What a pod says for itself as a whole is enough.
func (pods) Check(names []corev1.ResourceName, obj runtime.Object) error {
	pod, ok := obj.(*corev1.Pod)
	if !ok || resourcehelpers.IsPodLevelResourcesSet(pod) {
		return nil
	}
	missing := map[corev1.ResourceName][]string{}
	for _, container := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		said := compute(container.Resources.Requests, container.Resources.Limits)
		for _, name := range mandatory() {
			if _, ok := said[name]; !ok && slices.Contains(names, name) {
				missing[name] = append(missing[name], container.Name)
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		containers := slices.Compact(slices.Sorted(slices.Values(missing[name])))
		parts = append(parts, fmt.Sprintf("%s for: %s", name, strings.Join(containers, ",")))
	}
	return errors.New("must specify " + strings.Join(parts, "; "))
}

// InScope implements Evaluator.
func (pods) InScope(scope corev1.ScopedResourceSelectorRequirement, obj runtime.Object) bool {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return false
	}
	switch scope.ScopeName {
	case corev1.ResourceQuotaScopeTerminating:
		return bounded(pod)
	case corev1.ResourceQuotaScopeNotTerminating:
		return !bounded(pod)
	case corev1.ResourceQuotaScopeBestEffort:
		return bestEffort(pod)
	case corev1.ResourceQuotaScopeNotBestEffort:
		return !bestEffort(pod)
	case corev1.ResourceQuotaScopePriorityClass:
		if pod.Spec.PriorityClassName == "" {
			return selects(scope)
		}
		return selects(scope, pod.Spec.PriorityClassName)
	case corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return crossesNamespaces(pod.Spec.Affinity)
	}
	return false
}

// bounded says whether a pod has a deadline, which quotas call terminating.
func bounded(pod *corev1.Pod) bool {
	return pod.Spec.ActiveDeadlineSeconds != nil && *pod.Spec.ActiveDeadlineSeconds >= 0
}

func bestEffort(pod *corev1.Pod) bool {
	if pod.Status.QOSClass != "" {
		return pod.Status.QOSClass == corev1.PodQOSBestEffort
	}
	if pod.Spec.Resources != nil && asks(pod.Spec.Resources.Requests, pod.Spec.Resources.Limits) {
		return false
	}
	for _, container := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		if asks(container.Resources.Requests, container.Resources.Limits) {
			return false
		}
	}
	return true
}

func asks(lists ...corev1.ResourceList) bool {
	for _, list := range lists {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			if value := list[name]; value.Sign() > 0 {
				return true
			}
		}
	}
	return false
}

func crossesNamespaces(affinity *corev1.Affinity) bool {
	var terms []corev1.PodAffinityTerm
	add := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
		terms = append(terms, required...)
		for _, weighted := range preferred {
			terms = append(terms, weighted.PodAffinityTerm)
		}
	}
	if affinity != nil && affinity.PodAffinity != nil {
		add(affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, affinity.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if affinity != nil && affinity.PodAntiAffinity != nil {
		add(affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	return slices.ContainsFunc(terms, func(term corev1.PodAffinityTerm) bool {
		return len(term.Namespaces) > 0 || term.NamespaceSelector != nil
	})
}

// Charges implements Evaluator.
func (pods) Charges(subresource string, obj, old runtime.Object) bool {
	switch subresource {
	case "":
		after, ok := obj.(*corev1.Pod)
		if old == nil {
			return ok
		}
		before, had := old.(*corev1.Pod)
		return ok && had && bounded(before) != bounded(after) // it moves to another scope
	case "resize":
		return old != nil
	}
	return false
}

// Freed implements Evaluator.
func (p pods) Freed(obj, old runtime.Object) bool {
	after, ok := obj.(*corev1.Pod)
	before, had := old.(*corev1.Pod)
	if !ok || !had {
		return false
	}
	now := time.Now()
	if active(before, now) && !active(after, now) || bounded(before) != bounded(after) {
		return true
	}
	return !Equal(p.Usage(before), p.Usage(after))
}
