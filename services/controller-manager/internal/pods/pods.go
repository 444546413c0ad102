// Package pods answers what controllers ask of pods: whether they are active,
// ready, available.
package pods

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Active says whether pod counts for its owner: it has not ended and is not
// being deleted.
func Active(pod *corev1.Pod) bool {
	return !Terminal(pod) && pod.DeletionTimestamp == nil
}

// Terminal says whether pod has ended for good.
func Terminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// Terminating says whether pod is being deleted and has not ended yet.
func Terminating(pod *corev1.Pod) bool {
	return !Terminal(pod) && pod.DeletionTimestamp != nil
}

// Condition is pod's condition of that type, or nil.
func Condition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// Ready says whether pod's Ready condition is true.
func Ready(pod *corev1.Pod) bool {
	ready := Condition(pod, corev1.PodReady)
	return ready != nil && ready.Status == corev1.ConditionTrue
}

// Available says whether pod has been ready for minReady at now.
func Available(pod *corev1.Pod, minReady time.Duration, now time.Time) bool {
	if !Ready(pod) {
		return false
	}
	if minReady == 0 {
		return true
	}
	since := Condition(pod, corev1.PodReady).LastTransitionTime
	return !since.IsZero() && !since.Add(minReady).After(now)
}

// UntilAvailable is how long at now a ready pod still has to stay ready; zero
// for one that is available or not ready.
func UntilAvailable(pod *corev1.Pod, minReady time.Duration, now time.Time) time.Duration {
	if !Ready(pod) || Available(pod, minReady, now) {
		return 0
	}
	return Condition(pod, corev1.PodReady).LastTransitionTime.Add(minReady).Sub(now)
}
