package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// attachWait is how long one try waits for a volume to be attached; another follows.
const attachWait = callTimeout

// awaitAttached waits until the cluster knows that the volume is in use here, so
// that it is not detached any more, and until it is attached.
func (m *mounting) awaitAttached(ctx context.Context) error {
	if m.data.AttachmentID == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, attachWait)
	defer cancel()
	done := m.measure.operation(m.data.DriverName, "verify_controller_attached_volume")
	err := m.poll(ctx)
	done(err)
	return err
}

func (m *mounting) poll(ctx context.Context) error {
	const firstPause, maxPause = 50 * time.Millisecond, time.Second
	var last error
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		var attached bool
		if attached, last = m.isAttached(ctx); attached {
			return nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("waiting for volume %s to be attached: %w", m.data.VolumeHandle, errors.Join(last, ctx.Err()))
		}
	}
}

func (m *mounting) isAttached(ctx context.Context) (bool, error) {
	if node := m.cfg.Node.Object(); node == nil || !slices.Contains(node.Status.VolumesInUse, m.data.uniqueName()) {
		return false, errors.New("the node's status does not tell yet that the volume is in use")
	}
	attachment, err := m.cfg.Client.StorageV1().VolumeAttachments().Get(ctx, m.data.AttachmentID, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsForbidden(err): // a node may not ask for what is not there
		return false, fmt.Errorf("there is no VolumeAttachment %s yet", m.data.AttachmentID)
	case err != nil:
		return false, fmt.Errorf("reading VolumeAttachment %s: %w", m.data.AttachmentID, err)
	case attachment.DeletionTimestamp != nil:
		return false, errors.New("the volume is being detached")
	case attachment.Status.AttachError != nil:
		return false, errors.New(attachment.Status.AttachError.Message)
	case !attachment.Status.Attached:
		return false, errors.New("it is not yet attached")
	}
	m.attached = attachment.Status.AttachmentMetadata
	return true, nil
}
