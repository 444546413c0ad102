// Package quota measures what objects count for in ResourceQuotas. The API
// server charges by it when objects are written, the controller manager counts by
// it what is there: both must come to the same figures.
package quota

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Evaluator measures the objects of one resource. An object of another type than
// the resource's counts for nothing.
type Evaluator interface {
	// Resource is what is measured.
	Resource() schema.GroupResource
	// Tracks says whether a quota's resource of that name is about this resource.
	Tracks(name corev1.ResourceName) bool
	// Usage is what one object counts for, of all names that Tracks knows.
	Usage(obj runtime.Object) corev1.ResourceList
	// InScope says whether an object is in a quota's scope.
	InScope(scope corev1.ScopedResourceSelectorRequirement, obj runtime.Object) bool
	// Check refuses an object that does not say what quotas on these names need to
	// know of it.
	Check(names []corev1.ResourceName, obj runtime.Object) error
	// Charges says whether a write may change what the object counts for; old is nil
	// for a create.
	Charges(subresource string, obj, old runtime.Object) bool
	// Freed says whether an update lowers what the object counts for, so that a
	// count of the namespace is due.
	Freed(obj, old runtime.Object) bool
}

// CountName is the name under which all objects of a resource are counted.
func CountName(resource schema.GroupResource) corev1.ResourceName {
	if resource.Group == "" {
		return corev1.ResourceName(countPrefix + resource.Resource)
	}
	return corev1.ResourceName(countPrefix + resource.Resource + "." + resource.Group)
}

const countPrefix = "count/"

// Counted is the resource that a name of the form count/<resource>.<group> counts.
func Counted(name corev1.ResourceName) (schema.GroupResource, bool) {
	text, ok := strings.CutPrefix(string(name), countPrefix)
	if !ok || text == "" {
		return schema.GroupResource{}, false
	}
	resource, group, _ := strings.Cut(text, ".")
	return schema.GroupResource{Group: group, Resource: resource}, true
}

// Evaluators are those that measure more than a number of objects, or count under
// an older name too. Every other resource is counted by a Counter.
func Evaluators() []Evaluator {
	return []Evaluator{
		pods{}, services{}, volumeClaims{}, deviceClaims{},
		NewCounter(corev1.Resource("configmaps"), corev1.ResourceConfigMaps),
		NewCounter(corev1.Resource("resourcequotas"), corev1.ResourceQuotas),
		NewCounter(corev1.Resource("replicationcontrollers"), corev1.ResourceReplicationControllers),
		NewCounter(corev1.Resource("secrets"), corev1.ResourceSecrets),
	}
}

// For is the evaluator of a resource.
func For(resource schema.GroupResource) Evaluator {
	for _, evaluator := range Evaluators() {
		if evaluator.Resource() == resource {
			return evaluator
		}
	}
	return NewCounter(resource)
}

// Ignored says whether objects of a resource never count: those that are not
// stored, and events.
func Ignored(resource schema.GroupResource) bool {
	switch resource.Group {
	case "":
		return resource.Resource == "bindings" || resource.Resource == "componentstatuses" || resource.Resource == "events"
	case "events.k8s.io":
		return resource.Resource == "events"
	case "authentication.k8s.io", "authorization.k8s.io":
		return strings.HasSuffix(resource.Resource, "reviews")
	}
	return false
}

// Scopes are all scopes of a quota, as requirements.
func Scopes(spec *corev1.ResourceQuotaSpec) []corev1.ScopedResourceSelectorRequirement {
	var all []corev1.ScopedResourceSelectorRequirement
	for _, scope := range spec.Scopes {
		all = append(all, corev1.ScopedResourceSelectorRequirement{ScopeName: scope, Operator: corev1.ScopeSelectorOpExists})
	}
	if spec.ScopeSelector != nil {
		all = append(all, spec.ScopeSelector.MatchExpressions...)
	}
	return all
}

// InScopes says whether an object is in every scope of a quota.
func InScopes(e Evaluator, spec *corev1.ResourceQuotaSpec, obj runtime.Object) bool {
	for _, scope := range Scopes(spec) {
		if !e.InScope(scope, obj) {
			return false
		}
	}
	return true
}

// Tracked are the names among a list's that an evaluator tracks.
func Tracked(e Evaluator, list corev1.ResourceList) []corev1.ResourceName {
	var names []corev1.ResourceName
	for name := range list {
		if e.Tracks(name) {
			names = append(names, name)
		}
	}
	return names
}

// selects says whether a scope selects one of the values, which are the names of
// the classes that the object is of. An object of none is selected by what selects
// the absence of a class.
func selects(scope corev1.ScopedResourceSelectorRequirement, values ...string) bool {
	if scope.Operator == corev1.ScopeSelectorOpExists {
		return len(values) > 0
	}
	requirement := metav1.LabelSelectorRequirement{Key: string(scope.ScopeName), Operator: metav1.LabelSelectorOperator(scope.Operator), Values: scope.Values}
	selector, err := metav1.LabelSelectorAsSelector(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{requirement}})
	if err != nil {
		return false // refused when the quota was written
	}
	if len(values) == 0 {
		return selector.Matches(labels.Set{})
	}
	for _, value := range values {
		if selector.Matches(labels.Set{string(scope.ScopeName): value}) {
			return true
		}
	}
	return false
}

// unscoped is the part of an evaluator whose objects are in no scope and have
// nothing to say.
type unscoped struct{}

// InScope implements Evaluator.
func (unscoped) InScope(corev1.ScopedResourceSelectorRequirement, runtime.Object) bool { return false }

// Check implements Evaluator.
func (unscoped) Check([]corev1.ResourceName, runtime.Object) error { return nil }

// Counter counts objects.
type Counter struct {
	unscoped
	resource schema.GroupResource
	names    []corev1.ResourceName
}

// NewCounter counts the objects of a resource, under older names too.
func NewCounter(resource schema.GroupResource, aliases ...corev1.ResourceName) *Counter {
	return &Counter{resource: resource, names: append([]corev1.ResourceName{CountName(resource)}, aliases...)}
}

// Resource implements Evaluator.
func (c *Counter) Resource() schema.GroupResource { return c.resource }

// Tracks implements Evaluator.
func (c *Counter) Tracks(name corev1.ResourceName) bool {
	for _, own := range c.names {
		if own == name {
			return true
		}
	}
	return false
}

// Usage implements Evaluator.
func (c *Counter) Usage(runtime.Object) corev1.ResourceList {
	list := corev1.ResourceList{}
	for _, name := range c.names {
		list[name] = number(1)
	}
	return list
}

// Charges implements Evaluator.
func (c *Counter) Charges(subresource string, _, old runtime.Object) bool {
	return subresource == "" && old == nil
}

// Freed implements Evaluator.
func (c *Counter) Freed(_, _ runtime.Object) bool { return false }
