package status

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/criconfig"
)

// Owned are the conditions that this node alone writes.
func Owned(condition corev1.PodConditionType) bool {
	switch condition {
	case corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled,
		corev1.PodResizePending, corev1.PodResizeInProgress, corev1.AllContainersRestarting:
		return true
	}
	return false
}

func conditions(in Input, status *corev1.PodStatus) []corev1.PodCondition {
	var list []corev1.PodCondition
	for _, condition := range in.Pod.Status.Conditions {
		if !Owned(condition.Type) {
			list = append(list, condition)
		}
	}
	if in.End != nil && in.End.Disruption != "" {
		list = disrupted(in, list)
	}
	containersReady := containersReady(in.Pod, status)
	for _, condition := range append(slices.Clone(in.Resize),
		readyToStart(in),
		initializedCondition(in.Pod, status),
		readyCondition(in.Pod, status, containersReady, list),
		containersReady,
		corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
	) {
		list = append(list, settle(in, condition))
	}
	return list
}

// disrupted tells why the node has ended the pod, unless somebody has told already.
func disrupted(in Input, list []corev1.PodCondition) []corev1.PodCondition {
	for _, condition := range list {
		if condition.Type == corev1.DisruptionTarget && condition.Status == corev1.ConditionTrue {
			return list
		}
	}
	list = slices.DeleteFunc(list, func(c corev1.PodCondition) bool { return c.Type == corev1.DisruptionTarget })
	return append(list, settle(in, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: in.End.Disruption, Message: in.End.Message}))
}

// settle keeps the time of the last change.
func settle(in Input, condition corev1.PodCondition) corev1.PodCondition {
	condition.ObservedGeneration = in.Pod.Generation
	condition.LastTransitionTime = metav1.NewTime(in.Now)
	at := slices.IndexFunc(in.Pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == condition.Type })
	if at >= 0 {
		old := in.Pod.Status.Conditions[at]
		condition.LastProbeTime = old.LastProbeTime
		if old.Status == condition.Status {
			condition.LastTransitionTime = old.LastTransitionTime
		}
	}
	return condition
}

func readyToStart(in Input) corev1.PodCondition {
	condition := corev1.PodCondition{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionFalse}
	if sandbox := in.Runtime.Sandbox(); sandbox.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY && sandbox != nil {
		if in.Pod.Spec.HostNetwork || sandbox.GetNetwork().GetIp() != "" {
			condition.Status = corev1.ConditionTrue
		}
	}
	return condition
}

func initializedCondition(pod *corev1.Pod, status *corev1.PodStatus) corev1.PodCondition {
	condition := corev1.PodCondition{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}
	if status.Phase == corev1.PodSucceeded {
		condition.Reason = "PodCompleted"
		return condition
	}
	// Once the containers have begun, sidecars that start again change nothing.
	if t := count(status.ContainerStatuses); t.running > 0 || t.stopped > 0 {
		return condition
	}
	var unknown, incomplete []string
	for i := range pod.Spec.InitContainers {
		spec := &pod.Spec.InitContainers[i]
		s := find(status.InitContainerStatuses, spec.Name)
		if s == nil {
			unknown = append(unknown, spec.Name)
		} else if !initDone(spec, s) {
			incomplete = append(incomplete, spec.Name)
		}
	}
	if message := unwell(unknown, "incomplete", incomplete); message != "" {
		condition.Status, condition.Reason, condition.Message = corev1.ConditionFalse, "ContainersNotInitialized", message
	}
	return condition
}

func unwell(unknown []string, what string, names []string) string {
	var parts []string
	if len(unknown) > 0 {
		parts = append(parts, fmt.Sprintf("containers with unknown status: %s", unknown))
	}
	if len(names) > 0 {
		parts = append(parts, fmt.Sprintf("containers with %s status: %s", what, names))
	}
	return strings.Join(parts, ", ")
}

func containersReady(pod *corev1.Pod, status *corev1.PodStatus) corev1.PodCondition {
	condition := corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}
	if done := completed(condition, status.Phase); done != nil {
		return *done
	}
	var unready []string
	for i := range pod.Spec.InitContainers {
		spec := &pod.Spec.InitContainers[i]
		if s := find(status.InitContainerStatuses, spec.Name); criconfig.Restartable(spec) && (s == nil || !s.Ready) {
			unready = append(unready, spec.Name)
		}
	}
	for i := range pod.Spec.Containers {
		if s := find(status.ContainerStatuses, pod.Spec.Containers[i].Name); s == nil || !s.Ready {
			unready = append(unready, pod.Spec.Containers[i].Name)
		}
	}
	if message := unwell(nil, "unready", unready); message != "" {
		condition.Status, condition.Reason, condition.Message = corev1.ConditionFalse, "ContainersNotReady", message
	}
	return condition
}

func completed(condition corev1.PodCondition, phase corev1.PodPhase) *corev1.PodCondition {
	switch phase {
	case corev1.PodSucceeded:
		condition.Status, condition.Reason = corev1.ConditionFalse, "PodCompleted"
		return &condition
	case corev1.PodFailed:
		condition.Status, condition.Reason = corev1.ConditionFalse, "PodFailed"
		return &condition
	}
	return nil
}

// readyCondition is the containers' readiness and that of the pod's gates.
func readyCondition(pod *corev1.Pod, _ *corev1.PodStatus, containers corev1.PodCondition, others []corev1.PodCondition) corev1.PodCondition {
	condition := containers
	condition.Type = corev1.PodReady
	if containers.Status != corev1.ConditionTrue {
		return condition
	}
	var messages []string
	for _, gate := range pod.Spec.ReadinessGates {
		at := slices.IndexFunc(others, func(c corev1.PodCondition) bool { return c.Type == gate.ConditionType })
		switch {
		case at < 0:
			messages = append(messages, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", gate.ConditionType))
		case others[at].Status != corev1.ConditionTrue:
			messages = append(messages, fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %v", gate.ConditionType, others[at].Status))
		}
	}
	if len(messages) > 0 {
		condition.Status, condition.Reason, condition.Message = corev1.ConditionFalse, "ReadinessGatesNotReady", strings.Join(messages, ", ")
	}
	return condition
}
