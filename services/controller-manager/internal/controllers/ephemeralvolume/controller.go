// Package ephemeralvolume makes the claims of pods' generic ephemeral volumes. They
// are owned by the pod and go with it.
package ephemeralvolume

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/sampan-io/sampan/services/controller-manager/internal/controller"
)

const name = "ephemeral-volume-controller"

// Definition is the controller's entry in the list.
func Definition() controller.Definition {
	return controller.Definition{Name: name, Aliases: []string{"ephemeral-volume"}, Account: name, New: New}
}

// Controller works on pods by namespace and name.
type Controller struct {
	client   kubernetes.Interface
	recorder record.EventRecorder
	pods     corelisters.PodLister
	claims   corelisters.PersistentVolumeClaimLister
	queue    *controller.Queue
	synced   []cache.InformerSynced
}

// New makes the controller from env.
func New(env controller.Env) (controller.Runner, error) {
	core := env.Informers.Core().V1()
	c := &Controller{client: env.Client, recorder: env.Events.Recorder("ephemeral_volume"), pods: core.Pods().Lister(), claims: core.PersistentVolumeClaims().Lister()}
	c.queue = controller.NewQueue("ephemeral_volume", env.Config.Workers(name), env.Log, c.reconcile)
	podsSynced, err := controller.Watch(core.Pods().Informer(), func(pod *corev1.Pod) {
		for i := range pod.Spec.Volumes {
			if pod.Spec.Volumes[i].Ephemeral != nil {
				c.queue.AddObject(pod)
				return
			}
		}
	}, nil, nil)
	if err != nil {
		return nil, err
	}
	claimsSynced, err := controller.Watch(core.PersistentVolumeClaims().Informer(), nil, nil, func(claim *corev1.PersistentVolumeClaim) {
		if owner := metav1.GetControllerOf(claim); owner != nil && owner.Kind == "Pod" {
			c.queue.Add(claim.Namespace + "/" + owner.Name)
		}
	})
	c.synced = []cache.InformerSynced{podsSynced, claimsSynced}
	return c, err
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.queue.Run(ctx, c.synced...) }

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, podName, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil //nolint:nilerr // no key of ours
	}
	pod, err := c.pods.Pods(namespace).Get(podName)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading pod %s: %w", key, err)
	}
	if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return 0, nil
	}
	for i := range pod.Spec.Volumes {
		if volume := &pod.Spec.Volumes[i]; volume.Ephemeral != nil {
			if err := c.provide(ctx, pod, volume); err != nil {
				c.recorder.Event(pod, corev1.EventTypeWarning, "FailedBinding", "ephemeral volume creation: "+err.Error())
				return 0, fmt.Errorf("pod %s, ephemeral volume %s: %w", key, volume.Name, err)
			}
		}
	}
	return 0, nil
}

// provide makes the claim of one volume, unless it is there.
func (c *Controller) provide(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume) error {
	claimName := pod.Name + "-" + volume.Name
	claim, err := c.claims.PersistentVolumeClaims(pod.Namespace).Get(claimName)
	if err == nil {
		return owned(claim, pod)
	}
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading claim %s: %w", claimName, err)
	}
	template := volume.Ephemeral.VolumeClaimTemplate
	if template == nil {
		return nil
	}
	made := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: claimName, Labels: template.Labels, Annotations: template.Annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod"))},
		},
		Spec: template.Spec,
	}
	_, err = c.client.CoreV1().PersistentVolumeClaims(pod.Namespace).Create(ctx, made, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) { // the cache does not show it yet
		claim, err = c.client.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(ctx, claimName, metav1.GetOptions{})
		if err == nil {
			return owned(claim, pod)
		}
	}
	if err != nil {
		return fmt.Errorf("making claim %s: %w", claimName, err)
	}
	return nil
}

func owned(claim *corev1.PersistentVolumeClaim, pod *corev1.Pod) error {
	if metav1.IsControlledBy(claim, pod) {
		return nil
	}
	return fmt.Errorf("PVC %s was not created for pod %s (pod is not owner)", claim.Namespace+"/"+claim.Name, pod.Namespace+"/"+pod.Name)
}
