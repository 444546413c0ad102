// Package pvprotection keeps persistent volumes that are deleted until they are
// bound to no claim any more.
package pvprotection

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

	"github.com/sampan-io/sampan/services/controller-manager/internal/controller"
	"github.com/sampan-io/sampan/services/controller-manager/internal/finalizer"
)

const (
	name       = "persistentvolume-protection-controller"
	protection = "kubernetes.io/pv-protection"
)

// Definition is the controller's entry in the list.
func Definition() controller.Definition {
	return controller.Definition{Name: name, Aliases: []string{"pv-protection"}, Account: "pv-protection-controller", New: New}
}

// Controller works on volumes by their names.
type Controller struct {
	client  kubernetes.Interface
	volumes corelisters.PersistentVolumeLister
	queue   *controller.Queue
	synced  cache.InformerSynced
}

// New makes the controller from env.
func New(env controller.Env) (controller.Runner, error) {
	volumes := env.Informers.Core().V1().PersistentVolumes()
	c := &Controller{client: env.Client, volumes: volumes.Lister()}
	c.queue = controller.NewQueue("pvprotection", env.Config.Workers(name), env.Log, c.reconcile)
	add := func(volume *corev1.PersistentVolume) { c.queue.Add(volume.Name) }
	var err error
	c.synced, err = controller.Watch(volumes.Informer(), add, func(_, volume *corev1.PersistentVolume) { add(volume) }, nil)
	return c, err
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.queue.Run(ctx, c.synced) }

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	volume, err := c.volumes.Get(key)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading volume %s: %w", key, err)
	}
	wanted, change, err := finalizer.Wanted(volume, protection, func() (bool, error) { return volume.Status.Phase == corev1.VolumeBound, nil })
	if err != nil || !change {
		return 0, err
	}
	updated := volume.DeepCopy()
	updated.Finalizers = wanted
	_, err = c.client.CoreV1().PersistentVolumes().Update(ctx, updated, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("updating volume %s: %w", key, err)
	}
	return 0, nil
}
