// Package podevents tells pods' authors what happens to their pods.
package podevents

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// Recorder writes events; alike ones are counted in one.
type Recorder struct {
	node        string
	broadcaster record.EventBroadcaster
	recorder    record.EventRecorder
}

// New makes one that writes through client; Close ends it.
func New(ctx context.Context, client kubernetes.Interface, node string) *Recorder {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	recorder := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kubelet", Host: node})
	return &Recorder{node: node, broadcaster: broadcaster, recorder: recorder}
}

// Close ends writing.
func (r *Recorder) Close() { r.broadcaster.Shutdown() }

func kind(warning bool) string {
	if warning {
		return corev1.EventTypeWarning
	}
	return corev1.EventTypeNormal
}

// Event tells something of a pod, or of one of its containers.
func (r *Recorder) Event(pod *corev1.Pod, container *corev1.Container, warning bool, reason, message string) {
	if len(pod.Spec.Containers) == 0 {
		return // the object is gone
	}
	ref := &corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
	}
	if container != nil {
		ref.FieldPath = fieldPath(pod, container.Name)
	}
	r.recorder.Event(ref, kind(warning), reason, message)
}

func fieldPath(pod *corev1.Pod, container string) string {
	for _, c := range pod.Spec.InitContainers {
		if c.Name == container {
			return fmt.Sprintf("spec.initContainers{%s}", container)
		}
	}
	for _, c := range pod.Spec.EphemeralContainers {
		if c.Name == container {
			return fmt.Sprintf("spec.ephemeralContainers{%s}", container)
		}
	}
	return fmt.Sprintf("spec.containers{%s}", container)
}

// Node tells something of the node.
func (r *Recorder) Node(warning bool, reason, message string) {
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: r.node, UID: types.UID(r.node)}
	r.recorder.Event(ref, kind(warning), reason, message)
}
