package csi

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// republish is how often a driver that asks for it is told again to publish.
const republish = time.Minute

// Volume is one volume that a pod wants of a driver.
type Volume struct {
	Pod *corev1.Pod
	// Name is that of the directory: the persistent volume's, or the pod's volume's
	// where it is inline.
	Name string
	// Persistent is nil for an inline volume.
	Persistent *corev1.PersistentVolume
	// Claim is that of a persistent volume.
	Claim *corev1.PersistentVolumeClaim
	// Inline is nil for a persistent volume.
	Inline   *corev1.CSIVolumeSource
	ReadOnly bool
}

// Mounted is a volume that has been published.
type Mounted struct {
	Path string
	// Renew is when to mount it again, for what the driver keeps up; zero is never.
	Renew time.Time
	// ApplyGroup says that files must be given to the pod's group, once.
	ApplyGroup bool
}

// mounting is one try to mount a volume.
type mounting struct {
	*Store
	Volume
	driver   *driver
	spec     *storagev1.CSIDriverSpec
	data     volumeData
	dir      string            // of the volume in the pod
	context  map[string]string // what the driver is told when it publishes
	attached map[string]string // what it said when it attached
	group    string            // passed to the driver; "" where it is not
	renew    time.Time
}

// Mount publishes a volume to a pod. It may be called again: what is there stays,
// and what the driver keeps up is kept up.
func (s *Store) Mount(ctx context.Context, v Volume) (Mounted, error) {
	name, handle, lifecycle := identify(v)
	d, err := s.driver(name)
	if err != nil {
		return Mounted{}, err
	}
	spec, err := s.spec(ctx, name)
	if err != nil {
		return Mounted{}, err
	}
	if !slices.Contains(spec.VolumeLifecycleModes, lifecycle) {
		return Mounted{}, fmt.Errorf("volume mode %q not supported by driver %s (only supports %q)", lifecycle, name, spec.VolumeLifecycleModes)
	}
	m := &mounting{
		Store: s, Volume: v, driver: d, spec: spec, dir: filepath.Join(s.podDir(v.Pod.UID), v.Name),
		data: volumeData{SpecVolumeID: v.Name, VolumeHandle: handle, DriverName: name, NodeName: s.cfg.NodeName, Lifecycle: lifecycle},
	}
	if v.Persistent != nil && *spec.AttachRequired {
		m.data.AttachmentID = attachmentName(handle, name, s.cfg.NodeName)
	}
	unlock, err := s.lock(ctx, m.data.key())
	if err != nil {
		return Mounted{}, err
	}
	defer unlock()
	done := s.measure.operation(name, "volume_mount")
	mounted, err := m.run(ctx)
	done(err)
	return mounted, err
}

func identify(v Volume) (driver, handle string, lifecycle storagev1.VolumeLifecycleMode) {
	if v.Persistent != nil {
		source := v.Persistent.Spec.CSI
		return source.Driver, source.VolumeHandle, storagev1.VolumeLifecyclePersistent
	}
	return v.Inline.Driver, inlineHandle(v.Pod.UID, v.Name), storagev1.VolumeLifecycleEphemeral
}

// run does the work; the volume is locked.
func (m *mounting) run(ctx context.Context) (Mounted, error) {
	target := filepath.Join(m.dir, mountDir)
	if err := m.describePod(ctx); err != nil {
		return Mounted{}, err
	}
	m.fillGroup()
	already := isMounted(target)
	if already && !isTrue(m.spec.RequiresRepublish) {
		return m.finish(ctx, target, false)
	}
	// From here on a kill must be found: what may be staged or published is noted
	// before it is.
	if err := m.data.save(m.dir); err != nil {
		return Mounted{}, err
	}
	m.recount()
	staging := ""
	if m.Persistent != nil {
		if err := m.awaitAttached(ctx); err != nil {
			return Mounted{}, err
		}
		var err error
		if staging, err = m.stage(ctx); err != nil {
			return Mounted{}, err
		}
	}
	if err := m.publishTo(ctx, staging, target); err != nil {
		return Mounted{}, err
	}
	return m.finish(ctx, target, !already)
}

// finish brings the volume's size up to date, and says what is to be done next.
func (m *mounting) finish(ctx context.Context, target string, fresh bool) (Mounted, error) {
	mounted := Mounted{Path: target, ApplyGroup: fresh && m.appliesGroup()}
	next := func(at time.Time) {
		if !at.IsZero() && (mounted.Renew.IsZero() || at.Before(mounted.Renew)) {
			mounted.Renew = at
		}
	}
	if isTrue(m.spec.RequiresRepublish) {
		next(m.renew)
		next(time.Now().Add(republish))
	}
	if m.Persistent != nil && m.driver.can(csipb.NodeServiceCapability_RPC_EXPAND_VOLUME) {
		next(time.Now().Add(expandEvery))
		if err := m.expand(ctx, target); err != nil {
			return Mounted{}, err
		}
	}
	return mounted, nil
}

// stage has the driver stage the volume, and returns where: "" for a driver that
// does not.
func (m *mounting) stage(ctx context.Context) (string, error) {
	if !m.driver.can(csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) {
		return "", nil
	}
	global := m.globalDir(m.data.DriverName, m.data.VolumeHandle)
	path := filepath.Join(global, globalMount)
	secrets, err := m.secret(ctx, m.Persistent.Spec.CSI.NodeStageSecretRef)
	if err != nil {
		return "", err
	}
	noted := volumeData{VolumeHandle: m.data.VolumeHandle, DriverName: m.data.DriverName, AttachmentID: m.data.AttachmentID}
	if err := noted.save(global); err != nil {
		return "", err
	}
	if err := os.MkdirAll(path, directoryMode); err != nil {
		return "", fmt.Errorf("making the staging directory: %w", err)
	}
	_, err = m.driver.NodeStageVolume(ctx, &csipb.NodeStageVolumeRequest{
		VolumeId: m.data.VolumeHandle, PublishContext: m.attached, StagingTargetPath: path, VolumeCapability: m.capability(),
		Secrets: secrets, VolumeContext: m.Persistent.Spec.CSI.VolumeAttributes,
	})
	if err != nil {
		return "", fmt.Errorf("staging volume %s: %w", m.data.VolumeHandle, err)
	}
	return path, nil
}

func (m *mounting) publishTo(ctx context.Context, staging, target string) error {
	secrets, err := m.publishSecret(ctx)
	if err != nil {
		return err
	}
	readOnly := m.ReadOnly || m.Persistent != nil && m.Persistent.Spec.CSI.ReadOnly || m.Inline != nil && isTrue(m.Inline.ReadOnly)
	_, err = m.driver.NodePublishVolume(ctx, &csipb.NodePublishVolumeRequest{
		VolumeId: m.data.VolumeHandle, PublishContext: m.attached, StagingTargetPath: staging, TargetPath: target,
		VolumeCapability: m.capability(), Readonly: readOnly, Secrets: secrets, VolumeContext: m.context,
	})
	if err != nil {
		return fmt.Errorf("publishing volume %s: %w", m.data.VolumeHandle, err)
	}
	return nil
}

// isMounted says whether something is mounted at path; what cannot be told is not.
func isMounted(path string) bool {
	mounted, err := mountinfo.Mounted(path)
	return err == nil && mounted
}
