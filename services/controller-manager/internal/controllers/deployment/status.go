package deployment

import (
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Reasons of a Deployment's conditions.
const (
	reasonCreated      = "NewReplicaSetCreated"
	reasonFound        = "FoundNewReplicaSet"
	reasonUpdated      = "ReplicaSetUpdated"
	reasonDone         = "NewReplicaSetAvailable"
	reasonTimedOut     = "ProgressDeadlineExceeded"
	reasonCreateFailed = "ReplicaSetCreateError"
	reasonPaused       = "DeploymentPaused"
	reasonResumed      = "DeploymentResumed"
	reasonAvailable    = "MinimumReplicasAvailable"
	reasonUnavailable  = "MinimumReplicasUnavailable"
)

// noDeadline is what kubectl and clients write to mean that rollouts may take
// for ever.
const noDeadline = 1<<31 - 1

func hasDeadline(d *appsv1.Deployment) bool {
	return d.Spec.ProgressDeadlineSeconds != nil && *d.Spec.ProgressDeadlineSeconds != noDeadline
}

func condition(status *appsv1.DeploymentStatus, kind appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	for i := range status.Conditions {
		if status.Conditions[i].Type == kind {
			return &status.Conditions[i]
		}
	}
	return nil
}

// setCondition replaces a condition unless status and reason stay, and keeps the
// transition time while the status stays.
func setCondition(status *appsv1.DeploymentStatus, next appsv1.DeploymentCondition) {
	current := condition(status, next.Type)
	if current != nil && current.Status == next.Status && current.Reason == next.Reason {
		return
	}
	if current != nil && current.Status == next.Status {
		next.LastTransitionTime = current.LastTransitionTime
	}
	removeCondition(status, next.Type)
	status.Conditions = append(status.Conditions, next)
}

func removeCondition(status *appsv1.DeploymentStatus, kind appsv1.DeploymentConditionType) {
	var kept []appsv1.DeploymentCondition
	for _, c := range status.Conditions {
		if c.Type != kind {
			kept = append(kept, c)
		}
	}
	status.Conditions = kept
}

func newCondition(kind appsv1.DeploymentConditionType, is corev1.ConditionStatus, reason, message string, now time.Time) appsv1.DeploymentCondition {
	at := metav1.NewTime(now)
	return appsv1.DeploymentCondition{Type: kind, Status: is, Reason: reason, Message: message, LastUpdateTime: at, LastTransitionTime: at}
}

// count is d's status as its ReplicaSets' statuses add up, with the conditions
// that it has and Available brought up to date.
func count(d *appsv1.Deployment, all []*appsv1.ReplicaSet, newest *appsv1.ReplicaSet, now time.Time) appsv1.DeploymentStatus {
	next := appsv1.DeploymentStatus{
		ObservedGeneration:  d.Generation,
		Replicas:            sum(all, actual),
		UpdatedReplicas:     sum([]*appsv1.ReplicaSet{newest}, actual),
		ReadyReplicas:       sum(all, ready),
		AvailableReplicas:   sum(all, available),
		TerminatingReplicas: terminating(all),
		CollisionCount:      d.Status.CollisionCount,
		Conditions:          append([]appsv1.DeploymentCondition(nil), d.Status.Conditions...),
	}
	next.UnavailableReplicas = max(sum(all, size)-next.AvailableReplicas, 0)
	if next.AvailableReplicas >= wanted(d)-maxUnavailable(d) {
		setCondition(&next, newCondition(appsv1.DeploymentAvailable, corev1.ConditionTrue, reasonAvailable, "Deployment has minimum availability.", now))
	} else {
		setCondition(&next, newCondition(appsv1.DeploymentAvailable, corev1.ConditionFalse, reasonUnavailable, "Deployment does not have minimum availability.", now))
	}
	return next
}

// terminating is nil until every ReplicaSet reports its own.
func terminating(all []*appsv1.ReplicaSet) *int32 {
	var total int32
	for _, rs := range all {
		switch {
		case rs == nil:
		case rs.Status.TerminatingReplicas == nil:
			return nil
		default:
			total += *rs.Status.TerminatingReplicas
		}
	}
	return &total
}

func complete(d *appsv1.Deployment, status *appsv1.DeploymentStatus) bool {
	return status.UpdatedReplicas == wanted(d) && status.Replicas == wanted(d) &&
		status.AvailableReplicas == wanted(d) && status.ObservedGeneration >= d.Generation
}

func progressed(before, after *appsv1.DeploymentStatus) bool {
	return after.UpdatedReplicas > before.UpdatedReplicas ||
		after.Replicas-after.UpdatedReplicas < before.Replicas-before.UpdatedReplicas ||
		after.ReadyReplicas > before.ReadyReplicas ||
		after.AvailableReplicas > before.AvailableReplicas
}

// timedOut says whether a rollout has made no progress for its deadline.
func timedOut(d *appsv1.Deployment, status *appsv1.DeploymentStatus, now time.Time) bool {
	c := condition(status, appsv1.DeploymentProgressing)
	switch {
	case c == nil || c.Reason == reasonDone:
		return false
	case c.Reason == reasonTimedOut:
		return true
	}
	return c.LastUpdateTime.Add(deadline(d)).Before(now)
}

func deadline(d *appsv1.Deployment) time.Duration {
	return time.Duration(*d.Spec.ProgressDeadlineSeconds) * time.Second
}

// progress brings the Progressing and ReplicaFailure conditions of a rollout's
// next status up to date.
func progress(d *appsv1.Deployment, next *appsv1.DeploymentStatus, all []*appsv1.ReplicaSet, newest *appsv1.ReplicaSet, now time.Time) {
	current := condition(&d.Status, appsv1.DeploymentProgressing)
	if !hasDeadline(d) {
		removeCondition(next, appsv1.DeploymentProgressing)
	}
	finished := next.Replicas == next.UpdatedReplicas && current != nil && current.Reason == reasonDone
	if hasDeadline(d) && !finished {
		subject := fmt.Sprintf("Deployment %q", d.Name)
		if newest != nil {
			subject = fmt.Sprintf("ReplicaSet %q", newest.Name)
		}
		switch {
		case complete(d, next):
			setCondition(next, newCondition(appsv1.DeploymentProgressing, corev1.ConditionTrue, reasonDone, subject+" has successfully progressed.", now))
		case progressed(&d.Status, next):
			c := newCondition(appsv1.DeploymentProgressing, corev1.ConditionTrue, reasonUpdated, subject+" is progressing.", now)
			if current != nil && current.Status == corev1.ConditionTrue {
				c.LastTransitionTime = current.LastTransitionTime
			}
			removeCondition(next, appsv1.DeploymentProgressing)
			setCondition(next, c)
		case timedOut(d, next, now):
			setCondition(next, newCondition(appsv1.DeploymentProgressing, corev1.ConditionFalse, reasonTimedOut, subject+" has timed out progressing.", now))
		}
	}
	removeCondition(next, appsv1.DeploymentReplicaFailure)
	if failure := failures(all, newest); failure != nil {
		setCondition(next, *failure)
	}
}

// failures is the ReplicaFailure of a ReplicaSet, of the newest by preference,
// as a condition of the Deployment.
func failures(all []*appsv1.ReplicaSet, newest *appsv1.ReplicaSet) *appsv1.DeploymentCondition {
	for _, rs := range append([]*appsv1.ReplicaSet{newest}, all...) {
		if rs == nil {
			continue
		}
		for _, c := range rs.Status.Conditions {
			if c.Type == appsv1.ReplicaSetReplicaFailure {
				return &appsv1.DeploymentCondition{
					Type: appsv1.DeploymentReplicaFailure, Status: c.Status, Reason: c.Reason, Message: c.Message,
					LastUpdateTime: c.LastTransitionTime, LastTransitionTime: c.LastTransitionTime,
				}
			}
		}
	}
	return nil
}

// untilTimeout is how long at now a rollout may still stand still before its
// deadline passes; 0 when no deadline is running.
func untilTimeout(d *appsv1.Deployment, status *appsv1.DeploymentStatus, now time.Time) time.Duration {
	c := condition(status, appsv1.DeploymentProgressing)
	if !hasDeadline(d) || c == nil || complete(d, status) || c.Reason == reasonTimedOut || c.Reason == reasonDone {
		return 0
	}
	// A second more, because API times are cut to seconds.
	return max(c.LastUpdateTime.Add(deadline(d)).Sub(now), 0) + time.Second
}
