package status

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/criconfig"
)

// initialized tells whether the init containers have done what the others wait
// for: ended well, or, sidecars, started.
func initialized(pod *corev1.Pod, statuses []corev1.ContainerStatus) bool {
	for i := range pod.Spec.InitContainers {
		spec := &pod.Spec.InitContainers[i]
		status := find(statuses, spec.Name)
		if status == nil || !initDone(spec, status) {
			return false
		}
	}
	return true
}

func initDone(spec *corev1.Container, status *corev1.ContainerStatus) bool {
	if criconfig.Restartable(spec) {
		return status.Started != nil && *status.Started
	}
	return status.State.Terminated != nil && status.State.Terminated.ExitCode == 0
}

// tally counts containers by what they do.
type tally struct{ running, waiting, stopped, succeeded, unknown int }

func count(statuses []corev1.ContainerStatus) tally {
	var t tally
	for i := range statuses {
		state, last := &statuses[i].State, statuses[i].LastTerminationState.Terminated
		switch {
		case state.Running != nil:
			t.running++
		case state.Terminated != nil:
			t.stopped++
			if state.Terminated.ExitCode == 0 {
				t.succeeded++
			}
		case state.Waiting != nil && last != nil:
			t.stopped++
		case state.Waiting != nil:
			t.waiting++
		default:
			t.unknown++
		}
	}
	return t
}

// phase sums the containers up.
func phase(pod *corev1.Pod, status *corev1.PodStatus, in Input) corev1.PodPhase {
	if final(pod.Status.Phase) {
		return pod.Status.Phase
	}
	pendingInit, failedInit := initProgress(pod, status.InitContainerStatuses)
	t := count(status.ContainerStatuses)
	if in.Finished {
		// Nothing runs any more: it has ended well if all that ran did.
		if failedInit || t.succeeded != len(pod.Spec.Containers) {
			return corev1.PodFailed
		}
		return corev1.PodSucceeded
	}
	started := t.running > 0 || t.stopped > 0
	switch {
	case failedInit && pod.Spec.RestartPolicy == corev1.RestartPolicyNever:
		return corev1.PodFailed
	case pendingInit && !started:
		return corev1.PodPending
	case t.waiting > 0:
		return corev1.PodPending
	case started && t.unknown == 0:
		return corev1.PodRunning
	}
	return corev1.PodPending
}

// initProgress tells whether an init container has yet to do its work, and
// whether a regular one has failed.
func initProgress(pod *corev1.Pod, statuses []corev1.ContainerStatus) (pending, failed bool) {
	for i := range pod.Spec.InitContainers {
		spec := &pod.Spec.InitContainers[i]
		status := find(statuses, spec.Name)
		if status == nil {
			pending = true
			continue
		}
		if initDone(spec, status) {
			continue
		}
		pending = true
		if end := status.State.Terminated; end != nil && end.ExitCode != 0 && !criconfig.Restartable(spec) {
			failed = true
		}
	}
	return pending, failed
}
