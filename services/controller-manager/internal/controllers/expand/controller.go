// Package expand tells of claims that are to grow. The volumes of CSI drivers are
// expanded by their external resizers, and by the agent of the node that has them.
package expand

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/sampan-io/sampan/services/controller-manager/internal/controller"
)

const name = "persistentvolume-expander-controller"

// Definition is the controller's entry in the list.
func Definition() controller.Definition {
	return controller.Definition{Name: name, Aliases: []string{"persistentvolume-expander"}, Account: "expand-controller", New: New}
}

// Controller works on claims by namespace and name.
type Controller struct {
	recorder record.EventRecorder
	claims   corelisters.PersistentVolumeClaimLister
	volumes  corelisters.PersistentVolumeLister
	queue    *controller.Queue
	synced   []cache.InformerSynced
}

// New makes the controller from env.
func New(env controller.Env) (controller.Runner, error) {
	core := env.Informers.Core().V1()
	c := &Controller{recorder: env.Events.Recorder("volume_expand"), claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister()}
	c.queue = controller.NewQueue("volume_expand", env.Config.Workers(name), env.Log, c.reconcile)
	synced, err := controller.Watch(core.PersistentVolumeClaims().Informer(), c.look, func(old, claim *corev1.PersistentVolumeClaim) {
		if requested(old) != requested(claim) {
			c.look(claim)
		}
	}, nil)
	c.synced = []cache.InformerSynced{synced, core.PersistentVolumes().Informer().HasSynced}
	return c, err
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.queue.Run(ctx, c.synced...) }

func (c *Controller) look(claim *corev1.PersistentVolumeClaim) {
	if grows(claim) {
		c.queue.AddObject(claim)
	}
}

func requested(claim *corev1.PersistentVolumeClaim) int64 {
	return claim.Spec.Resources.Requests.Storage().Value()
}

// grows says whether a bound claim asks for more than it has.
func grows(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Status.Phase == corev1.ClaimBound && claim.Spec.Resources.Requests.Storage().Cmp(*claim.Status.Capacity.Storage()) > 0
}

func (c *Controller) reconcile(_ context.Context, key string) (time.Duration, error) {
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
	volume, err := c.volumes.Get(claim.Spec.VolumeName)
	if apierrors.IsNotFound(err) || err == nil && (volume.Spec.ClaimRef == nil || volume.Spec.ClaimRef.UID != claim.UID) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading volume %s: %w", claim.Spec.VolumeName, err)
	}
	if !grows(claim) {
		return 0, nil
	}
	if volume.Spec.CSI == nil {
		c.recorder.Event(claim, corev1.EventTypeWarning, "ExternalExpanding", "volumes of this kind cannot be expanded by the cluster; waiting for an external controller to expand this PVC")
		return 0, nil
	}
	c.recorder.Event(claim, corev1.EventTypeNormal, "ExternalExpanding", "waiting for an external controller to expand this PVC")
	return 0, nil
}
