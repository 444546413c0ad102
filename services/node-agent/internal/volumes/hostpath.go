package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
)

type hostPathKind struct{}

func (hostPathKind) name() string               { return "kubernetes.io~host-path" }
func (hostPathKind) owns(v *corev1.Volume) bool { return v.HostPath != nil }

func (hostPathKind) setUp(_ context.Context, r *request) (result, error) {
	path := r.volume.HostPath.Path
	if !filepath.IsAbs(path) {
		return result{}, fmt.Errorf("the host path %q is not absolute", path)
	}
	for _, part := range splitPath(path) {
		if part == ".." {
			return result{}, fmt.Errorf("the host path %q must not contain '..'", path)
		}
	}
	want := corev1.HostPathUnset
	if r.volume.HostPath.Type != nil {
		want = *r.volume.HostPath.Type
	}
	if err := checkHostPath(path, want); err != nil {
		return result{}, fmt.Errorf("hostPath type check failed: %w", err)
	}
	return result{path: path}, nil
}

func checkHostPath(path string, want corev1.HostPathType) error {
	switch want {
	case corev1.HostPathUnset:
		return nil
	case corev1.HostPathDirectoryOrCreate:
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			return os.MkdirAll(path, 0o755)
		}
		return requireType(path, "directory", fs.FileMode.IsDir)
	case corev1.HostPathDirectory:
		return requireType(path, "directory", fs.FileMode.IsDir)
	case corev1.HostPathFileOrCreate:
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL, 0o644)
		if err == nil {
			return f.Close()
		}
		if !errors.Is(err, os.ErrExist) {
			return err
		}
		return requireType(path, "file", fs.FileMode.IsRegular)
	case corev1.HostPathFile:
		return requireType(path, "file", fs.FileMode.IsRegular)
	case corev1.HostPathSocket:
		return requireType(path, "socket", func(m fs.FileMode) bool { return m&fs.ModeSocket != 0 })
	case corev1.HostPathCharDev:
		return requireType(path, "character device", func(m fs.FileMode) bool { return m&fs.ModeCharDevice != 0 })
	case corev1.HostPathBlockDev:
		return requireType(path, "block device", func(m fs.FileMode) bool { return m&fs.ModeDevice != 0 && m&fs.ModeCharDevice == 0 })
	}
	return fmt.Errorf("%s is an invalid volume type", want)
}

func requireType(path, what string, is func(fs.FileMode) bool) error {
	info, err := os.Stat(path)
	if err != nil || !is(info.Mode()) {
		return fmt.Errorf("%s is not a %s", path, what)
	}
	return nil
}
