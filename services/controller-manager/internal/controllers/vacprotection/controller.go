// Package vacprotection keeps volume attributes classes that are deleted until no
// volume and no claim names them any more.
package vacprotection

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/sampan-io/sampan/services/controller-manager/internal/controller"
	"github.com/sampan-io/sampan/services/controller-manager/internal/finalizer"
)

const (
	name       = "volumeattributesclass-protection-controller"
	protection = "kubernetes.io/vac-protection"
)

// Definition is the controller's entry in the list.
func Definition() controller.Definition {
	return controller.Definition{Name: name, Account: name, New: New}
}

// Controller works on classes by their names.
type Controller struct {
	client  kubernetes.Interface
	classes storagelisters.VolumeAttributesClassLister
	queue   *controller.Queue
	synced  []cache.InformerSynced
}

// New makes the controller from env.
func New(env controller.Env) (controller.Runner, error) {
	core, classes := env.Informers.Core().V1(), env.Informers.Storage().V1().VolumeAttributesClasses()
	c := &Controller{client: env.Client, classes: classes.Lister()}
	c.queue = controller.NewQueue("vacprotection", env.Config.Workers(name), env.Log, c.reconcile)
	add := func(class *storagev1.VolumeAttributesClass) { c.queue.Add(class.Name) }
	classesSynced, err := controller.Watch(classes.Informer(), add, func(_, class *storagev1.VolumeAttributesClass) { add(class) }, nil)
	if err != nil {
		return nil, err
	}
	claimsSynced, err := controller.Watch(core.PersistentVolumeClaims().Informer(), nil,
		func(old, claim *corev1.PersistentVolumeClaim) { c.release(ofClaim(old), ofClaim(claim)) },
		func(claim *corev1.PersistentVolumeClaim) { c.release(ofClaim(claim), nil) })
	if err != nil {
		return nil, err
	}
	volumesSynced, err := controller.Watch(core.PersistentVolumes().Informer(), nil,
		func(old, volume *corev1.PersistentVolume) { c.release(ofVolume(old), ofVolume(volume)) },
		func(volume *corev1.PersistentVolume) { c.release(ofVolume(volume), nil) })
	if err != nil {
		return nil, err
	}
	c.synced = []cache.InformerSynced{classesSynced, claimsSynced, volumesSynced}
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.queue.Run(ctx, c.synced...) }

// release looks at the classes that are named no more.
func (c *Controller) release(before, after []string) {
	for _, class := range before {
		if !slices.Contains(after, class) {
			c.queue.Add(class)
		}
	}
}

// ofClaim are the classes that a claim has, wants, or is changed to.
func ofClaim(claim *corev1.PersistentVolumeClaim) []string {
	names := named(claim.Spec.VolumeAttributesClassName, claim.Status.CurrentVolumeAttributesClassName)
	if change := claim.Status.ModifyVolumeStatus; change != nil {
		names = append(names, named(&change.TargetVolumeAttributesClassName)...)
	}
	return names
}

func ofVolume(volume *corev1.PersistentVolume) []string {
	return named(volume.Spec.VolumeAttributesClassName)
}

func named(names ...*string) []string {
	var out []string
	for _, name := range names {
		if name != nil && *name != "" {
			out = append(out, *name)
		}
	}
	return out
}

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	class, err := c.classes.Get(key)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading volume attributes class %s: %w", key, err)
	}
	wanted, change, err := finalizer.Wanted(class, protection, func() (bool, error) { return c.used(ctx, key) })
	if err != nil || !change {
		return 0, err
	}
	updated := class.DeepCopy()
	updated.Finalizers = wanted
	_, err = c.client.StorageV1().VolumeAttributesClasses().Update(ctx, updated, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("updating volume attributes class %s: %w", key, err)
	}
	return 0, nil
}

// used asks the API server: a cache may miss the claim that has just come.
func (c *Controller) used(ctx context.Context, class string) (bool, error) {
	claims, err := c.client.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("listing claims: %w", err)
	}
	for i := range claims.Items {
		if slices.Contains(ofClaim(&claims.Items[i]), class) {
			return true, nil
		}
	}
	volumes, err := c.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("listing volumes: %w", err)
	}
	for i := range volumes.Items {
		if slices.Contains(ofVolume(&volumes.Items[i]), class) {
			return true, nil
		}
	}
	return false, nil
}
