package report

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	policylisters "k8s.io/client-go/listers/policy/v1"

	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
)

// evictTimeout bounds the requests for one victim.
const evictTimeout = 30 * time.Second

// Evictor removes pods that have to make room.
type Evictor struct {
	*Reporter
	// PodDisruptionBudgets are read from the informer.
	PodDisruptionBudgets policylisters.PodDisruptionBudgetLister
}

// Evict says on victim why it goes, and deletes it. It returns at once. A victim
// that could not be removed is chosen again when the preemptor is tried again.
func (e Evictor) Evict(victim, preemptor *corev1.Pod, node string) {
	if victim.DeletionTimestamp != nil {
		return
	}
	e.background.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), evictTimeout)
		defer cancel()
		if err := e.evict(ctx, victim, preemptor); err != nil {
			e.log.Warn("Evicting a pod", "pod", victim.Namespace+"/"+victim.Name, "for", preemptor.Namespace+"/"+preemptor.Name, "err", err)
			return
		}
		e.recorder.Eventf(victim, preemptor, corev1.EventTypeNormal, "Preempted", "Preempting", "Preempted by pod %v on node %v", preemptor.UID, node)
	})
}

func (e Evictor) evict(ctx context.Context, victim, preemptor *corev1.Pod) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": victim.UID},
		"status": map[string]any{"conditions": []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler,
			Message:            fmt.Sprintf("%s: preempting to accommodate a higher priority pod", preemptor.Spec.SchedulerName),
			LastTransitionTime: metav1.Now(), ObservedGeneration: victim.Generation,
		}}},
	})
	if err != nil {
		return fmt.Errorf("encoding condition: %w", err)
	}
	pods := e.client.CoreV1().Pods(victim.Namespace)
	if _, err = pods.Patch(ctx, victim.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err == nil {
		err = pods.Delete(ctx, victim.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(victim.UID))})
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // gone already
	}
	return err
}

// Budgets is the disruption budgets that select pod.
func (e Evictor) Budgets(pod *corev1.Pod) []framework.Budget {
	budgets, err := e.PodDisruptionBudgets.PodDisruptionBudgets(pod.Namespace).List(labels.Everything())
	if err != nil {
		return nil // a lister over memory does not fail
	}
	var found []framework.Budget
	for _, budget := range budgets {
		selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
		if err != nil || selector.Empty() || !selector.Matches(labels.Set(pod.Labels)) {
			continue
		}
		if _, disrupted := budget.Status.DisruptedPods[pod.Name]; disrupted {
			continue // counted already
		}
		found = append(found, framework.Budget{Key: budget.Namespace + "/" + budget.Name, Allowed: budget.Status.DisruptionsAllowed})
	}
	return found
}
