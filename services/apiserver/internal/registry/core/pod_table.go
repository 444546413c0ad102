package core

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

func podColumns() []metav1.TableColumnDefinition {
	spec, status := corev1.PodSpec{}.SwaggerDoc(), corev1.PodStatus{}.SwaggerDoc()
	return []metav1.TableColumnDefinition{
		table.Name(),
		table.String("Ready", "The aggregate readiness state of this pod for accepting traffic."),
		table.String("Status", "The aggregate status of the containers in this pod."),
		table.String("Restarts", "The number of times the containers in this pod have been restarted and when the last container in this pod has restarted."),
		table.Age(),
		table.Wide(table.String("IP", status["podIP"])),
		table.Wide(table.String("Node", spec["nodeName"])),
		table.Wide(table.String("Nominated Node", status["nominatedNodeName"])),
		table.Wide(table.String("Readiness Gates", spec["readinessGates"])),
	}
}

func podRow(pod *corev1.Pod) []any {
	s := summarize(pod)
	restarts := strconv.Itoa(s.restarts)
	if s.restarts != 0 && !s.lastRestart.IsZero() {
		restarts = fmt.Sprintf("%d (%s ago)", s.restarts, table.Since(s.lastRestart))
	}
	ip := ""
	if len(pod.Status.PodIPs) > 0 {
		ip = pod.Status.PodIPs[0].IP
	} else {
		ip = pod.Status.PodIP
	}
	return []any{
		pod.Name, fmt.Sprintf("%d/%d", s.ready, s.total), s.reason, restarts, table.Since(pod.CreationTimestamp),
		table.OrNone(ip), table.OrNone(pod.Spec.NodeName), table.OrNone(pod.Status.NominatedNodeName), readinessGates(pod),
	}
}

// podRowConditions mark pods that have ended.
func podRowConditions(pod *corev1.Pod) []metav1.TableRowCondition {
	completed := metav1.TableRowCondition{Type: metav1.RowCompleted, Status: metav1.ConditionTrue, Reason: string(pod.Status.Phase)}
	switch pod.Status.Phase {
	case corev1.PodSucceeded:
		completed.Message = "The pod has completed successfully."
	case corev1.PodFailed:
		completed.Message = "The pod failed."
	default:
		return nil
	}
	return []metav1.TableRowCondition{completed}
}

func readinessGates(pod *corev1.Pod) string {
	if len(pod.Spec.ReadinessGates) == 0 {
		return table.None
	}
	open := 0
	for _, gate := range pod.Spec.ReadinessGates {
		if conditionTrue(pod, gate.ConditionType) {
			open++
		}
	}
	return fmt.Sprintf("%d/%d", open, len(pod.Spec.ReadinessGates))
}

func conditionTrue(pod *corev1.Pod, kind corev1.PodConditionType) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == kind {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// summary is a pod's state in one line.
type summary struct {
	ready, total, restarts int
	reason                 string
	lastRestart            metav1.Time
	// sidecar are the restarts of sidecars alone, which count once the pod is
	// initialized.
	sidecarRestarts    int
	lastSidecarRestart metav1.Time
}

func summarize(pod *corev1.Pod) summary {
	s := summary{total: len(pod.Spec.Containers), reason: string(pod.Status.Phase)}
	if pod.Status.Reason != "" {
		s.reason = pod.Status.Reason
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonSchedulingGated {
			s.reason = corev1.PodReasonSchedulingGated
		}
	}
	sidecars := map[string]bool{}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			sidecars[c.Name] = true
			s.total++
		}
	}
	initializing := s.addInitContainers(pod, sidecars)
	if !initializing || conditionTrue(pod, corev1.PodInitialized) {
		s.restarts, s.lastRestart = s.sidecarRestarts, s.lastSidecarRestart
		s.addContainers(pod)
	}
	if pod.DeletionTimestamp != nil {
		if pod.Status.Reason == "NodeLost" {
			s.reason = "Unknown"
		} else if pod.Status.Phase != corev1.PodFailed && pod.Status.Phase != corev1.PodSucceeded {
			s.reason = "Terminating"
		}
	}
	return s
}

// addInitContainers stops at the first init container that has not done its
// part, and says whether there is one.
func (s *summary) addInitContainers(pod *corev1.Pod, sidecars map[string]bool) bool {
	for i := range pod.Status.InitContainerStatuses {
		c := &pod.Status.InitContainerStatuses[i]
		s.restarts += int(c.RestartCount)
		s.lastRestart = later(s.lastRestart, c)
		if sidecars[c.Name] {
			s.sidecarRestarts += int(c.RestartCount)
			s.lastSidecarRestart = later(s.lastSidecarRestart, c)
		}
		ended, waiting := c.State.Terminated, c.State.Waiting
		switch {
		case ended != nil && ended.ExitCode == 0:
			continue
		case sidecars[c.Name] && c.Started != nil && *c.Started:
			if c.Ready {
				s.ready++
			}
			continue
		case ended != nil:
			s.reason = "Init:" + endReason(ended)
		case waiting != nil && waiting.Reason != "" && waiting.Reason != "PodInitializing":
			s.reason = "Init:" + waiting.Reason
		default:
			s.reason = fmt.Sprintf("Init:%d/%d", i, len(pod.Spec.InitContainers))
		}
		return true
	}
	return false
}

func (s *summary) addContainers(pod *corev1.Pod) {
	running := false
	for i := len(pod.Status.ContainerStatuses) - 1; i >= 0; i-- {
		c := &pod.Status.ContainerStatuses[i]
		s.restarts += int(c.RestartCount)
		s.lastRestart = later(s.lastRestart, c)
		switch {
		case c.State.Waiting != nil && c.State.Waiting.Reason != "":
			s.reason = c.State.Waiting.Reason
		case c.State.Terminated != nil:
			s.reason = endReason(c.State.Terminated)
		case c.Ready && c.State.Running != nil:
			running = true
			s.ready++
		}
	}
	if s.reason == "Completed" && running {
		s.reason = "NotReady"
		if conditionTrue(pod, corev1.PodReady) {
			s.reason = "Running"
		}
	}
}

func endReason(t *corev1.ContainerStateTerminated) string {
	switch {
	case t.Reason != "":
		return t.Reason
	case t.Signal != 0:
		return fmt.Sprintf("Signal:%d", t.Signal)
	default:
		return fmt.Sprintf("ExitCode:%d", t.ExitCode)
	}
}

func later(t metav1.Time, c *corev1.ContainerStatus) metav1.Time {
	if last := c.LastTerminationState.Terminated; last != nil && t.Before(&last.FinishedAt) {
		return last.FinishedAt
	}
	return t
}
