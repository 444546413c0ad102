// Package pvcprotection keeps persistent volume claims that are deleted until no
// pod uses them any more.
package pvcprotection

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/sampan-io/sampan/services/controller-manager/internal/controller"
	"github.com/sampan-io/sampan/services/controller-manager/internal/finalizer"
)

const (
	name       = "persistentvolumeclaim-protection-controller"
	protection = "kubernetes.io/pvc-protection"
)

// Definition is the controller's entry in the list.
func Definition() controller.Definition {
	return controller.Definition{Name: name, Aliases: []string{"pvc-protection"}, Account: "pvc-protection-controller", New: New}
}

// Controller works on claims by namespace and name.
type Controller struct {
	client kubernetes.Interface
	claims corelisters.PersistentVolumeClaimLister
	pods   corelisters.PodLister
	queue  *controller.Queue
	synced []cache.InformerSynced
}

// New makes the controller from env.
func New(env controller.Env) (controller.Runner, error) {
	core := env.Informers.Core().V1()
	c := &Controller{client: env.Client, claims: core.PersistentVolumeClaims().Lister(), pods: core.Pods().Lister()}
	c.queue = controller.NewQueue("pvcprotection", env.Config.Workers(name), env.Log, c.reconcile)
	add := func(claim *corev1.PersistentVolumeClaim) { c.queue.AddObject(claim) }
	claimsSynced, err := controller.Watch(core.PersistentVolumeClaims().Informer(), add, func(_, claim *corev1.PersistentVolumeClaim) { add(claim) }, nil)
	if err != nil {
		return nil, err
	}
	podsSynced, err := controller.Watch(core.Pods().Informer(), nil, func(old, pod *corev1.Pod) {
		if old.UID != pod.UID { // deleted and made again between two looks
			c.release(old)
		}
	}, c.release)
	if err != nil {
		return nil, err
	}
	c.synced = []cache.InformerSynced{claimsSynced, podsSynced}
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.queue.Run(ctx, c.synced...) }

// release looks at the claims of a pod that is gone.
func (c *Controller) release(pod *corev1.Pod) {
	for _, claim := range claimsOf(pod) {
		c.queue.Add(pod.Namespace + "/" + claim)
	}
}

// claimsOf are the names of the claims that a pod uses. That of an ephemeral
// volume has the pod's name in it.
func claimsOf(pod *corev1.Pod) []string {
	var names []string
	for i := range pod.Spec.Volumes {
		switch v := &pod.Spec.Volumes[i]; {
		case v.PersistentVolumeClaim != nil:
			names = append(names, v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			names = append(names, pod.Name+"-"+v.Name)
		}
	}
	return names
}

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, claimName, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil //nolint:nilerr // no key of ours
	}
	claim, err := c.claims.PersistentVolumeClaims(namespace).Get(claimName)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading claim %s: %w", key, err)
	}
	wanted, change, err := finalizer.Wanted(claim, protection, func() (bool, error) { return c.used(ctx, claim) })
	if err != nil || !change {
		return 0, err
	}
	updated := claim.DeepCopy()
	updated.Finalizers = wanted
	_, err = c.client.CoreV1().PersistentVolumeClaims(namespace).Update(ctx, updated, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("updating claim %s: %w", key, err)
	}
	return 0, nil
}

// used looks at the cached pods first, and asks the API server before it lets go.
func (c *Controller) used(ctx context.Context, claim *corev1.PersistentVolumeClaim) (bool, error) {
	cached, err := c.pods.Pods(claim.Namespace).List(labels.Everything())
	if err != nil {
		return false, fmt.Errorf("listing pods: %w", err)
	}
	for _, pod := range cached {
		if uses(pod, claim) {
			return true, nil
		}
	}
	list, err := c.client.CoreV1().Pods(claim.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("listing pods: %w", err)
	}
	for i := range list.Items {
		if uses(&list.Items[i], claim) {
			return true, nil
		}
	}
	return false, nil
}

// uses says whether a pod holds a claim. One without a node does not: node agents
// start no pod with a claim that is being deleted. Nor does one that its node is
// done with.
func uses(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	if pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0 {
		return false
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim.Name {
			return true
		}
		if v.Ephemeral != nil && pod.Name+"-"+v.Name == claim.Name && metav1.IsControlledBy(claim, pod) {
			return true
		}
	}
	return false
}
