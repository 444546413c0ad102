// Package podsource finds the pods that this node is to run: those that the API
// server has bound to it, and those of a directory of files.
package podsource

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Sink takes pods.
type Sink interface {
	Update(pod *corev1.Pod)
	Remove(uid types.UID)
}

// API follows the pods that are bound to a node.
type API struct {
	Client kubernetes.Interface
	Node   string
	Sink   Sink
	// Mirror is told of pods that show static ones, and that one is gone.
	Mirror func(pod *corev1.Pod, gone bool)
	// Synced is called once, when all pods that there were have been handed over.
	Synced func(uids map[types.UID]struct{})
}

// mirrorAnnotation marks pods that show what a node runs from files.
const mirrorAnnotation = "kubernetes.io/config.mirror"

// Run follows them until ctx ends.
func (a *API) Run(ctx context.Context) error {
	selector := fields.OneTermEqualSelector("spec.nodeName", a.Node).String()
	pods := a.Client.CoreV1().Pods(metav1.NamespaceAll)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			return pods.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return pods.Watch(ctx, o)
		},
	}
	store, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(lw, a.Client), ObjectType: &corev1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{AddFunc: a.update, UpdateFunc: a.replace, DeleteFunc: a.remove},
		Transform: func(object any) (any, error) {
			if pod, ok := object.(*corev1.Pod); ok {
				pod.ManagedFields = nil // large, and of no use here
			}
			return object, nil
		},
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			return
		}
		uids := map[types.UID]struct{}{}
		for _, object := range store.List() {
			if pod, ok := object.(*corev1.Pod); ok {
				uids[pod.UID] = struct{}{}
			}
		}
		a.Synced(uids)
	}()
	informer.RunWithContext(ctx)
	<-done
	return nil
}

func (a *API) update(object any) {
	pod, ok := object.(*corev1.Pod)
	switch {
	case !ok:
	case isMirror(pod):
		a.Mirror(pod, false)
	default:
		a.Sink.Update(pod)
	}
}

// replace handles a pod that took another's name while the watch was broken.
func (a *API) replace(before, after any) {
	old, oldOK := before.(*corev1.Pod)
	pod, ok := after.(*corev1.Pod)
	if oldOK && ok && old.UID != pod.UID {
		a.remove(old)
	}
	a.update(after)
}

func (a *API) remove(object any) {
	if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = gone.Obj
	}
	pod, ok := object.(*corev1.Pod)
	switch {
	case !ok:
	case isMirror(pod):
		a.Mirror(pod, true)
	default:
		a.Sink.Remove(pod.UID)
	}
}

func isMirror(pod *corev1.Pod) bool { return metav1.HasAnnotation(pod.ObjectMeta, mirrorAnnotation) }

// settle is how long a file must not have been written to before it is read.
const settle = 100 * time.Millisecond
