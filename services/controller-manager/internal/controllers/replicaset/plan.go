package replicaset

import (
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sampan-io/sampan/services/controller-manager/internal/pods"
)

// burst is how many pods one look creates or deletes at most.
const burst = 500

// plan is what one look at a ReplicaSet and its pods calls for.
type plan struct {
	create int
	remove []*corev1.Pod
}

// planPods compares the active pods of rs with what it asks for. Related are
// the pods of all ReplicaSets of the same owner: of surplus pods, those go first
// whose node has more of them.
func planPods(rs *appsv1.ReplicaSet, active, related []*corev1.Pod, now time.Time) plan {
	if rs.DeletionTimestamp != nil {
		return plan{}
	}
	surplus := len(active) - int(replicas(rs))
	switch {
	case surplus < 0:
		return plan{create: min(-surplus, burst)}
	case surplus > 0:
		return plan{remove: victims(active, related, min(surplus, burst), now)}
	default:
		return plan{}
	}
}

func replicas(rs *appsv1.ReplicaSet) int32 {
	if rs.Spec.Replicas == nil {
		return 1
	}
	return *rs.Spec.Replicas
}

// status is the status that rs should have, given its pods and the error of the
// last attempt to change them. recheck is when a pod next turns available by
// the passing of time alone; zero if none does.
func status(rs *appsv1.ReplicaSet, owned []*corev1.Pod, manageErr error, now time.Time) (next appsv1.ReplicaSetStatus, recheck time.Duration) {
	next = *rs.Status.DeepCopy()
	minReady := time.Duration(rs.Spec.MinReadySeconds) * time.Second
	template := labels.Set(rs.Spec.Template.Labels).AsSelectorPreValidated()
	next.Replicas, next.FullyLabeledReplicas, next.ReadyReplicas, next.AvailableReplicas = 0, 0, 0, 0
	var terminating, active int32
	for _, pod := range owned {
		if pods.Terminating(pod) {
			terminating++
		}
		if !pods.Active(pod) {
			continue
		}
		active++
		next.Replicas++
		if template.Matches(labels.Set(pod.Labels)) {
			next.FullyLabeledReplicas++
		}
		if pods.Ready(pod) {
			next.ReadyReplicas++
		}
		if pods.Available(pod, minReady, now) {
			next.AvailableReplicas++
		}
		if wait := pods.UntilAvailable(pod, minReady, now); wait > 0 && (recheck == 0 || wait < recheck) {
			recheck = wait
		}
	}
	next.TerminatingReplicas = &terminating
	next.ObservedGeneration = rs.Generation
	next.Conditions = failureCondition(next.Conditions, active-replicas(rs), manageErr, now)
	return next, recheck
}

// failureCondition sets ReplicaFailure when changing the pods failed, and
// removes it when it went well.
func failureCondition(conditions []appsv1.ReplicaSetCondition, surplus int32, manageErr error, now time.Time) []appsv1.ReplicaSetCondition {
	var kept []appsv1.ReplicaSetCondition
	for _, c := range conditions {
		if c.Type == appsv1.ReplicaSetReplicaFailure {
			if manageErr != nil {
				return conditions // stands already
			}
			continue
		}
		kept = append(kept, c)
	}
	if manageErr == nil {
		return kept
	}
	reason := "FailedCreate"
	if surplus > 0 {
		reason = "FailedDelete"
	}
	return append(kept, appsv1.ReplicaSetCondition{
		Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, Reason: reason,
		Message: fmt.Sprint(manageErr), LastTransitionTime: metaTime(now),
	})
}
