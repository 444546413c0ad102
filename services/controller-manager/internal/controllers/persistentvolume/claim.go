package persistentvolume

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

func everything() labels.Selector { return labels.Everything() }

// syncClaim brings a claim nearer to its volume.
func (c *Controller) syncClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) (time.Duration, error) {
	if claim.DeletionTimestamp != nil && claim.Spec.VolumeName == "" {
		return 0, nil
	}
	_, completed := claim.Annotations[bindCompleted]
	switch {
	case claim.Spec.VolumeName != "":
		return c.syncNamed(ctx, claim, completed)
	case completed:
		return 0, c.lose(ctx, claim, "ClaimLost", "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
	}
	class, err := c.class(claim)
	if err != nil {
		return 0, err
	}
	if waits(claim, class) && !c.isNamed(claim) {
		c.recorder.Event(claim, corev1.EventTypeNormal, "WaitForFirstConsumer", "waiting for first consumer to be created before binding")
		return 0, c.setPhase(ctx, claim, corev1.ClaimPending)
	}
	volumes, err := c.free()
	if err != nil {
		return 0, err
	}
	if volume := choose(claim, volumes); volume != nil {
		return 0, c.bind(ctx, volume, claim)
	}
	return c.provision(ctx, claim, class)
}

// free are all volumes but those that have just been given away.
func (c *Controller) free() ([]*corev1.PersistentVolume, error) {
	all, err := c.volumes.List(everything())
	if err != nil {
		return nil, fmt.Errorf("listing volumes: %w", err)
	}
	free := make([]*corev1.PersistentVolume, 0, len(all))
	for _, volume := range all {
		if _, given := c.given[volume.Name]; !given {
			free = append(free, volume)
		}
	}
	return free, nil
}

// isNamed says whether a volume names the claim already, as the scheduler does
// when it has chosen one.
func (c *Controller) isNamed(claim *corev1.PersistentVolumeClaim) bool {
	volumes, err := c.volumes.List(everything())
	if err != nil {
		return false
	}
	for _, volume := range volumes {
		if isFor(volume, claim) {
			return true
		}
	}
	return false
}

func (c *Controller) class(claim *corev1.PersistentVolumeClaim) (*storagev1.StorageClass, error) {
	name := classOfClaim(claim)
	if name == "" {
		return nil, nil
	}
	class, err := c.classes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading class %s: %w", name, err)
	}
	return class, nil
}

// provision asks the class's provisioner for a volume, by naming it in the claim.
func (c *Controller) provision(ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) (time.Duration, error) {
	switch name := classOfClaim(claim); {
	case name == "":
		c.recorder.Event(claim, corev1.EventTypeNormal, "FailedBinding", "no persistent volumes available for this claim and no storage class is set")
	case class == nil:
		c.recorder.Eventf(claim, corev1.EventTypeWarning, "ProvisioningFailed", "storageclass.storage.k8s.io %q not found", name)
		return retry, c.setPhase(ctx, claim, corev1.ClaimPending)
	case class.Provisioner == noProvisioner:
		c.recorder.Eventf(claim, corev1.EventTypeWarning, "ProvisioningFailed", "storageclass %q makes no volumes by itself, and none that exists fits", name)
	default:
		if claim.Annotations[storageProvisioner] != class.Provisioner {
			updated := claim.DeepCopy()
			metav1.SetMetaDataAnnotation(&updated.ObjectMeta, betaStorageProvisioner, class.Provisioner)
			metav1.SetMetaDataAnnotation(&updated.ObjectMeta, storageProvisioner, class.Provisioner)
			var err error
			if claim, err = c.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, updated, metav1.UpdateOptions{}); err != nil {
				return 0, fmt.Errorf("naming the provisioner of claim %s/%s: %w", updated.Namespace, updated.Name, err)
			}
		}
		c.recorder.Eventf(claim, corev1.EventTypeNormal, "ExternalProvisioning", "Waiting for a volume to be created either by the external provisioner '%s' or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered.", class.Provisioner)
	}
	return 0, c.setPhase(ctx, claim, corev1.ClaimPending)
}

// syncNamed looks after a claim that names its volume.
func (c *Controller) syncNamed(ctx context.Context, claim *corev1.PersistentVolumeClaim, completed bool) (time.Duration, error) {
	volume, err := c.volumes.Get(claim.Spec.VolumeName)
	switch {
	case apierrors.IsNotFound(err) && completed:
		return 0, c.lose(ctx, claim, "ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
	case apierrors.IsNotFound(err):
		return 0, c.setPhase(ctx, claim, corev1.ClaimPending)
	case err != nil:
		return 0, fmt.Errorf("reading volume %s: %w", claim.Spec.VolumeName, err)
	}
	switch reference := volume.Spec.ClaimRef; {
	case reference == nil || isFor(volume, claim):
		if why := misfit(volume, claim); why != "" && !completed {
			c.recorder.Eventf(claim, corev1.EventTypeWarning, "VolumeMismatch", "Cannot bind to requested volume %q: %s", volume.Name, why)
			return 0, c.setPhase(ctx, claim, corev1.ClaimPending)
		}
		return 0, c.bind(ctx, volume, claim)
	case completed:
		return 0, c.lose(ctx, claim, "ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly")
	}
	c.recorder.Eventf(claim, corev1.EventTypeWarning, "FailedBinding", "volume %q already bound to a different claim.", volume.Name)
	return retry, c.setPhase(ctx, claim, corev1.ClaimPending)
}

func (c *Controller) lose(ctx context.Context, claim *corev1.PersistentVolumeClaim, reason, message string) error {
	if claim.Status.Phase == corev1.ClaimLost {
		return nil
	}
	c.recorder.Event(claim, corev1.EventTypeWarning, reason, message)
	return c.setPhase(ctx, claim, corev1.ClaimLost)
}

// setPhase writes the phase of a claim that is not bound.
func (c *Controller) setPhase(ctx context.Context, claim *corev1.PersistentVolumeClaim, phase corev1.PersistentVolumeClaimPhase) error {
	if claim.Status.Phase == phase && claim.Status.Capacity == nil {
		return nil
	}
	updated := claim.DeepCopy()
	updated.Status.Phase, updated.Status.Capacity, updated.Status.AccessModes = phase, nil, nil
	return c.writeStatus(ctx, claim, updated)
}

func (c *Controller) writeStatus(ctx context.Context, claim, updated *corev1.PersistentVolumeClaim) error {
	if equality.Semantic.DeepEqual(claim.Status, updated.Status) {
		return nil
	}
	if _, err := c.client.CoreV1().PersistentVolumeClaims(claim.Namespace).UpdateStatus(ctx, updated, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("writing status of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return nil
}

// bind makes volume and claim name each other, in an order from which another
// run can go on: the volume first, which no other claim can have then.
func (c *Controller) bind(ctx context.Context, volume *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) error {
	volume, err := c.bindVolume(ctx, volume, claim)
	if err != nil {
		return err
	}
	if err := c.setVolumePhase(ctx, volume, corev1.VolumeBound, ""); err != nil {
		return err
	}
	updated := claim.DeepCopy()
	if updated.Spec.VolumeName == "" {
		updated.Spec.VolumeName = volume.Name
		metav1.SetMetaDataAnnotation(&updated.ObjectMeta, boundByController, "yes")
	}
	metav1.SetMetaDataAnnotation(&updated.ObjectMeta, bindCompleted, "yes")
	if !equality.Semantic.DeepEqual(claim, updated) {
		if claim, err = c.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, updated, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("binding claim %s/%s: %w", updated.Namespace, updated.Name, err)
		}
	}
	bound := claim.DeepCopy()
	bound.Status.Phase = corev1.ClaimBound
	bound.Status.AccessModes = volume.Spec.AccessModes
	if bound.Status.Capacity == nil { // later the resizer's
		bound.Status.Capacity = volume.Spec.Capacity
	}
	bound.Status.CurrentVolumeAttributesClassName = volume.Spec.VolumeAttributesClassName
	return c.writeStatus(ctx, claim, bound)
}

func (c *Controller) bindVolume(ctx context.Context, volume *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolume, error) {
	if reference := volume.Spec.ClaimRef; reference != nil && reference.UID == claim.UID {
		return volume, nil
	}
	updated := volume.DeepCopy()
	if updated.Spec.ClaimRef == nil {
		metav1.SetMetaDataAnnotation(&updated.ObjectMeta, boundByController, "yes")
	}
	updated.Spec.ClaimRef = &corev1.ObjectReference{
		Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, ResourceVersion: claim.ResourceVersion,
	}
	updated, err := c.client.CoreV1().PersistentVolumes().Update(ctx, updated, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("binding volume %s: %w", volume.Name, err)
	}
	c.given[volume.Name] = string(claim.UID)
	return updated, nil
}
