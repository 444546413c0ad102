package qos

import (
	corev1 "k8s.io/api/core/v1"
)

// Class is the quality of service class that the pod's requests and limits make.
func Class(pod *corev1.Pod) corev1.PodQOSClass {
	if pod.Status.QOSClass != "" {
		return pod.Status.QOSClass
	}
	return Compute(pod)
}

// Compute is Class without what the API server has found.
func Compute(pod *corev1.Pod) corev1.PodQOSClass {
	var sets []corev1.ResourceRequirements
	if pod.Spec.Resources != nil {
		sets = append(sets, *pod.Spec.Resources)
	} else {
		for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
			for i := range list {
				sets = append(sets, list[i].Resources)
			}
		}
	}
	names := []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}
	some, guaranteed := false, true
	for _, set := range sets {
		for _, name := range names {
			request, limit := set.Requests[name], set.Limits[name]
			some = some || !request.IsZero() || !limit.IsZero()
			if limit.IsZero() || (!request.IsZero() && request.Cmp(limit) != 0) {
				guaranteed = false
			}
		}
	}
	switch {
	case !some:
		return corev1.PodQOSBestEffort
	case guaranteed:
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

// Shares are the CPU shares for that many thousandths of a CPU.
func Shares(milliCPU int64) int64 {
	return min(max(milliCPU*SharesPerCPU/1000, MinShares), MaxShares)
}

// Quota is the CPU time per QuotaPeriod for that many thousandths of a CPU, in
// microseconds; 0 is none.
func Quota(milliCPU int64) int64 {
	if milliCPU == 0 {
		return 0
	}
	return max(milliCPU*QuotaPeriod/1000, MinQuotaPeriod)
}

// Weight turns shares into the weight of version 2 as runc does.
func Weight(shares int64) int64 {
	const most = 9999
	return 1 + (min(max(shares, MinShares), MaxShares)-MinShares)*most/(MaxShares-MinShares)
}

// Critical tells whether a pod must run on its node before others do: a static pod, its
// mirror, or one with the priority of the system.
func Critical(pod *corev1.Pod) bool {
	const (
		source = "kubernetes.io/config.source"
		system = 2000000000
	)
	if from := pod.Annotations[source]; from != "" && from != "api" {
		return true
	}
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return true
	}
	return pod.Spec.Priority != nil && *pod.Spec.Priority >= system
}
