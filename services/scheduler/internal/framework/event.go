package framework

import (
	corev1 "k8s.io/api/core/v1"
)

// Resource is a kind of object whose changes can make a pod schedulable.
type Resource string

// The kinds that events are about.
const (
	PodResource       Resource = "Pod" // a pod on a node
	UnscheduledPod    Resource = "UnscheduledPod"
	NodeResource      Resource = "Node"
	NamespaceResource Resource = "Namespace"
	StorageResource   Resource = "Storage" // a claim, a persistent volume or a class
	Wildcard          Resource = "*"
)

// Action is what happened to an object, as bits.
type Action int

// The actions of events.
const (
	Add Action = 1 << iota
	Delete
	UpdateNodeAllocatable
	UpdateNodeLabels
	UpdateNodeTaints
	UpdateNodeCondition
	UpdatePodLabels
	UpdatePodScaleDown // it asks for less, or has ended
	UpdatePodGates     // scheduling gates were taken away
	UpdatePodOther
	UpdateNamespaceLabels

	UpdateNode = UpdateNodeAllocatable | UpdateNodeLabels | UpdateNodeTaints | UpdateNodeCondition
	All        = 1<<11 - 1
)

// Event is a change in the cluster.
type Event struct {
	Resource Resource
	Action   Action
	Label    string // upstream's name of the event, for metrics
}

// Change is an event with the node or pod that it is about, before and after. What
// it is not about is nil.
type Change struct {
	Event
	OldNode, NewNode *corev1.Node
	OldPod, NewPod   *corev1.Pod
}

// Hint says whether a change may make a pod schedulable that the plugin refused.
type Hint func(pod *corev1.Pod, change Change) bool

// Interest is a kind of event that a plugin wants to know of. A nil Hint is always
// yes.
type Interest struct {
	Resource Resource
	Actions  Action
	Hint     Hint
}

// Interested plugins say which events may undo their refusals. A refusal of a
// plugin without this is looked at again after any event.
type Interested interface {
	Interests() []Interest
}

// Helps says whether change may undo a refusal of plugin.
func Helps(plugin Plugin, pod *corev1.Pod, change Change) bool {
	interested, ok := plugin.(Interested)
	if !ok || change.Resource == Wildcard {
		return true
	}
	for _, interest := range interested.Interests() {
		if interest.Resource == change.Resource && interest.Actions&change.Action != 0 && (interest.Hint == nil || interest.Hint(pod, change)) {
			return true
		}
	}
	return false
}
