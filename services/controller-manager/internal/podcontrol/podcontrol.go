// Package podcontrol creates and deletes the pods of a controlling object, and
// tells of it in events.
package podcontrol

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
)

// Owner is the object whose pods are made.
type Owner interface {
	runtime.Object
	metav1.Object
}

// Control makes and removes pods through Client.
type Control struct {
	Client   kubernetes.Interface
	Recorder record.EventRecorder
}

// Render is the pod that template asks for in the namespace of owner, with
// owner as its controller.
func Render(owner Owner, template *corev1.PodTemplateSpec, ref metav1.OwnerReference) *corev1.Pod {
	prefix := owner.GetName() + "-"
	if len(validation.NameIsDNSSubdomain(prefix, true)) != 0 {
		prefix = owner.GetName()
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace:       owner.GetNamespace(),
		GenerateName:    prefix,
		Labels:          maps.Clone(template.Labels),
		Annotations:     maps.Clone(template.Annotations),
		Finalizers:      slices.Clone(template.Finalizers),
		OwnerReferences: []metav1.OwnerReference{ref},
	}}
	template.Spec.DeepCopyInto(&pod.Spec)
	return pod
}

// Create makes pod and records SuccessfulCreate or FailedCreate on owner.
func (c Control) Create(ctx context.Context, owner Owner, pod *corev1.Pod) (*corev1.Pod, error) {
	made, err := c.Client.CoreV1().Pods(owner.GetNamespace()).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		if !NamespaceEnding(err) {
			c.Recorder.Eventf(owner, corev1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
		}
		return nil, fmt.Errorf("creating pod of %s/%s: %w", owner.GetNamespace(), owner.GetName(), err)
	}
	c.Recorder.Eventf(owner, corev1.EventTypeNormal, "SuccessfulCreate", "Created pod: %v", made.Name)
	return made, nil
}

// Delete removes pod and records SuccessfulDelete or FailedDelete on owner. A
// pod that is gone already is an apierrors.IsNotFound error and no event.
func (c Control) Delete(ctx context.Context, owner Owner, pod *corev1.Pod) error {
	err := c.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	switch {
	case err == nil:
		c.Recorder.Eventf(owner, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: %v", pod.Name)
		return nil
	case apierrors.IsNotFound(err):
		return err
	default:
		c.Recorder.Eventf(owner, corev1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
		return fmt.Errorf("deleting pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
}

// NamespaceEnding says whether err means that the namespace is being deleted,
// in which case there is nothing to try again.
func NamespaceEnding(err error) bool {
	return apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

// SlowStart calls do for 0..count-1 in batches of 1, 2, 4, … at once, and stops
// after the first batch with an error: when the API refuses one (by quota, say),
// it would refuse all. It returns how many calls went well and one of the errors.
func SlowStart(count int, do func(i int) error) (int, error) {
	done := 0
	for batch := min(1, count); batch > 0; batch = min(2*batch, count-done) {
		errs := make([]error, batch)
		var calls sync.WaitGroup
		for i := range batch {
			calls.Go(func() { errs[i] = do(done + i) })
		}
		calls.Wait()
		failed := 0
		var first error
		for _, err := range errs {
			if err != nil {
				failed++
				first = err
			}
		}
		done += batch - failed
		if first != nil {
			return done, first
		}
	}
	return done, nil
}
