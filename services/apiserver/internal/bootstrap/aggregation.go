package bootstrap

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// Aggregated are the rules that an aggregated role gathers from roles: those of
// each role that one of its selectors matches, by name, without repeats.
func Aggregated(role *rbacv1.ClusterRole, roles []*rbacv1.ClusterRole) []rbacv1.PolicyRule {
	sorted := slices.Clone(roles)
	slices.SortFunc(sorted, func(a, b *rbacv1.ClusterRole) int { return strings.Compare(a.Name, b.Name) })
	var rules []rbacv1.PolicyRule
	for i := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			continue // validation lets none such in
		}
		for _, other := range sorted {
			if other.Name == role.Name || !selector.Matches(labels.Set(other.Labels)) {
				continue
			}
			for _, rule := range other.Rules {
				if !slices.ContainsFunc(rules, func(have rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(have, rule) }) {
					rules = append(rules, rule)
				}
			}
		}
	}
	return rules
}

// Aggregator keeps the rules of aggregated ClusterRoles current, as upstream's
// controller of that name does.
type Aggregator struct {
	state registry.State
	log   *slog.Logger
}

// NewAggregator makes an aggregator over state.
func NewAggregator(state registry.State, log *slog.Logger) *Aggregator {
	return &Aggregator{state: state, log: log}
}

// Run follows ClusterRoles until ctx ends. It returns an error only when it
// cannot follow them.
func (a *Aggregator) Run(ctx context.Context) error {
	wake := make(chan struct{}, 1)
	changed := func(old, new runtime.Object) {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	if err := a.state.Subscribe(ctx, rbacv1.Resource("clusterroles"), changed); err != nil {
		return fmt.Errorf("following clusterroles: %w", err)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
			if err := a.Reconcile(ctx); err != nil && ctx.Err() == nil {
				a.log.Error("Aggregating cluster roles", "err", err)
			}
		}
	}
}

// Reconcile writes the aggregated roles whose rules are not what they gather. A
// role that gathers from another aggregated role settles when called again, as
// the write wakes Run.
func (a *Aggregator) Reconcile(ctx context.Context) error {
	objects, err := a.state.List(ctx, rbacv1.Resource("clusterroles"), "")
	if err != nil {
		return err
	}
	var roles []*rbacv1.ClusterRole
	for _, obj := range objects {
		if role, ok := obj.(*rbacv1.ClusterRole); ok {
			roles = append(roles, role)
		}
	}
	for _, role := range roles {
		if role.AggregationRule == nil {
			continue
		}
		rules := Aggregated(role, roles)
		if equality.Semantic.DeepEqual(role.Rules, rules) {
			continue
		}
		_, err := a.state.Update(ctx, rbacv1.Resource("clusterroles"), "", "", role.Name, false, func(obj runtime.Object) error {
			if fresh, ok := obj.(*rbacv1.ClusterRole); ok && fresh.AggregationRule != nil {
				fresh.Rules = rules
			}
			return nil
		})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("aggregating cluster role %s: %w", role.Name, err)
		}
	}
	return nil
}
