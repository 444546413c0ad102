package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/types"
)

// Unmount takes all volumes of a pod back, by what lies on the disk, and unstages
// those that no other pod uses. It may be called again, and for pods of an earlier
// run. A volume that fails holds up no other.
func (s *Store) Unmount(ctx context.Context, uid types.UID) error {
	entries, err := os.ReadDir(s.podDir(uid))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the volumes of pod %s: %w", uid, err)
	}
	failures := make(chan error)
	for _, entry := range entries {
		go func() { failures <- s.unmount(ctx, filepath.Join(s.podDir(uid), entry.Name())) }()
	}
	errs := make([]error, 0, len(entries))
	for range entries {
		errs = append(errs, <-failures)
	}
	return errors.Join(errs...)
}

// unmount takes back the volume of one directory.
func (s *Store) unmount(ctx context.Context, dir string) error {
	data, known, err := load(dir)
	if err != nil {
		return err
	}
	if !known { // no driver was asked for anything
		if isMounted(filepath.Join(dir, mountDir)) {
			return fmt.Errorf("something is mounted in %s, and no driver is known to have done it", dir)
		}
		return os.RemoveAll(dir)
	}
	unlock, err := s.lock(ctx, data.key())
	if err != nil {
		return err
	}
	defer unlock()
	done := s.measure.operation(data.DriverName, "volume_unmount")
	err = s.unpublish(ctx, dir, data)
	done(err)
	if err != nil {
		return err
	}
	return s.unstageUnused(ctx, data)
}

func (s *Store) unpublish(ctx context.Context, dir string, data volumeData) error {
	d, err := s.driver(data.DriverName)
	if err != nil {
		return fmt.Errorf("unpublishing volume %s: %w", data.VolumeHandle, err)
	}
	target := filepath.Join(dir, mountDir)
	if _, err := d.NodeUnpublishVolume(ctx, &csipb.NodeUnpublishVolumeRequest{VolumeId: data.VolumeHandle, TargetPath: target}); err != nil {
		return fmt.Errorf("unpublishing volume %s: %w", data.VolumeHandle, err)
	}
	return s.discard(dir, mountDir)
}

// discard removes a volume's directory, in which nothing may be mounted: its data
// last but one, so that a kill in between is found.
func (s *Store) discard(dir, mount string) error {
	path := filepath.Join(dir, mount)
	if isMounted(path) {
		return fmt.Errorf("%s is still mounted", path)
	}
	// Only empty directories: what the driver has left there is not the agent's.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the mount point of a volume: %w", err)
	}
	if err := os.Remove(filepath.Join(dir, dataFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the data of a volume: %w", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("removing the directory of a volume: %w", err)
	}
	s.recount()
	return nil
}

// unstageUnused unstages a volume that no pod uses. Caller must hold its lock.
func (s *Store) unstageUnused(ctx context.Context, data volumeData) error {
	global := s.globalDir(data.DriverName, data.VolumeHandle)
	_, staged, err := load(global)
	if err != nil || !staged {
		return err
	}
	published, err := s.published()
	if err != nil {
		return err
	}
	for _, other := range published {
		if other.key() == data.key() {
			return nil
		}
	}
	d, err := s.driver(data.DriverName)
	if err != nil {
		return fmt.Errorf("unstaging volume %s: %w", data.VolumeHandle, err)
	}
	done := s.measure.operation(data.DriverName, "unmount_device")
	_, err = d.NodeUnstageVolume(ctx, &csipb.NodeUnstageVolumeRequest{VolumeId: data.VolumeHandle, StagingTargetPath: filepath.Join(global, globalMount)})
	done(err)
	if err != nil {
		return fmt.Errorf("unstaging volume %s: %w", data.VolumeHandle, err)
	}
	return s.discard(global, globalMount)
}

// Run makes the node's CSINode, and unstages what no pod uses any more, until ctx
// ends. It must begin when the pods of this node are known.
func (s *Store) Run(ctx context.Context, begin <-chan struct{}) error {
	const every = 30 * time.Second
	select {
	case <-begin:
	case <-ctx.Done():
		return nil
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	made := false
	for {
		if !made {
			err := s.EnsureCSINode(ctx)
			if made = err == nil; !made && ctx.Err() == nil {
				s.cfg.Log.WarnContext(ctx, "Making the node's CSINode", "err", err)
			}
		}
		s.sweep(ctx)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// sweep unstages what a killed agent has left staged, each in its own time.
func (s *Store) sweep(ctx context.Context) {
	staged, err := s.staged()
	if err != nil {
		s.cfg.Log.WarnContext(ctx, "Looking for staged volumes", "err", err)
		return
	}
	ended := make(chan struct{})
	for _, data := range staged {
		go func() {
			defer func() { ended <- struct{}{} }()
			unlock, err := s.lock(ctx, data.key())
			if err != nil {
				return
			}
			defer unlock()
			if err := s.unstageUnused(ctx, data); err != nil && ctx.Err() == nil {
				s.cfg.Log.WarnContext(ctx, "Unstaging a volume that no pod uses", "driver", data.DriverName, "volume", data.VolumeHandle, "err", err)
			}
		}()
	}
	for range staged {
		<-ended
	}
}
