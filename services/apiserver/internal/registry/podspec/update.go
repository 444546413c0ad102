package podspec

import (
	"fmt"
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/diff"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// updatable are the fields that an update may change, as its refusal lists
// them.
func updatable() string {
	return strings.Join([]string{
		"`spec.containers[*].image`",
		"`spec.initContainers[*].image`",
		"`spec.activeDeadlineSeconds`",
		"`spec.tolerations` (only additions to existing tolerations)",
		"`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
	}, ",")
}

// ValidatePodUpdate checks a change of the main resource.
func ValidatePodUpdate(pod, old *corev1.Pod) field.ErrorList {
	path := field.NewPath("spec")
	errs := validatePod(pod)
	errs = append(errs, validateAnnotationUpdate(pod, old, field.NewPath("metadata", "annotations"))...)
	if len(pod.Spec.Containers) != len(old.Spec.Containers) {
		return append(errs, field.Forbidden(path.Child("containers"), "pod updates may not add or remove containers"))
	}
	if len(pod.Spec.InitContainers) != len(old.Spec.InitContainers) {
		return append(errs, field.Forbidden(path.Child("initContainers"), "pod updates may not add or remove containers"))
	}
	deadline, stop := validateDeadlineUpdate(pod.Spec.ActiveDeadlineSeconds, old.Spec.ActiveDeadlineSeconds, path.Child("activeDeadlineSeconds"))
	errs = append(errs, deadline...)
	if stop {
		return errs
	}
	errs = append(errs, validateAddedTolerations(pod.Spec.Tolerations, old.Spec.Tolerations, path.Child("tolerations"))...)
	errs = append(errs, validateGatesUpdate(pod.Spec.SchedulingGates, old.Spec.SchedulingGates, path.Child("schedulingGates"))...)
	if apiequality.Semantic.DeepEqual(pod.Spec, old.Spec) {
		return errs
	}
	rest := withoutUpdatable(&pod.Spec, &old.Spec)
	if len(old.Spec.SchedulingGates) > 0 {
		errs = append(errs, validateGatedUpdate(rest, &old.Spec, path)...)
	}
	if !apiequality.Semantic.DeepEqual(*rest, old.Spec) {
		errs = append(errs, field.Forbidden(path, fmt.Sprintf("pod updates may not change fields other than %s\n%v", updatable(), diff.Diff(old.Spec, *rest))))
	}
	return errs
}

// validateDeadlineUpdate lets a deadline be set and shortened. A true second
// result ends the validation.
func validateDeadlineUpdate(now, old *int64, path *field.Path) (field.ErrorList, bool) {
	switch {
	case now == nil && old == nil:
	case now == nil:
		return field.ErrorList{field.Invalid(path, now, "must not update from a positive integer to nil value")}, false
	case *now < 0 || *now > math.MaxInt32:
		return field.ErrorList{field.Invalid(path, *now, utilvalidation.InclusiveRangeError(0, math.MaxInt32))}, true
	case old != nil && *old < *now:
		return field.ErrorList{field.Invalid(path, *now, "must be less than or equal to previous value")}, true
	}
	return nil, false
}

// withoutUpdatable is a copy of spec in which what may change is as it was.
func withoutUpdatable(spec, old *corev1.PodSpec) *corev1.PodSpec {
	out := spec.DeepCopy()
	for i := range out.Containers {
		out.Containers[i].Image = old.Containers[i].Image
	}
	for i := range out.InitContainers {
		out.InitContainers[i].Image = old.InitContainers[i].Image
	}
	out.ActiveDeadlineSeconds = old.ActiveDeadlineSeconds
	out.SchedulingGates, out.Tolerations = old.SchedulingGates, old.Tolerations
	if now, was := out.TerminationGracePeriodSeconds, old.TerminationGracePeriodSeconds; was != nil && *was < 0 && now != nil && *now == 1 {
		out.TerminationGracePeriodSeconds = was
	}
	return out
}

func validateAddedTolerations(now, old []corev1.Toleration, path *field.Path) field.ErrorList {
	for _, was := range old {
		found := false
		for _, is := range now {
			is.TolerationSeconds = was.TolerationSeconds
			found = found || apiequality.Semantic.DeepEqual(is, was)
		}
		if !found {
			return field.ErrorList{field.Forbidden(path, "existing toleration can not be modified except its tolerationSeconds")}
		}
	}
	return nil // their form is checked with the rest of the spec
}

func validateGatesUpdate(now, old []corev1.PodSchedulingGate, path *field.Path) field.ErrorList {
	had := map[string]bool{}
	for _, gate := range old {
		had[gate.Name] = true
	}
	var errs field.ErrorList
	for i, gate := range now {
		if !had[gate.Name] {
			errs = append(errs, field.Forbidden(path.Index(i).Child("name"), fmt.Sprintf("only deletion is allowed, but found new scheduling gate '%s'", gate.Name)))
		}
	}
	return errs
}

// validateGatedUpdate lets a gated pod's choice of nodes be narrowed, and sets
// what it has checked back in rest.
func validateGatedUpdate(rest, old *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for key, was := range old.NodeSelector {
		if is, kept := rest.NodeSelector[key]; !kept || is != was {
			errs = append(errs, field.Invalid(path.Child("nodeSelector"), rest.NodeSelector, "only additions to spec.nodeSelector are allowed (no mutations or deletions)"))
			break
		}
	}
	rest.NodeSelector = old.NodeSelector
	var now, was *corev1.NodeAffinity
	if rest.Affinity != nil {
		now = rest.Affinity.NodeAffinity
	}
	if old.Affinity != nil {
		was = old.Affinity.NodeAffinity
	}
	if apiequality.Semantic.DeepEqual(now, was) {
		return errs
	}
	errs = append(errs, validateNodeAffinityUpdate(now, was, path.Child("affinity", "nodeAffinity"))...)
	switch {
	case rest.Affinity == nil:
		rest.Affinity = &corev1.Affinity{NodeAffinity: was}
	case old.Affinity == nil && rest.Affinity.PodAffinity == nil && rest.Affinity.PodAntiAffinity == nil:
		rest.Affinity = nil
	default:
		rest.Affinity.NodeAffinity = was
	}
	return errs
}

func validateNodeAffinityUpdate(now, old *corev1.NodeAffinity, path *field.Path) field.ErrorList {
	if old == nil || old.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	was := old.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	var is []corev1.NodeSelectorTerm
	if now != nil && now.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		is = now.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	}
	terms := path.Child(requiredTerms, "nodeSelectorTerms")
	if len(was) > 0 && len(was) != len(is) {
		return field.ErrorList{field.Invalid(terms, is, "no additions/deletions to non-empty NodeSelectorTerms list are allowed")}
	}
	var errs field.ErrorList
	for i := range was {
		if !onlyAdds(&is[i], &was[i]) {
			errs = append(errs, field.Invalid(terms.Index(i), is[i], "only additions are allowed (no mutations or deletions)"))
		}
	}
	return errs
}

// onlyAdds says that a term asks for more than before and nothing else. An
// empty term matches nothing, so nothing may be added to it.
func onlyAdds(now, old *corev1.NodeSelectorTerm) bool {
	if len(old.MatchExpressions)+len(old.MatchFields) == 0 {
		return len(now.MatchExpressions)+len(now.MatchFields) == 0
	}
	grows := func(now, old []corev1.NodeSelectorRequirement) bool {
		return len(now) >= len(old) && apiequality.Semantic.DeepEqual(now[:len(old)], old)
	}
	return grows(now.MatchExpressions, old.MatchExpressions) && grows(now.MatchFields, old.MatchFields)
}
