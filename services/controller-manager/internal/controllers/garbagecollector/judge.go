package garbagecollector

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// standing is how an owner is.
type standing int

const (
	solid   standing = iota // it exists
	absent                  // it does not, verified live
	waiting                 // it is being deleted and waits for its dependents
	unclear                 // it cannot be looked up: nothing is deleted for its sake
)

// step is what to do with an object.
type step struct {
	// drop is owners to take out of its references: others still hold it.
	drop []types.UID
	// remove deletes it with policy.
	remove bool
	policy metav1.DeletionPropagation
	// unblock makes it not hold up its owners first: they wait in a circle.
	unblock bool
}

// judge decides what becomes of an object whose owners stand as given, by their
// order. An object goes only when every owner is gone or waits for it; a reference
// to an owner that is gone is dropped while another holds the object.
func judge(object metav1.Object, owners []standing, dependents []*node) step {
	var s step
	held, waits := false, false
	refs := object.GetOwnerReferences()
	for i, state := range owners {
		switch state {
		case unclear:
			return step{}
		case solid:
			held = true
		case waiting:
			waits = true
			s.drop = append(s.drop, refs[i].UID)
		case absent:
			s.drop = append(s.drop, refs[i].UID)
		}
	}
	switch {
	case len(refs) == 0 || held && len(s.drop) == 0:
		return step{}
	case held:
		return s
	case waits && len(dependents) > 0:
		return step{remove: true, policy: metav1.DeletePropagationForeground, unblock: slices.ContainsFunc(dependents, func(d *node) bool { return d.foreground })}
	default:
		return step{remove: true, policy: policyOf(object)}
	}
}

// policyOf keeps what the object's finalizers ask for.
func policyOf(object metav1.Object) metav1.DeletionPropagation {
	switch finalizers := object.GetFinalizers(); {
	case slices.Contains(finalizers, metav1.FinalizerOrphanDependents):
		return metav1.DeletePropagationOrphan
	case slices.Contains(finalizers, metav1.FinalizerDeleteDependents):
		return metav1.DeletePropagationForeground
	default:
		return metav1.DeletePropagationBackground
	}
}
