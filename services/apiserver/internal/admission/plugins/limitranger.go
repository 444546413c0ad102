package plugins

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// limitRangerAnnotation tells what the plugin set in a pod.
const limitRangerAnnotation = "kubernetes.io/limit-ranger"

// limitRanger gives containers the default requests and limits of their
// namespace, and refuses pods and claims outside its bounds.
type limitRanger struct {
	plugin
	reader registry.Reader
}

func newLimitRanger(config Config) admission.Plugin {
	return &limitRanger{plugin{"LimitRanger", []admission.Operation{admission.Create, admission.Update}}, config.State}
}

// Admit implements admission.Mutator.
func (p *limitRanger) Admit(ctx context.Context, a *admission.Attributes) error {
	pod := podOf(a)
	if pod == nil || a.Operation != admission.Create {
		return nil
	}
	ranges, err := p.ranges(ctx, a.Namespace)
	if err != nil {
		return err
	}
	for _, r := range ranges {
		setDefaultResources(pod, r)
	}
	return nil
}

// Validate implements admission.Validator.
func (p *limitRanger) Validate(ctx context.Context, a *admission.Attributes) error {
	var check func(*corev1.LimitRangeItem) []error
	switch obj := a.Object.(type) {
	case *corev1.Pod:
		// A pod's resources change after its creation through resize only.
		if a.Subresource != "resize" && (a.Subresource != "" || a.Operation != admission.Create) {
			return nil
		}
		check = func(item *corev1.LimitRangeItem) []error { return checkPod(obj, item) }
	case *corev1.PersistentVolumeClaim:
		if a.Subresource != "" {
			return nil
		}
		check = func(item *corev1.LimitRangeItem) []error { return checkClaim(obj, item) }
	default:
		return nil
	}
	ranges, err := p.ranges(ctx, a.Namespace)
	if err != nil {
		return err
	}
	for _, r := range ranges {
		var errs []error
		for i := range r.Spec.Limits {
			errs = append(errs, check(&r.Spec.Limits[i])...)
		}
		if len(errs) > 0 {
			return utilerrors.NewAggregate(errs)
		}
	}
	return nil
}

func (p *limitRanger) ranges(ctx context.Context, namespace string) ([]*corev1.LimitRange, error) {
	return listOf[*corev1.LimitRange](ctx, p.reader, corev1.Resource("limitranges"), namespace)
}

// setDefaultResources merges a range's defaults into the containers, and notes in
// an annotation what it set.
func setDefaultResources(pod *corev1.Pod, limits *corev1.LimitRange) {
	requests, maxima := corev1.ResourceList{}, corev1.ResourceList{}
	for _, item := range limits.Spec.Limits {
		if item.Type == corev1.LimitTypeContainer {
			maps.Copy(requests, item.DefaultRequest)
			maps.Copy(maxima, item.Default)
		}
	}
	var notes []string
	for _, group := range []struct {
		kind       string
		containers []corev1.Container
	}{{"init container", pod.Spec.InitContainers}, {"container", pod.Spec.Containers}} {
		for i := range group.containers {
			c := &group.containers[i]
			if set := fill(&c.Resources.Requests, requests); len(set) > 0 {
				notes = append(notes, fmt.Sprintf("%s request for %s %s", strings.Join(set, ", "), group.kind, c.Name))
			}
			if set := fill(&c.Resources.Limits, maxima); len(set) > 0 {
				notes = append(notes, fmt.Sprintf("%s limit for %s %s", strings.Join(set, ", "), group.kind, c.Name))
			}
		}
	}
	if len(notes) == 0 {
		return
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[limitRangerAnnotation] = "LimitRanger plugin set: " + strings.Join(notes, "; ")
}

// fill sets what list lacks of defaults and returns its names, sorted.
func fill(list *corev1.ResourceList, defaults corev1.ResourceList) []string {
	var set []string
	for _, name := range slices.Sorted(maps.Keys(defaults)) {
		if _, ok := (*list)[name]; ok {
			continue
		}
		if *list == nil {
			*list = corev1.ResourceList{}
		}
		(*list)[name] = defaults[name].DeepCopy()
		set = append(set, string(name))
	}
	return set
}

func checkPod(pod *corev1.Pod, item *corev1.LimitRangeItem) []error {
	var errs []error
	switch item.Type {
	case corev1.LimitTypeContainer:
		for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
			for i := range containers {
				r := &containers[i].Resources
				errs = append(errs, checkResources(item, r.Requests, r.Limits)...)
			}
		}
	case corev1.LimitTypePod:
		requests, limits := podTotals(pod)
		errs = append(errs, checkResources(item, requests, limits)...)
	}
	return errs
}

func checkResources(item *corev1.LimitRangeItem, requests, limits corev1.ResourceList) []error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(item.Min)) {
		errs = append(errs, atLeast(item.Type, name, item.Min[name], requests, limits))
	}
	for _, name := range slices.Sorted(maps.Keys(item.Max)) {
		errs = append(errs, atMost(item.Type, name, item.Max[name], requests, limits))
	}
	for _, name := range slices.Sorted(maps.Keys(item.MaxLimitRequestRatio)) {
		errs = append(errs, withinRatio(item.Type, name, item.MaxLimitRequestRatio[name], requests, limits))
	}
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

func atLeast(kind corev1.LimitType, name corev1.ResourceName, bound resource.Quantity, requests, limits corev1.ResourceList) error {
	request, hasRequest := requests[name]
	limit, hasLimit := limits[name]
	switch {
	case !hasRequest:
		return fmt.Errorf("minimum %s usage per %s is %s.  No request is specified", name, kind, bound.String())
	case request.Cmp(bound) < 0:
		return fmt.Errorf("minimum %s usage per %s is %s, but request is %s", name, kind, bound.String(), request.String())
	case hasLimit && limit.Cmp(bound) < 0:
		return fmt.Errorf("minimum %s usage per %s is %s, but limit is %s", name, kind, bound.String(), limit.String())
	}
	return nil
}

func atMost(kind corev1.LimitType, name corev1.ResourceName, bound resource.Quantity, requests, limits corev1.ResourceList) error {
	request, hasRequest := requests[name]
	limit, hasLimit := limits[name]
	switch {
	case !hasLimit:
		return fmt.Errorf("maximum %s usage per %s is %s.  No limit is specified", name, kind, bound.String())
	case limit.Cmp(bound) > 0:
		return fmt.Errorf("maximum %s usage per %s is %s, but limit is %s", name, kind, bound.String(), limit.String())
	case hasRequest && request.Cmp(bound) > 0:
		return fmt.Errorf("maximum %s usage per %s is %s, but request is %s", name, kind, bound.String(), request.String())
	}
	return nil
}

func withinRatio(kind corev1.LimitType, name corev1.ResourceName, bound resource.Quantity, requests, limits corev1.ResourceList) error {
	request, hasRequest := requests[name]
	limit, hasLimit := limits[name]
	switch {
	case !hasRequest || request.IsZero():
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but no request is specified or request is 0", name, kind, bound.String())
	case !hasLimit || limit.IsZero():
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but no limit is specified or limit is 0", name, kind, bound.String())
	}
	if ratio := limit.AsApproximateFloat64() / request.AsApproximateFloat64(); ratio > bound.AsApproximateFloat64() {
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but provided ratio is %f", name, kind, bound.String(), ratio)
	}
	return nil
}

// podTotals are what a pod needs as a whole: its containers and sidecars together,
// or the largest init container with the sidecars before it; what is set for the
// pod itself wins.
func podTotals(pod *corev1.Pod) (requests, limits corev1.ResourceList) {
	total := func(of func(*corev1.ResourceRequirements) corev1.ResourceList) corev1.ResourceList {
		sum, sidecars, initial := corev1.ResourceList{}, corev1.ResourceList{}, corev1.ResourceList{}
		for i := range pod.Spec.Containers {
			addTo(sum, of(&pod.Spec.Containers[i].Resources))
		}
		for i := range pod.Spec.InitContainers {
			c := &pod.Spec.InitContainers[i]
			need := maps.Clone(sidecars)
			addTo(need, of(&c.Resources))
			if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
				addTo(sum, of(&c.Resources))
				sidecars = maps.Clone(need)
			}
			raiseTo(initial, need)
		}
		raiseTo(sum, initial)
		if pod.Spec.Resources != nil {
			maps.Copy(sum, of(pod.Spec.Resources))
		}
		return sum
	}
	return total(func(r *corev1.ResourceRequirements) corev1.ResourceList { return r.Requests }),
		total(func(r *corev1.ResourceRequirements) corev1.ResourceList { return r.Limits })
}

func addTo(sum, more corev1.ResourceList) {
	for name, quantity := range more {
		total := quantity.DeepCopy()
		total.Add(sum[name])
		sum[name] = total
	}
}

func raiseTo(list, other corev1.ResourceList) {
	for name, quantity := range other {
		if have, ok := list[name]; !ok || quantity.Cmp(have) > 0 {
			list[name] = quantity.DeepCopy()
		}
	}
}

func checkClaim(claim *corev1.PersistentVolumeClaim, item *corev1.LimitRangeItem) []error {
	if item.Type != corev1.LimitTypePersistentVolumeClaim {
		return nil
	}
	requests := claim.Spec.Resources.Requests
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(item.Min)) {
		if err := atLeast(item.Type, name, item.Min[name], requests, nil); err != nil {
			errs = append(errs, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(item.Max)) {
		bound := item.Max[name]
		request, ok := requests[name]
		if !ok {
			errs = append(errs, fmt.Errorf("maximum %s usage per %s is %s.  No request is specified", name, item.Type, bound.String()))
		} else if request.Cmp(bound) > 0 {
			errs = append(errs, fmt.Errorf("maximum %s usage per %s is %s, but request is %s", name, item.Type, bound.String(), request.String()))
		}
	}
	return errs
}
