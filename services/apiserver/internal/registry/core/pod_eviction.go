package core

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

var budgetResource = schema.GroupResource{Group: policyv1.GroupName, Resource: "poddisruptionbudgets"}

// maxDisruptedPods bounds the evictions that a budget's controller has not
// confirmed.
const maxDisruptedPods = 2000

// overBudget is the message of a refused eviction.
const overBudget = "Cannot evict pod as it would violate the pod's disruption budget."

// podEviction deletes a pod if its disruption budget allows that.
func podEviction(state func() registry.State) registry.Subresource {
	return registry.Subresource{
		Name: "eviction", Kind: policyv1.SchemeGroupVersion.WithKind("Eviction"), Verbs: []string{"create"},
		Create: &registry.Create{
			New: func() runtime.Object { return &policyv1.Eviction{} },
			Handle: func(ctx context.Context, namespace, name string, obj runtime.Object, dryRun bool) (runtime.Object, error) {
				eviction := obj.(*policyv1.Eviction)
				if eviction.Name != "" && eviction.Name != name {
					return nil, apierrors.NewBadRequest("name in URL does not match name in Eviction object")
				}
				e := evictor{state: state(), dryRun: dryRun, options: eviction.DeleteOptions}
				return e.evict(ctx, namespace, name)
			},
		},
	}
}

type evictor struct {
	state   registry.State
	dryRun  bool
	options *metav1.DeleteOptions
}

func (e *evictor) evict(ctx context.Context, namespace, name string) (runtime.Object, error) {
	obj, err := e.state.Get(ctx, podResource, namespace, name)
	if err != nil {
		return nil, err
	}
	pod := obj.(*corev1.Pod)
	guarded := !needsNoBudget(pod)
	if guarded {
		budget, err := e.budgetOf(ctx, pod)
		if err != nil {
			return nil, err
		}
		if budget != nil && !unhealthyMayGo(pod, budget) {
			if err := e.spend(ctx, pod, budget.Name); err != nil {
				return nil, err
			}
		}
	}
	options := &metav1.DeleteOptions{}
	if e.options != nil {
		options = e.options.DeepCopy()
	}
	// The decision holds for this pod, not for one made anew under its name.
	if options.Preconditions == nil {
		options.Preconditions = &metav1.Preconditions{}
	}
	if options.Preconditions.UID == nil {
		options.Preconditions.UID = &pod.UID
	}
	if err := e.state.Delete(ctx, podResource, namespace, name, options, e.dryRun); err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

// needsNoBudget says that a pod serves nobody: it has ended, not begun, or is
// already going.
func needsNoBudget(pod *corev1.Pod) bool {
	switch pod.Status.Phase {
	case corev1.PodSucceeded, corev1.PodFailed, corev1.PodPending:
		return true
	}
	return pod.DeletionTimestamp != nil
}

// budgetOf is the one budget that selects a pod, nil when none does.
func (e *evictor) budgetOf(ctx context.Context, pod *corev1.Pod) (*policyv1.PodDisruptionBudget, error) {
	objs, err := e.state.List(ctx, budgetResource, pod.Namespace)
	if err != nil {
		return nil, err
	}
	var found *policyv1.PodDisruptionBudget
	for _, obj := range objs {
		budget := obj.(*policyv1.PodDisruptionBudget)
		selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
		if err != nil || !selector.Matches(labels.Set(pod.Labels)) {
			continue
		}
		if found != nil {
			return nil, apierrors.NewInternalError(fmt.Errorf("This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."))
		}
		found = budget
	}
	return found, nil
}

// unhealthyMayGo says that a pod which is not ready may be evicted without
// counting against its budget.
func unhealthyMayGo(pod *corev1.Pod, budget *policyv1.PodDisruptionBudget) bool {
	if conditionTrue(pod, corev1.PodReady) {
		return false
	}
	if p := budget.Spec.UnhealthyPodEvictionPolicy; p != nil && *p == policyv1.AlwaysAllow {
		return true
	}
	return budget.Status.CurrentHealthy >= budget.Status.DesiredHealthy && budget.Status.DesiredHealthy > 0
}

// spend takes one allowed disruption from a budget, or answers 429.
func (e *evictor) spend(ctx context.Context, pod *corev1.Pod, name string) error {
	_, err := e.state.Update(ctx, budgetResource, "status", pod.Namespace, name, e.dryRun, func(obj runtime.Object) error {
		budget := obj.(*policyv1.PodDisruptionBudget)
		if err := mayDisrupt(budget); err != nil {
			return err
		}
		budget.Status.DisruptionsAllowed--
		if budget.Status.DisruptedPods == nil {
			budget.Status.DisruptedPods = map[string]metav1.Time{}
		}
		budget.Status.DisruptedPods[pod.Name] = metav1.Now()
		return nil
	})
	return err
}

func mayDisrupt(budget *policyv1.PodDisruptionBudget) error {
	status := &budget.Status
	switch {
	case status.ObservedGeneration < budget.Generation:
		return tooManyDisruptions(10, fmt.Sprintf("The disruption budget %s is still being processed by the server.", budget.Name))
	case status.DisruptionsAllowed < 0:
		return apierrors.NewForbidden(budgetResource, budget.Name, fmt.Errorf("pdb disruptions allowed is negative"))
	case len(status.DisruptedPods) > maxDisruptedPods:
		return apierrors.NewForbidden(budgetResource, budget.Name, fmt.Errorf("DisruptedPods map too big - too many evictions not confirmed by PDB controller"))
	case status.DisruptionsAllowed == 0:
		message := fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", budget.Name, status.DesiredHealthy, status.CurrentHealthy)
		for _, c := range status.Conditions {
			if c.Type == policyv1.DisruptionAllowedCondition && c.Status == metav1.ConditionFalse && c.Reason == policyv1.SyncFailedReason {
				message = fmt.Sprintf("The disruption budget %s does not allow evicting pods currently because it failed sync: %v", budget.Name, c.Message)
			}
		}
		return tooManyDisruptions(0, message)
	}
	return nil
}

func tooManyDisruptions(retrySeconds int, cause string) error {
	err := apierrors.NewTooManyRequests(overBudget, retrySeconds)
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
		Type: policyv1.DisruptionBudgetCause, Message: cause,
	})
	return err
}
