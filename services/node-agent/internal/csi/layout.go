package csi

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	dataFile      = "vol_data.json"
	mountDir      = "mount"
	globalMount   = "globalmount"
	directoryMode = 0o750
)

// volumeData is vol_data.json, with upstream's keys.
type volumeData struct {
	SpecVolumeID string                        `json:"specVolID,omitempty"`
	VolumeHandle string                        `json:"volumeHandle"`
	DriverName   string                        `json:"driverName"`
	NodeName     string                        `json:"nodeName,omitempty"`
	AttachmentID string                        `json:"attachmentID,omitempty"`
	Lifecycle    storagev1.VolumeLifecycleMode `json:"volumeLifecycleMode,omitempty"`
}

func (d volumeData) key() string { return d.DriverName + "^" + d.VolumeHandle }

func (d volumeData) uniqueName() corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName(plugin + "/" + d.key())
}

func (s *Store) podDir(uid types.UID) string {
	return filepath.Join(s.cfg.Root, "pods", string(uid), "volumes", Dir)
}

// globalDir is the directory of a staged volume.
func (s *Store) globalDir(driver, handle string) string {
	return filepath.Join(s.cfg.Root, "plugins", plugin, driver, fmt.Sprintf("%x", sha256.Sum256([]byte(handle))))
}

// attachmentName is that of the VolumeAttachment which attaches a volume to a node.
func attachmentName(handle, driver, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+driver+node)))
}

// save writes a volume's data so that a kill leaves the old or the new one.
func (d volumeData) save(dir string) error {
	if err := os.MkdirAll(dir, directoryMode); err != nil {
		return fmt.Errorf("making the directory of volume %s: %w", d.VolumeHandle, err)
	}
	text, err := json.Marshal(d)
	if err != nil {
		return err
	}
	if err := replace(filepath.Join(dir, dataFile), text); err != nil {
		return fmt.Errorf("writing the data of volume %s: %w", d.VolumeHandle, err)
	}
	return nil
}

func replace(path string, text []byte) error {
	file, err := os.OpenFile(path+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o640)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// load reads a volume's data; known is false where nothing was asked of a driver.
func load(dir string) (data volumeData, known bool, err error) {
	text, err := os.ReadFile(filepath.Join(dir, dataFile))
	if errors.Is(err, fs.ErrNotExist) {
		return volumeData{}, false, nil
	}
	if err != nil {
		return volumeData{}, false, fmt.Errorf("reading the data of a volume: %w", err)
	}
	if err := json.Unmarshal(text, &data); err != nil {
		return volumeData{}, false, fmt.Errorf("reading %s: %w", filepath.Join(dir, dataFile), err)
	}
	return data, true, nil
}

// published are the volumes of all pods, by their directories, as the disk has them.
func (s *Store) published() (map[string]volumeData, error) {
	return loadAll(filepath.Join(s.cfg.Root, "pods", "*", "volumes", Dir, "*"))
}

// staged are the staged volumes, by their directories, as the disk has them.
func (s *Store) staged() (map[string]volumeData, error) {
	return loadAll(filepath.Join(s.cfg.Root, "plugins", plugin, "*", "*"))
}

func loadAll(pattern string) (map[string]volumeData, error) {
	files, err := filepath.Glob(filepath.Join(pattern, dataFile))
	if err != nil {
		return nil, err
	}
	all := map[string]volumeData{}
	for _, file := range files {
		data, known, err := load(filepath.Dir(file))
		if err != nil {
			return nil, err
		}
		if known {
			all[filepath.Dir(file)] = data
		}
	}
	return all, nil
}

// recount finds out which volumes are in use here, and tells if others are now.
func (s *Store) recount() {
	published, err := s.published()
	if err != nil {
		s.cfg.Log.Warn("Looking for volumes of CSI drivers", "err", err)
		return
	}
	staged, err := s.staged()
	if err != nil {
		s.cfg.Log.Warn("Looking for volumes of CSI drivers", "err", err)
		return
	}
	var names []corev1.UniqueVolumeName
	for _, all := range []map[string]volumeData{published, staged} {
		for _, data := range all {
			if data.AttachmentID != "" {
				names = append(names, data.uniqueName())
			}
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	s.mu.Lock()
	changed := !slices.Equal(s.inUse, names)
	s.inUse = names
	s.mu.Unlock()
	if changed {
		s.cfg.Node.Changed()
	}
}
