package quota

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// List lists the objects of a resource in a quota's namespace. Of a resource that
// is only counted it may give anything that stands for an object.
type List func(resource schema.GroupResource) ([]runtime.Object, error)

// Used is what the objects that there are use of a quota, of all its hard names
// that are about objects. When a resource cannot be listed its names are left
// out, and the error says so.
func Used(spec *corev1.ResourceQuotaSpec, list List) (corev1.ResourceList, error) {
	used := corev1.ResourceList{}
	var errs []error
	for _, evaluator := range about(spec.Hard) {
		tracked := corev1.ResourceList{}
		for _, name := range Tracked(evaluator, spec.Hard) {
			tracked[name] = number(0)
		}
		objects, err := list(evaluator.Resource())
		if err != nil {
			errs = append(errs, fmt.Errorf("listing %s: %w", evaluator.Resource(), err))
			continue
		}
		sum := Add(tracked, nil)
		for _, obj := range objects {
			if InScopes(evaluator, spec, obj) {
				sum = Add(sum, Only(evaluator.Usage(obj), tracked))
			}
		}
		used = Add(used, sum)
	}
	return used, errors.Join(errs...)
}

// Resources are those whose objects a quota is about.
func Resources(spec *corev1.ResourceQuotaSpec) []schema.GroupResource {
	var all []schema.GroupResource
	for _, evaluator := range about(spec.Hard) {
		all = append(all, evaluator.Resource())
	}
	return all
}

// about are the evaluators that track a name of the list.
func about(hard corev1.ResourceList) []Evaluator {
	var out []Evaluator
	seen := map[schema.GroupResource]bool{}
	for _, evaluator := range Evaluators() {
		seen[evaluator.Resource()] = true
		if len(Tracked(evaluator, hard)) > 0 {
			out = append(out, evaluator)
		}
	}
	for name := range hard {
		if resource, ok := Counted(name); ok && !seen[resource] && !Ignored(resource) {
			seen[resource] = true
			out = append(out, NewCounter(resource))
		}
	}
	slices.SortFunc(out, func(a, b Evaluator) int { return strings.Compare(a.Resource().String(), b.Resource().String()) })
	return out
}
