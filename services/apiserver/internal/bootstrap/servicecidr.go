package bootstrap

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

var serviceCIDRs = schema.GroupResource{Group: networkingv1.GroupName, Resource: "servicecidrs"}

const defaultServiceCIDR = "kubernetes"

// ensureServiceCIDR makes the object of the ranges that the server was started
// with. One that exists is left as it is, for addresses depend on it, but may gain
// the second family; it is called ready when nobody has said whether it is.
func ensureServiceCIDR(ctx context.Context, state registry.State, ranges []netip.Prefix) error {
	var cidrs []string
	for _, prefix := range ranges {
		cidrs = append(cidrs, prefix.String())
	}
	if cidrs == nil {
		return nil
	}
	want := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: defaultServiceCIDR}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
	err := ensure(ctx, state, item{serviceCIDRs, want, func(obj runtime.Object) (bool, error) {
		have, ok := obj.(*networkingv1.ServiceCIDR)
		if !ok {
			return false, fmt.Errorf("a ServiceCIDR is a %T", obj)
		}
		if len(cidrs) != 2 || len(have.Spec.CIDRs) != 1 || have.Spec.CIDRs[0] != cidrs[0] {
			return false, nil
		}
		have.Spec.CIDRs = cidrs
		return true, nil
	}})
	if err != nil {
		return fmt.Errorf("ensuring ServiceCIDR %s: %w", defaultServiceCIDR, err)
	}
	return markReady(ctx, state, cidrs)
}

func markReady(ctx context.Context, state registry.State, cidrs []string) error {
	obj, err := state.Get(ctx, serviceCIDRs, "", defaultServiceCIDR)
	if err != nil {
		return fmt.Errorf("reading ServiceCIDR %s: %w", defaultServiceCIDR, err)
	}
	have, ok := obj.(*networkingv1.ServiceCIDR)
	if !ok || !unjudged(have, cidrs) {
		return nil
	}
	_, err = state.Update(ctx, serviceCIDRs, "status", "", defaultServiceCIDR, false, func(fresh runtime.Object) error {
		if have, ok := fresh.(*networkingv1.ServiceCIDR); ok && unjudged(have, cidrs) {
			meta.SetStatusCondition(&have.Status.Conditions, metav1.Condition{
				Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue, Message: "Kubernetes default Service CIDR is ready",
			})
		}
		return nil
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// unjudged says that a ServiceCIDR is that of these ranges and stays, and that
// nobody has said whether it is ready.
func unjudged(have *networkingv1.ServiceCIDR, cidrs []string) bool {
	condition := meta.FindStatusCondition(have.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
	return have.DeletionTimestamp == nil && slices.Equal(have.Spec.CIDRs, cidrs) && (condition == nil || condition.Status == metav1.ConditionUnknown)
}
