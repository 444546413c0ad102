package quota

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sampan-io/sampan/services/internal/quota"
)

// Limited says what may be used only where a quota covers it, upstream's
// LimitedResource.
type Limited struct {
	APIGroup string `json:"apiGroup,omitempty"`
	Resource string `json:"resource"`
	// MatchContains are parts of names of resources.
	MatchContains []string `json:"matchContains,omitempty"`
	// MatchScopes are scopes of objects.
	MatchScopes []corev1.ScopedResourceSelectorRequirement `json:"matchScopes,omitempty"`
}

// ledger is the quotas of a namespace with what is used of them while a batch is
// judged.
type ledger struct {
	quotas  []*corev1.ResourceQuota
	used    []corev1.ResourceList
	changed []bool
	// closed are those that an earlier round has written for the whole batch.
	closed []bool
}

func newLedger(quotas []*corev1.ResourceQuota, written map[string]bool) *ledger {
	l := &ledger{quotas: quotas, used: make([]corev1.ResourceList, len(quotas)), changed: make([]bool, len(quotas)), closed: make([]bool, len(quotas))}
	for i, q := range quotas {
		l.used[i], l.closed[i] = q.Status.Used, written[q.Name]
	}
	return l
}

// matching are the indices of the quotas that a write is about, after all have
// agreed that it says what they must know.
func (l *ledger) matching(r *request) ([]int, error) {
	var matching []int
	for i, q := range l.quotas {
		tracked := quota.Tracked(r.evaluator, q.Status.Hard)
		if len(tracked) == 0 || !quota.InScopes(r.evaluator, &q.Spec, r.attributes.Object) {
			continue
		}
		if err := r.evaluator.Check(tracked, r.attributes.Object); err != nil {
			return nil, fmt.Errorf("failed quota: %s: %w", q.Name, err)
		}
		if slices.ContainsFunc(tracked, func(name corev1.ResourceName) bool { _, known := q.Status.Used[name]; return !known }) {
			return nil, fmt.Errorf("status unknown for quota: %s, resources: %s", q.Name, quota.FormatNames(tracked))
		}
		matching = append(matching, i)
	}
	return matching, nil
}

// evaluate charges a write in the ledger, or says why it must not be. The write
// keeps what earlier rounds have charged it.
func (l *Limiter) evaluate(running *ledger, r *request) error {
	err := l.charge(running, r)
	var status apierrors.APIStatus
	if err == nil || errors.As(err, &status) {
		return err
	}
	a := r.attributes
	return apierrors.NewForbidden(a.Resource.GroupResource(), a.Name, err)
}

func (l *Limiter) charge(running *ledger, r *request) error {
	matching, err := running.matching(r)
	if err != nil {
		return err
	}
	growth, usage, err := growth(r)
	if err != nil {
		return err
	}
	deltas := map[int]corev1.ResourceList{}
	for _, i := range matching {
		delta := growth
		if r.attributes.OldObject != nil && !quota.InScopes(r.evaluator, &running.quotas[i].Spec, r.attributes.OldObject) {
			delta = usage // it comes from another scope
		}
		if delta = quota.Growth(nil, delta); len(delta) > 0 {
			deltas[i] = delta
		}
	}
	if len(matching) > 0 && len(deltas) == 0 || len(matching) == 0 && len(growth) == 0 {
		return nil
	}
	if err := l.covered(running, r, matching); err != nil {
		return err
	}
	return running.apply(r, matching, deltas)
}

// growth is by how much a write makes the object count for more, and what it
// counts for after.
func growth(r *request) (growth, usage corev1.ResourceList, err error) {
	usage = r.evaluator.Usage(r.attributes.Object)
	var negative []corev1.ResourceName
	for name, value := range usage {
		if value.Sign() < 0 {
			negative = append(negative, name)
		}
	}
	if len(negative) > 0 {
		return nil, nil, fmt.Errorf("quota usage is negative for resource(s): %s", quota.FormatNames(negative))
	}
	var before corev1.ResourceList
	if stored(r.attributes.OldObject) {
		before = r.evaluator.Usage(r.attributes.OldObject)
	}
	return quota.Growth(before, usage), usage, nil
}

// stored says whether an update's old object is one: an update that creates has
// none.
func stored(old runtime.Object) bool {
	if old == nil {
		return false
	}
	accessor, err := meta.Accessor(old)
	return err == nil && accessor.GetResourceVersion() != ""
}

// apply charges all quotas, or none.
func (l *ledger) apply(r *request, matching []int, deltas map[int]corev1.ResourceList) error {
	after := map[int]corev1.ResourceList{}
	for _, i := range matching {
		delta, ok := deltas[i]
		if !ok || l.closed[i] {
			continue
		}
		hard := l.quotas[i].Status.Hard
		asked := quota.Only(delta, hard)
		sum := quota.Add(l.used[i], asked)
		if over := quota.Exceeded(quota.Only(sum, asked), hard); len(over) > 0 && r.attributes.Subresource != "status" {
			return fmt.Errorf("exceeded quota: %s, requested: %s, used: %s, limited: %s", l.quotas[i].Name,
				quota.Format(quota.Only(asked, over)), quota.Format(quota.Only(l.used[i], over)), quota.Format(quota.Only(hard, over)))
		}
		if !quota.Equal(sum, l.used[i]) {
			after[i] = sum
		}
	}
	if r.attributes.DryRun {
		return nil
	}
	for i, sum := range after {
		l.used[i], l.changed[i] = sum, true
	}
	return nil
}

// covered refuses what is limited by configuration and is in no quota.
func (l *Limiter) covered(running *ledger, r *request, matching []int) error {
	var uncovered []corev1.ResourceName
	for _, name := range l.limitedNames(r) {
		if !slices.ContainsFunc(matching, func(i int) bool {
			_, ok := running.quotas[i].Status.Hard[name]
			return ok
		}) {
			uncovered = append(uncovered, name)
		}
	}
	if len(uncovered) > 0 {
		return fmt.Errorf("insufficient quota to consume: %s", quota.FormatNames(uncovered))
	}
	var scopes []corev1.ScopedResourceSelectorRequirement
	for _, limited := range l.limited {
		for _, scope := range limited.MatchScopes {
			if r.evaluator.InScope(scope, r.attributes.Object) && !running.hasScope(r, scope.ScopeName) {
				scopes = append(scopes, scope)
			}
		}
	}
	if len(scopes) > 0 {
		return fmt.Errorf("insufficient quota to match these scopes: %v", scopes)
	}
	return nil
}

// hasScope says whether a quota has a scope of that name that the object is in.
func (l *ledger) hasScope(r *request, name corev1.ResourceQuotaScope) bool {
	for _, q := range l.quotas {
		for _, scope := range quota.Scopes(&q.Spec) {
			if scope.ScopeName == name && r.evaluator.InScope(scope, r.attributes.Object) {
				return true
			}
		}
	}
	return false
}

// limitedNames are the names that the object counts under and that a quota must
// cover.
func (l *Limiter) limitedNames(r *request) []corev1.ResourceName {
	var names []corev1.ResourceName
	usage := r.evaluator.Usage(r.attributes.Object)
	for _, limited := range l.limited {
		if r.attributes.Resource.Group != limited.APIGroup || r.attributes.Resource.Resource != limited.Resource {
			continue
		}
		for name, value := range usage {
			if value.Sign() > 0 && slices.ContainsFunc(limited.MatchContains, func(part string) bool { return strings.Contains(string(name), part) }) {
				names = append(names, name)
			}
		}
	}
	return names
}
