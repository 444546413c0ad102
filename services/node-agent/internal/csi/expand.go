package csi

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// expandEvery is how often the sizes of a volume and its claim are compared.
const expandEvery = 15 * time.Second

// expand has the driver make the file system as large as the volume has become, and
// tells the claim. The claim's status is smaller than the volume until then.
func (m *mounting) expand(ctx context.Context, target string) error {
	want := m.Persistent.Spec.Capacity[corev1.ResourceStorage]
	have := m.Claim.Status.Capacity[corev1.ResourceStorage]
	if have.IsZero() || want.Cmp(have) <= 0 || m.ReadOnly {
		return nil
	}
	done := m.measure.operation(m.data.DriverName, "volume_fs_resize")
	request := &csipb.NodeExpandVolumeRequest{
		VolumeId: m.data.VolumeHandle, VolumePath: target, VolumeCapability: m.capability(),
		CapacityRange: &csipb.CapacityRange{RequiredBytes: want.Value()},
	}
	if m.driver.can(csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) {
		request.StagingTargetPath = filepath.Join(m.globalDir(m.data.DriverName, m.data.VolumeHandle), globalMount)
	}
	var err error
	if request.Secrets, err = m.secret(ctx, m.Persistent.Spec.CSI.NodeExpandSecretRef); err == nil {
		_, err = m.driver.NodeExpandVolume(ctx, request)
	}
	done(err)
	if err != nil {
		return fmt.Errorf("expanding volume %s: %w", m.data.VolumeHandle, err)
	}
	return m.tellExpanded(ctx)
}

// tellExpanded writes the new size into the claim's status and ends the resizing.
func (m *mounting) tellExpanded(ctx context.Context) error {
	status := m.Claim.Status.DeepCopy()
	status.Capacity[corev1.ResourceStorage] = m.Persistent.Spec.Capacity[corev1.ResourceStorage]
	status.Conditions = slices.DeleteFunc(status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Type == corev1.PersistentVolumeClaimFileSystemResizePending || c.Type == corev1.PersistentVolumeClaimResizing
	})
	var conditions any // null removes the list
	if len(status.Conditions) > 0 {
		conditions = status.Conditions
	}
	fields := map[string]any{"capacity": status.Capacity, "conditions": conditions}
	if _, resizing := status.AllocatedResourceStatuses[corev1.ResourceStorage]; resizing {
		fields["allocatedResourceStatuses"] = map[string]any{string(corev1.ResourceStorage): nil}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": m.Claim.ResourceVersion}, "status": fields})
	if err != nil {
		return err
	}
	if _, err := m.cfg.Client.CoreV1().PersistentVolumeClaims(m.Claim.Namespace).Patch(ctx, m.Claim.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("telling claim %s that its volume has grown: %w", m.Claim.Name, err)
	}
	return nil
}
