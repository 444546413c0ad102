package podspec

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MergeLabelKeys writes matchLabelKeys and mismatchLabelKeys of a new pod's
// affinity and spread terms into their selectors (KEP-3633, KEP-3243).
func MergeLabelKeys(pod *corev1.Pod) {
	if a := pod.Spec.Affinity; a != nil {
		if p := a.PodAffinity; p != nil {
			mergeAffinityTerms(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution, pod.Labels)
		}
		if p := a.PodAntiAffinity; p != nil {
			mergeAffinityTerms(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution, pod.Labels)
		}
	}
	for i := range pod.Spec.TopologySpreadConstraints {
		c := &pod.Spec.TopologySpreadConstraints[i]
		mergeKeys(c.LabelSelector, c.MatchLabelKeys, metav1.LabelSelectorOpIn, pod.Labels)
	}
}

func mergeAffinityTerms(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm, labels map[string]string) {
	for i := range required {
		mergeAffinityTerm(&required[i], labels)
	}
	for i := range preferred {
		mergeAffinityTerm(&preferred[i].PodAffinityTerm, labels)
	}
}

func mergeAffinityTerm(term *corev1.PodAffinityTerm, labels map[string]string) {
	mergeKeys(term.LabelSelector, term.MatchLabelKeys, metav1.LabelSelectorOpIn, labels)
	mergeKeys(term.LabelSelector, term.MismatchLabelKeys, metav1.LabelSelectorOpNotIn, labels)
}

// mergeKeys leaves a nil selector, which matches nothing, alone.
func mergeKeys(selector *metav1.LabelSelector, keys []string, operator metav1.LabelSelectorOperator, labels map[string]string) {
	if selector == nil {
		return
	}
	for _, key := range keys {
		if value, set := labels[key]; set {
			selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{
				Key: key, Operator: operator, Values: []string{value},
			})
		}
	}
}
