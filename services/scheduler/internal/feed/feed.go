// Package feed carries what the API tells of pods, nodes and namespaces into the
// scheduler's cache and queue.
package feed

import (
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	schedulercache "github.com/sampan-io/sampan/services/scheduler/internal/cache"
	"github.com/sampan-io/sampan/services/scheduler/internal/cluster"
	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
	"github.com/sampan-io/sampan/services/scheduler/internal/queue"
	"github.com/sampan-io/sampan/services/scheduler/internal/scheduler"
)

// Feed turns notifications of informers into changes of cache and queue. The cache
// is always changed before the queue is told, so that a pod that is tried again
// sees the change.
type Feed struct {
	Cache    *schedulercache.Cache
	Queue    *queue.Queue
	Nominees *scheduler.Nominees
	// Responsible says whether pods of a scheduler name are ours.
	Responsible func(schedulerName string) bool
	Log         *slog.Logger
}

// Pods is the handler of pod notifications.
func (f *Feed) Pods() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if pod, ok := obj.(*corev1.Pod); ok {
				f.podChanged(nil, pod)
			}
		},
		UpdateFunc: func(before, after any) {
			old, okOld := before.(*corev1.Pod)
			pod, okNew := after.(*corev1.Pod)
			if !okOld || !okNew {
				return
			}
			if old.UID != pod.UID { // deleted and made again between two looks
				f.podGone(old)
				old = nil
			}
			f.podChanged(old, pod)
		},
		DeleteFunc: func(obj any) {
			if pod, ok := gone[*corev1.Pod](obj); ok {
				f.podGone(pod)
			}
		},
	}
}

func gone[T any](obj any) (T, bool) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	typed, ok := obj.(T)
	return typed, ok
}

func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// onNode says whether pod takes room on a node.
func onNode(pod *corev1.Pod) bool { return pod != nil && pod.Spec.NodeName != "" && !ended(pod) }

func (f *Feed) podChanged(old, pod *corev1.Pod) {
	switch {
	case onNode(pod):
		f.placed(old, pod)
	case onNode(old):
		f.podGone(old) // it has ended
	case pod.Spec.NodeName == "" && !ended(pod) && f.Responsible(pod.Spec.SchedulerName):
		f.waits(old, pod)
	default:
		f.Queue.Remove(pod.UID)
		f.Nominees.Remove(pod.UID)
	}
}

// placed notes a pod on a node.
func (f *Feed) placed(old, pod *corev1.Pod) {
	if err := f.Cache.SetPod(pod); err != nil {
		f.Log.Error("Pod on a node does not parse", "pod", pod.Namespace+"/"+pod.Name, "err", err)
		return
	}
	if onNode(old) {
		if action := podActions(old, pod); action != 0 {
			f.Queue.Change(framework.Change{
				Event: framework.Event{Resource: framework.PodResource, Action: action, Label: "AssignedPodUpdate"}, OldPod: old, NewPod: pod,
			})
		}
		return
	}
	f.Queue.Remove(pod.UID)
	f.Nominees.Remove(pod.UID)
	f.Queue.Change(framework.Change{
		Event: framework.Event{Resource: framework.PodResource, Action: framework.Add, Label: "AssignedPodAdd"}, NewPod: pod,
	})
}

func podActions(old, pod *corev1.Pod) framework.Action {
	var action framework.Action
	if !labels.Equals(old.Labels, pod.Labels) {
		action |= framework.UpdatePodLabels
	}
	if lessRequested(old, pod) {
		action |= framework.UpdatePodScaleDown
	}
	if old.DeletionTimestamp == nil && pod.DeletionTimestamp != nil {
		action |= framework.UpdatePodLabels // spread does not count it any more
	}
	return action
}

func lessRequested(old, pod *corev1.Pod) bool {
	if equality.Semantic.DeepEqual(old.Spec.Containers, pod.Spec.Containers) && equality.Semantic.DeepEqual(old.Spec.Resources, pod.Spec.Resources) &&
		equality.Semantic.DeepEqual(old.Status.ContainerStatuses, pod.Status.ContainerStatuses) {
		return false
	}
	before, errOld := cluster.NewPod(old)
	after, errNew := cluster.NewPod(pod)
	if errOld != nil || errNew != nil {
		return true
	}
	return after.Requests.MilliCPU < before.Requests.MilliCPU || after.Requests.Memory < before.Requests.Memory ||
		after.Requests.EphemeralStorage < before.Requests.EphemeralStorage
}

// waits notes a pod that wants a node.
func (f *Feed) waits(old, object *corev1.Pod) {
	if f.Cache.Placed(object.UID) {
		return // assumed: its binding is under way
	}
	pod, err := cluster.NewPod(object)
	if err != nil {
		f.Log.Error("Pod does not parse, it is not scheduled", "pod", object.Namespace+"/"+object.Name, "err", err)
		return
	}
	f.Nominees.Set(pod, "")
	if old == nil {
		f.Queue.Add(pod)
		return
	}
	f.Queue.Update(old, pod)
}

func (f *Feed) podGone(pod *corev1.Pod) {
	f.Queue.Remove(pod.UID)
	f.Nominees.Remove(pod.UID)
	f.Cache.RemovePod(pod.UID)
	if pod.Spec.NodeName != "" {
		f.Queue.Change(framework.Change{
			Event: framework.Event{Resource: framework.PodResource, Action: framework.Delete, Label: "AssignedPodDelete"}, OldPod: pod,
		})
	}
}

// Nodes is the handler of node notifications.
func (f *Feed) Nodes() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if node, ok := obj.(*corev1.Node); ok {
				f.Cache.SetNode(node)
				f.Queue.Change(framework.Change{Event: framework.Event{Resource: framework.NodeResource, Action: framework.Add, Label: "NodeAdd"}, NewNode: node})
			}
		},
		UpdateFunc: func(before, after any) {
			old, okOld := before.(*corev1.Node)
			node, okNew := after.(*corev1.Node)
			if !okOld || !okNew {
				return
			}
			f.Cache.SetNode(node)
			if action, label := nodeActions(old, node); action != 0 {
				f.Queue.Change(framework.Change{Event: framework.Event{Resource: framework.NodeResource, Action: action, Label: label}, OldNode: old, NewNode: node})
			}
		},
		DeleteFunc: func(obj any) {
			if node, ok := gone[*corev1.Node](obj); ok {
				f.Cache.RemoveNode(node.Name)
				f.Queue.Change(framework.Change{Event: framework.Event{Resource: framework.NodeResource, Action: framework.Delete, Label: "NodeDelete"}, OldNode: node, NewNode: node})
			}
		},
	}
}

// nodeActions is what of a change of a node can matter, and the name of the event.
func nodeActions(old, node *corev1.Node) (framework.Action, string) {
	var action framework.Action
	label := ""
	note := func(changed bool, bit framework.Action, name string) {
		if changed {
			action |= bit
			label = name
		}
	}
	note(!equality.Semantic.DeepEqual(conditions(old), conditions(node)), framework.UpdateNodeCondition, "NodeConditionChange")
	note(!equality.Semantic.DeepEqual(old.Spec.Taints, node.Spec.Taints) || old.Spec.Unschedulable != node.Spec.Unschedulable, framework.UpdateNodeTaints, "NodeTaintChange")
	note(!labels.Equals(old.Labels, node.Labels), framework.UpdateNodeLabels, "NodeLabelChange")
	note(!equality.Semantic.DeepEqual(old.Status.Allocatable, node.Status.Allocatable), framework.UpdateNodeAllocatable, "NodeAllocatableChange")
	return action, label
}

func conditions(node *corev1.Node) map[corev1.NodeConditionType]corev1.ConditionStatus {
	made := map[corev1.NodeConditionType]corev1.ConditionStatus{}
	for _, c := range node.Status.Conditions {
		made[c.Type] = c.Status
	}
	return made
}

// Namespaces is the handler of namespace notifications.
func (f *Feed) Namespaces() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if ns, ok := obj.(*corev1.Namespace); ok {
				f.Cache.SetNamespace(ns.Name, labels.Set(ns.Labels))
			}
		},
		UpdateFunc: func(before, after any) {
			old, okOld := before.(*corev1.Namespace)
			ns, okNew := after.(*corev1.Namespace)
			if !okOld || !okNew || labels.Equals(old.Labels, ns.Labels) {
				return
			}
			f.Cache.SetNamespace(ns.Name, labels.Set(ns.Labels))
			f.Queue.Change(framework.Change{Event: framework.Event{Resource: framework.NamespaceResource, Action: framework.UpdateNamespaceLabels, Label: "NamespaceUpdate"}})
		},
		DeleteFunc: func(obj any) {
			if ns, ok := gone[*corev1.Namespace](obj); ok {
				f.Cache.SetNamespace(ns.Name, nil)
			}
		},
	}
}
