package persistentvolume

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// syncVolume brings a volume's phase in step with its claim, and releases it when
// the claim is gone.
func (c *Controller) syncVolume(ctx context.Context, volume *corev1.PersistentVolume) error {
	reference := volume.Spec.ClaimRef
	if reference == nil || reference.UID == "" {
		if _, given := c.given[volume.Name]; given {
			return nil // the cache does not show yet whom it was given to
		}
		return c.setVolumePhase(ctx, volume, corev1.VolumeAvailable, "")
	}
	claim, err := c.claims.PersistentVolumeClaims(reference.Namespace).Get(reference.Name)
	if apierrors.IsNotFound(err) || err == nil && claim.UID != reference.UID {
		// The cache may be behind: a claim that is taken for gone loses its volume.
		claim, err = c.client.CoreV1().PersistentVolumeClaims(reference.Namespace).Get(ctx, reference.Name, metav1.GetOptions{})
	}
	switch {
	case apierrors.IsNotFound(err) || err == nil && claim.UID != reference.UID:
		return c.release(ctx, volume)
	case err != nil:
		return fmt.Errorf("reading claim %s/%s: %w", reference.Namespace, reference.Name, err)
	case claim.Spec.VolumeName == "":
		return nil // binding is under way
	case claim.Spec.VolumeName == volume.Name:
		return c.setVolumePhase(ctx, volume, corev1.VolumeBound, "")
	}
	// The claim has another volume.
	if volume.Annotations[boundByController] == "" {
		updated := volume.DeepCopy()
		updated.Spec.ClaimRef.UID = "" // its maker's wish stays
		return c.unbind(ctx, updated)
	}
	if volume.Annotations[provisionedBy] != "" && volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		return c.release(ctx, volume)
	}
	updated := volume.DeepCopy()
	updated.Spec.ClaimRef = nil
	delete(updated.Annotations, boundByController)
	return c.unbind(ctx, updated)
}

func (c *Controller) unbind(ctx context.Context, updated *corev1.PersistentVolume) error {
	read, err := c.client.CoreV1().PersistentVolumes().Update(ctx, updated, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("unbinding volume %s: %w", updated.Name, err)
	}
	delete(c.given, updated.Name)
	return c.setVolumePhase(ctx, read, corev1.VolumeAvailable, "")
}

// release does with a volume whose claim is gone what its policy says. Volumes
// that an external provisioner made are deleted by it.
func (c *Controller) release(ctx context.Context, volume *corev1.PersistentVolume) error {
	if volume.Status.Phase == corev1.VolumeFailed {
		return nil
	}
	switch policy := volume.Spec.PersistentVolumeReclaimPolicy; {
	case policy == corev1.PersistentVolumeReclaimRecycle:
		const message = "volumes are not scrubbed for others: the reclaim policy Recycle is not supported"
		c.recorder.Event(volume, corev1.EventTypeWarning, "VolumeFailedRecycle", message)
		return c.setVolumePhase(ctx, volume, corev1.VolumeFailed, message)
	case policy == corev1.PersistentVolumeReclaimDelete && volume.Annotations[provisionedBy] == "":
		const message = "the volume was made by hand, and there is no provisioner that could delete it"
		c.recorder.Event(volume, corev1.EventTypeWarning, "VolumeFailedDelete", message)
		return c.setVolumePhase(ctx, volume, corev1.VolumeFailed, message)
	}
	return c.setVolumePhase(ctx, volume, corev1.VolumeReleased, "")
}

func (c *Controller) setVolumePhase(ctx context.Context, volume *corev1.PersistentVolume, phase corev1.PersistentVolumePhase, message string) error {
	if volume.Status.Phase == phase && volume.Status.Message == message {
		return nil
	}
	updated := volume.DeepCopy()
	updated.Status.Phase, updated.Status.Message = phase, message
	if volume.Status.Phase != phase || updated.Status.LastPhaseTransitionTime == nil {
		now := metav1.Now()
		updated.Status.LastPhaseTransitionTime = &now
	}
	if _, err := c.client.CoreV1().PersistentVolumes().UpdateStatus(ctx, updated, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("writing status of volume %s: %w", volume.Name, err)
	}
	return nil
}
