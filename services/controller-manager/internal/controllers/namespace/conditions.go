package namespace

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// remains is what one attempt to empty a namespace left.
type remains struct {
	discovery  error
	failed     []error
	remaining  map[schema.GroupResource]int
	finalizers map[string]int
}

// conditions is the five conditions of a namespace that is being deleted. A
// condition that never was true is not made.
func (r remains) conditions(current []corev1.NamespaceCondition, now time.Time) []corev1.NamespaceCondition {
	next := slices.Clone(current)
	set := func(kind corev1.NamespaceConditionType, bad bool, badReason, badMessage, goodReason, goodMessage string) {
		c := corev1.NamespaceCondition{Type: kind, Status: corev1.ConditionFalse, Reason: goodReason, Message: goodMessage, LastTransitionTime: metav1.NewTime(now)}
		if bad {
			c.Status, c.Reason, c.Message = corev1.ConditionTrue, badReason, badMessage
		}
		at := slices.IndexFunc(next, func(other corev1.NamespaceCondition) bool { return other.Type == kind })
		if at < 0 {
			next = append(next, c)
			return
		}
		if next[at].Status == c.Status {
			c.LastTransitionTime = next[at].LastTransitionTime
		}
		next[at] = c
	}
	set(corev1.NamespaceDeletionDiscoveryFailure, r.discovery != nil, "DiscoveryFailed", "Discovery failed for some groups: "+message(r.discovery),
		"ResourcesDiscovered", "All resources successfully discovered")
	set(corev1.NamespaceDeletionGVParsingFailure, false, "", "", "ParsedGroupVersions", "All legacy kube types successfully parsed")
	set(corev1.NamespaceDeletionContentFailure, len(r.failed) > 0, "ContentDeletionFailed",
		"Failed to delete all resource types, "+fmt.Sprint(len(r.failed))+" remaining: "+message(errors.Join(r.failed...)),
		"ContentDeleted", "All content successfully deleted, may be waiting on finalization")
	set(corev1.NamespaceContentRemaining, len(r.remaining) > 0, "SomeResourcesRemain", "Some resources are remaining: "+r.left(),
		"ContentRemoved", "All content successfully removed")
	set(corev1.NamespaceFinalizersRemaining, len(r.finalizers) > 0, "SomeFinalizersRemain", "Some content in the namespace has finalizers remaining: "+r.holding(),
		"ContentHasNoFinalizers", "All content-preserving finalizers finished")
	return next
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(err.Error(), "\n", ", ")
}

func (r remains) left() string {
	var parts []string
	for resource, count := range r.remaining {
		parts = append(parts, fmt.Sprintf("%s. has %d resource instances", strings.TrimSuffix(resource.String(), "."), count))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

func (r remains) holding() string {
	var parts []string
	for _, finalizer := range slices.Sorted(maps.Keys(r.finalizers)) {
		parts = append(parts, fmt.Sprintf("%s in %d resource instances", finalizer, r.finalizers[finalizer]))
	}
	return strings.Join(parts, ", ")
}

// inOrder puts pods after what makes pods, and before what pods use.
func inOrder(resources []schema.GroupVersionResource) []schema.GroupVersionResource {
	rank := func(r schema.GroupVersionResource) int {
		switch {
		case r.Group == "apps" || r.Group == "batch" || r.Group == "" && r.Resource == "replicationcontrollers":
			return 0
		case r.Group == "" && r.Resource == "pods":
			return 1
		default:
			return 2
		}
	}
	slices.SortFunc(resources, func(a, b schema.GroupVersionResource) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.String(), b.String()))
	})
	return resources
}
